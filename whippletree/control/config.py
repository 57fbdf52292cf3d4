"""Settings of the control room.

Invariants (tests/control/test_control_config.py): every default is valid; a limit that is not positive is refused.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from whippletree.configuration import Config
from whippletree.control.kubernetes.config import KubernetesConfig
from whippletree.control.policy import RestartPolicy
from whippletree.types import Launch

Count = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]


class DeadlineConfig(Config):
    """Limit of each phase of an attempt, in seconds."""

    boot: Seconds = 60.0
    """Reading the task and starting the sandbox."""
    setup: Seconds = 30.0
    """Putting the harness's files into the sandbox."""
    agent: Seconds = 300.0
    """The harness's work; a task may state a shorter limit of its own."""
    grace: Seconds = 10.0
    """After the agent's limit: how long a tenant of a pool host may take to notice before its host is replaced."""
    seal: Seconds = 30.0
    """Waiting for the gateway to record what is in flight and to close the attempt."""
    verify: Seconds = 120.0
    """The verifier; a task may state a shorter limit of its own."""
    cleanup: Seconds = 20.0
    """Ending the sandbox."""


class PoolConfig(Config):
    """Long-lived processes that import a harness once and run many attempts each."""

    hosts: Count = 2
    """Host processes per harness."""
    tenants: Count = 16
    """Attempts that one host runs at the same time, each on a thread."""
    ready_seconds: Seconds = 120.0
    """Limit for a host to import its harness."""
    restart: RestartPolicy = RestartPolicy()
    """When a host that died is started again."""


class ControlConfig(Config):
    """How rollouts are run on this machine."""

    concurrency: Count = 16
    """Attempts under way at the same time."""
    launch: Launch = "pool"
    """"pool": inside long-lived host processes; "process": one harness process per attempt, inside its sandbox;
    "kubernetes": one Job per attempt, from a template."""
    starts_at_once: Count = 8
    """Sandboxes being started at the same time; the others wait, outside their boot limit."""
    idle_poll_seconds: Seconds = 0.05
    """Longest pause between two looks for queuing rollouts."""
    busy_poll_seconds: Seconds = 0.005
    """Shortest pause between two looks for queuing rollouts."""
    stop_seconds: Seconds = 30.0
    """After a request to stop: how long attempts may take to clean up and go back to the queue."""
    deadlines: DeadlineConfig = DeadlineConfig()
    """Limits of an attempt's phases."""
    pool: PoolConfig = PoolConfig()
    """Pool hosts; used with launch = "pool"."""
    kubernetes: KubernetesConfig = KubernetesConfig()
    """Jobs; used with launch = "kubernetes"."""


class HarnessBinding(Config):
    """Which adapter runs the rollouts that name a harness, with which settings.

    Example: HarnessBinding(harness="mini-swe-agent", source="trail", settings={"step_limit": 5})
    """

    harness: str
    """The harness's name, as rollouts have it."""
    source: str = ""
    """The source whose rollouts this is for; "" means every source that has no binding of its own."""
    adapter: str = ""
    """Name of a shipped adapter, or "module:Class"; "" means the harness's name."""
    settings: dict[str, object] = {}
    """The adapter's settings."""
