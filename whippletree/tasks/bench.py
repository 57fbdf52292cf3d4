"""Where a step is judged: in the agent's sandbox, or in a separate one that is started while the agent works.

    begin ─► (agent works; the separate sandbox boots) ─► judge: artifacts in, tests in, run, read ─► close: it is gone

Invariants (tests/tasks/test_bench.py):
- a separate verifier sees nothing of the agent but the artifacts that the task lists, and has no network;
- once `close` returns, its sandbox is gone, whether it booted, was used, or neither; `judge` never raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from whippletree.errors import SandboxError
from whippletree.protocols import Sandbox, SandboxHandle, SandboxSpec
from whippletree.tasks.artifacts import Manifest, hand_over
from whippletree.tasks.task import Step, Task
from whippletree.tasks.verifier import measure
from whippletree.types import Cause, CauseClass, VerifierResult

MakeSandbox = Callable[[SandboxSpec], Sandbox]


class Bench:
    """The judging of one step."""

    def __init__(self, task: Task, step: Step, make_sandbox: MakeSandbox, name: str) -> None:
        """`name`: of the separate sandbox, where the step has one."""
        self._task = task
        self._step = step
        place = step.judging.separate
        self._own = make_sandbox(place.spec(name)) if place is not None else None
        self._booting: asyncio.Task[SandboxHandle] | None = None

    @property
    def separate(self) -> bool:
        """Whether the tests run in a sandbox of their own."""
        return self._own is not None

    def begin(self) -> None:
        """Start the separate sandbox, if there is one, beside what else is done."""
        if self._own is not None and self._booting is None:
            self._booting = asyncio.create_task(self._own.start(), name="boot of a separate verifier")

    async def judge(self, sandbox: Sandbox, manifest: Manifest, directory: Path, *, timeout: float) -> VerifierResult:
        """The step's scores, or the cause that there are none. `sandbox`: the agent's; `directory`: of the artifacts."""
        if self._own is None:
            return await measure(self._task, sandbox, self._step, timeout=timeout)
        self.begin()
        assert self._booting is not None
        try:
            async with asyncio.timeout(timeout):
                await asyncio.shield(self._booting)
                await hand_over(manifest, self._own, directory)
        except SandboxError as error:
            return _failed(f"the verifier's sandbox: {error.cause}", error.next_step)
        except TimeoutError:
            return _failed(f"the verifier's sandbox was not ready within {timeout:g} s", "raise verifier.timeout_sec")
        return await measure(self._task, self._own, self._step, timeout=timeout)

    async def close(self) -> None:
        """End the separate sandbox, however far it is. Never raises."""
        booting, self._booting = self._booting, None
        if booting is not None:
            booting.cancel()
            await asyncio.wait({booting})
            if not booting.cancelled():
                booting.exception()  # taken note of: it was told where it mattered
        if self._own is not None:
            await self._own.stop()


def _failed(message: str, next_step: str) -> VerifierResult:
    cause = Cause(cause=CauseClass.SANDBOX, phase="verify", message=message, next_step=next_step)
    return VerifierResult(reward=None, cause=cause)
