"""What the tests of adapters share: specs of attempts, and adapters whose package counts as installed."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from whippletree.files import write_json
from whippletree.harnesses.packages import MANIFEST, Manifest, Packaged
from whippletree.protocols import AttemptSpec
from whippletree.traces.atif import Trajectory, read_trajectory

P = TypeVar("P", bound=Packaged)
RECORDS = Path(__file__).parent / "records"
KEY = "wt-secret"


def attempt(instruction: str = "Say \u201chi\u201d; $HOME stays as it is.", /, **settings: object) -> AttemptSpec:
    return AttemptSpec(
        rollout_id="r",
        attempt=1,
        instruction=instruction,
        base_url="http://127.0.0.1:8000/v1",
        api_key=KEY,
        model="policy",
        workdir="/app",
        output_dir="/tmp/out",
        settings=settings,
    )


def placed(kind: type[P], directory: Path) -> P:
    """An adapter whose folder holds nothing but a manifest."""
    harness = kind(directory)
    manifest = Manifest(name=harness.name, version=harness.version, package=harness.pinned, digest="", installed=0.0)
    write_json(harness.folder / MANIFEST, manifest)
    return kind(directory)  # anew: what it shows a sandbox is read from the manifest


def read(account: bytes | None) -> Trajectory:
    assert account is not None
    return read_trajectory(account)


def turns(trajectory: Trajectory) -> list[tuple[object, list[str], int | None, int | None]]:
    """Text, tools, prompt and sampled tokens of each turn of the model."""
    return [
        (
            step.message,
            [call.function_name for call in step.tool_calls or []],
            step.metrics.prompt_tokens if step.metrics else None,
            step.metrics.completion_tokens if step.metrics else None,
        )
        for step in trajectory.steps
        if step.source == "agent"
    ]
