"""What tests of harnesses that are Python packages share: a spec, and a folder that counts as installed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from whippletree.files import write_json
from whippletree.harnesses.packages import MANIFEST, Manifest, Packaged
from whippletree.protocols import AttemptSpec

T = TypeVar("T", bound=Packaged)
SPEC = AttemptSpec(
    rollout_id="r0",
    attempt=1,
    instruction="Write the file.",
    base_url="http://127.0.0.1:8000/v1",
    api_key="wt-secret-key",
    model="policy",
    workdir="/app",
    output_dir="/host/run/r0",
)


def with_settings(**settings: Any) -> AttemptSpec:
    return msgspec.structs.replace(SPEC, settings=settings)


def installed(kind: type[T], directory: Path) -> T:
    """An adapter whose folder has the manifest of its package, and nothing else."""
    harness = kind(directory)
    harness.folder.mkdir(parents=True)
    manifest = Manifest(name=kind.name, version=kind.version, package=kind.package, digest="0", installed=time.time())
    write_json(harness.folder / MANIFEST, manifest)
    return kind(directory)
