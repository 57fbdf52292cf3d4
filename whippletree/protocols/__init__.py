"""The extension points. A user can write any of these in one file and name it from the configuration as "module:name".

| protocol | what a user writes one for | where it is named |
|---|---|---|
| Engine, ChatEngine | another inference server | [engine] |
| Router | another choice of replica | [gateway] router |
| Renderer | another chat format | [rendering] |
| Store, PayloadStore | another database | [store] |
| Sandbox | another machine for an attempt | [sandbox] |
| Harness, ConfiguredHarness | another agent | [[sources]] |
| Verifier | another way to judge | task.toml |
| (a function) | another advantage, shaping hook, group filter or loss weight (docs/batching.md) | [batching] |

Invariants (tests/test_protocols.py): every shipped implementation satisfies its protocol at run time.
"""

from __future__ import annotations

from whippletree.protocols.engines import ChatChunk, ChatEngine, Engine, ReplicaView, RoutedCall, Router
from whippletree.protocols.harnesses import (
    AttemptSpec,
    ConfiguredHarness,
    Harness,
    HarnessFacts,
    HarnessResult,
    LaunchPlan,
    Package,
    PoolHarness,
    Probe,
)
from whippletree.protocols.rendering import Recorded, Renderer, StreamDelta, StreamParser
from whippletree.protocols.sandboxes import (
    ExecResult,
    Fetched,
    Limits,
    NetworkPolicy,
    NetworkRefusal,
    PodAddress,
    Sandbox,
    SandboxHandle,
    SandboxSpec,
    Snapshot,
)
from whippletree.protocols.store import AttemptOutcome, PayloadStore, Store

__all__ = [
    "AttemptOutcome",
    "AttemptSpec",
    "ChatChunk",
    "ChatEngine",
    "ConfiguredHarness",
    "Engine",
    "ExecResult",
    "Fetched",
    "Harness",
    "HarnessFacts",
    "HarnessResult",
    "LaunchPlan",
    "Limits",
    "NetworkPolicy",
    "NetworkRefusal",
    "Package",
    "PayloadStore",
    "PodAddress",
    "PoolHarness",
    "Probe",
    "Recorded",
    "Renderer",
    "ReplicaView",
    "RoutedCall",
    "Router",
    "Sandbox",
    "SandboxHandle",
    "SandboxSpec",
    "Snapshot",
    "Store",
    "StreamDelta",
    "StreamParser",
]
