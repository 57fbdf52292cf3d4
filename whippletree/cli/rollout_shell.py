"""Looking into the machine of an attempt afterwards: its snapshot is restored, without a network, and removed at the end.

Invariants (tests/cli/test_cli_rollout_shell.py): what is done inside changes neither the snapshot nor the record; no sandbox is
left; an attempt without a snapshot, or one whose snapshot was removed, is an error that says so.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets

import msgspec

from whippletree import sandboxes
from whippletree.cli.task_shell import NO_GATEWAY, prompt
from whippletree.configuration import load
from whippletree.errors import ConfigurationError, StoreError
from whippletree.loop.config import RunConfig
from whippletree.loop.layout import Layout
from whippletree.protocols import SandboxSpec, Snapshot, Store
from whippletree.sandboxes import SandboxConfig
from whippletree.types import Attempt
from whippletree.ui.conversation import printable


def rollouts_shell(arguments: argparse.Namespace, store: Store) -> int:
    """`whippletree rollouts shell`: restore the snapshot and run what is typed in it. Raises WhippletreeError."""
    layout = Layout(arguments.run_dir)
    attempt = chosen(store.attempts(arguments.rollout_id), arguments.rollout_id, arguments.attempt)
    snapshot = kept(layout, attempt)
    config = load(RunConfig, layout.config).sandbox if layout.config.is_file() else SandboxConfig()
    config = msgspec.structs.replace(config, kind=snapshot.backend)
    processes = snapshot.holds == "processes+files" and not arguments.files
    print(printable(_head(attempt, snapshot, processes=processes)))
    asyncio.run(_look(config, snapshot, arguments.user, processes=processes))
    return 0


def chosen(attempts: list[Attempt], rollout_id: str, number: int) -> Attempt:
    """The attempt of that number, or (0) the last one with a snapshot. Raises StoreError, ConfigurationError."""
    if not attempts:
        raise StoreError(f"rollout {rollout_id!r} is unknown, or was not tried yet", "`rollouts list` shows what there is")
    found = [attempt for attempt in attempts if attempt.attempt == number or (not number and attempt.snapshot is not None)]
    if number and not found:
        raise StoreError(f"rollout {rollout_id!r} has no attempt {number}", f"it has {len(attempts)}")
    if not found or found[-1].snapshot is None:
        which = f"attempt {number}" if number else "no attempt"
        raise ConfigurationError(
            f"{which} of {rollout_id!r} has {'no' if number else 'a'} snapshot",
            'control.snapshots = "failed" or "all" keeps them; an event of kind snapshot_skipped says why one was not made',
        )
    return found[-1]


def kept(layout: Layout, attempt: Attempt) -> Snapshot:
    """The snapshot of an attempt. Raises ConfigurationError where it was removed since, SandboxError where it is damaged."""
    assert attempt.snapshot is not None
    directory = layout.directory / attempt.snapshot.directory
    if not directory.exists():
        raise ConfigurationError(
            f"the snapshot of attempt {attempt.attempt} of {attempt.rollout_id!r} was removed since",
            "the oldest go beyond control.snapshots_gb, and all with the run's attempts directory",
        )
    return sandboxes.load_snapshot(directory.absolute())


def spec_of(snapshot: Snapshot) -> SandboxSpec:
    """A sandbox as that of the snapshot, under a name of its own and without a network."""
    return SandboxSpec(
        sandbox_id=f"look-{secrets.token_hex(6)}",
        workdir=snapshot.workdir,
        read_only=snapshot.read_only,
        environment=snapshot.environment,
        limits=snapshot.limits,
        rootfs=snapshot.rootfs,
        user=snapshot.user,
        gateway_port=0,
    )


def _head(attempt: Attempt, snapshot: Snapshot, *, processes: bool) -> str:
    assert attempt.snapshot is not None
    end = f"{attempt.cause.cause}: {attempt.cause.message}" if attempt.cause else attempt.exit_status
    holds = "its processes go on" if processes else f"no processes: {snapshot.reason or 'left out'}"
    which = f"{attempt.rollout_id}, attempt {attempt.attempt}, as it was after {attempt.snapshot.after}"
    return (
        f"--- {which}; it ended with {end} ---\n"
        f"--- {holds} ---\n"
        "--- `exit` or Ctrl-D ends it and removes it; the snapshot stays as it is ---"
    )


async def _look(config: SandboxConfig, snapshot: Snapshot, user: str, *, processes: bool) -> None:
    box = sandboxes.restore(config, snapshot, spec_of(snapshot), gateway=NO_GATEWAY, processes=processes)
    try:
        await box.start()
        print(printable(f"--- {box.isolation} ---"))
        await prompt(box, snapshot.workdir, user=user)
    finally:
        await box.stop()
