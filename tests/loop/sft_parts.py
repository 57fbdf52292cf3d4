"""Runs to learn from: recorded stores of made-up rollouts, with real dialects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from recorded_run import Story, finish, new_run, train_spec, write_call

from whippletree.loop.layout import Layout
from whippletree.store import open_store
from whippletree.types import Attempt, Call, CallPayload, RolloutSpec

Change = Callable[[Call], Call]
SOLVED = ["cat amber", "submit 17"]


class Changing:
    """A store that records calls otherwise than it is told."""

    def __init__(self, store: Any, change: Change) -> None:
        self._store, self._change = store, change

    def record_call(self, call: Call, payload: CallPayload) -> Any:
        return self._store.record_call(self._change(call), payload)


class Recorder:
    """Writes rollouts into the store of a run directory."""

    def __init__(self, store: Any) -> None:
        self.store = store

    def rollout(
        self,
        name: str,
        commands: list[str],
        *,
        reward: float | None = 1.0,
        change: Change = lambda call: call,
        delivered: bool = True,
        text: str = "",
        **spec: object,
    ) -> None:
        """A finished rollout whose model gave these commands, one call each."""
        self.store.create_rollouts([train_spec(name, **({"task_id": f"task-{name}", "harness": "h"} | spec))]).result()
        (attempt,) = self.store.claim("controller/host-0", 1).result()
        told = Story(commands=commands, outputs=[f"saw {command}" for command in commands], reward=reward, text=text)
        for index in range(len(commands)):
            call = write_call(Changing(self.store, change), attempt, told, index, 0, 10.0 + index)
            if delivered:
                self.store.mark_delivered(call.call_id).result()
        finish(self.store, attempt, told, 10.0)

    def unfinished(self, name: str) -> tuple[RolloutSpec, Attempt]:
        """One that runs."""
        spec = train_spec(name)
        self.store.create_rollouts([spec]).result()
        (attempt,) = self.store.claim("controller/host-0", 1).result()
        return spec, attempt


@contextmanager
def recording(directory: Path) -> Iterator[tuple[Recorder, Layout]]:
    """A new run directory and the recorder of its store."""
    _, layout = new_run(directory)
    with open_store(layout.store, instance="test") as store:
        yield Recorder(store), layout
