"""One attempt's defence against an agent that cheats: what it is not to see, what it is not to leave, what it is seen to try.

    boot: history hidden ─► setup ─► survey ─► agent ─► seal ─► planted files put away ─► history given back ─► tests
                                                  └───────── suspicions ─► events of kind "hack_suspected"

A suspicion changes no reward: what makes a trick fail is that it has nothing to find and nothing to leave.
Invariants (tests/control/test_defending.py, tests/hostile/test_hostile_agents.py):
- the history comes back only once no agent of the attempt can run any more;
- a sandbox that cannot be surveyed is noted as an event, and its attempt goes on;
- each suspicion is written once per attempt, however often an attempt's steps show it.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec

from whippletree.control.config import DefenceConfig
from whippletree.errors import SandboxError, StoreError
from whippletree.protocols import NetworkRefusal, Sandbox, SandboxSpec, Store
from whippletree.tasks.defence import Survey, put_away, survey
from whippletree.tasks.detectors import Suspicion, in_address, in_commands, in_leftovers
from whippletree.tasks.hiding import Hidden, give_back, hide, hide_in_image, take_away
from whippletree.types import Attempt, Call, Event, ParsedMessage

log = logging.getLogger(__name__)

SUSPECTED = "hack_suspected"  # kind of the events
SKIPPED = "defence_skipped"
MOST = 64  # suspicions of one attempt that are written
_BLOCK = re.compile(r"```[^\n]*\n(.*?)```", re.DOTALL)


class Defence:
    """The defence of one attempt. `hidden` is a directory for task files without their repositories' future."""

    def __init__(self, config: DefenceConfig, store: Store, attempt: Attempt, hidden: Path) -> None:
        self._config = config
        self._store = store
        self._attempt = attempt
        self._cache = hidden
        self._hidden: list[tuple[Hidden, str]] = []
        self._covered: tuple[tuple[str, Hidden], ...] = ()
        self._before: Survey | None = None
        self._seen: set[tuple[str, str]] = set()

    def conceal(self, spec: SandboxSpec) -> SandboxSpec:
        """The sandbox with the future of its repositories hidden. Runs git on the host. Raises ConfigurationError."""
        if not self._config.hide_history:
            return spec
        files = []
        for source, inside in spec.files:
            hidden = hide(Path(source), self._cache)
            files.append((hidden.visible, inside))
            if hidden.taken:
                self._hidden.append((hidden, inside))
        if spec.rootfs:
            self._covered = hide_in_image(Path(spec.rootfs), self._cache).repositories
        return msgspec.structs.replace(spec, files=tuple(files))

    async def cover(self, box: Sandbox) -> None:
        """Hide the future that the image of a sandbox, which has just started, brought along. Raises SandboxError."""
        for inside, hidden in self._covered:
            await take_away(box, hidden, inside)
            self._hidden.append((hidden, inside))

    async def before(self, box: Sandbox, workdir: str) -> None:
        """Note what is there before the agent."""
        if self._config.put_away:
            self._before = await self._or_none(survey(box, workdir))

    async def after(self, box: Sandbox, workdir: str, *, last: bool) -> None:
        """Put away what the agent planted; once it cannot run any more (`last`), give the history back. Raises SandboxError."""
        if self._before is not None:
            self._suspect(await put_away(box, workdir, self._before))
        if last:
            for hidden, inside in self._hidden:
                await give_back(box, hidden, inside)

    def tried(self) -> None:
        """Note what the agent's commands look like. Reads the attempt's calls. Raises StoreError."""
        if self._config.detect:
            self._suspect(in_commands(self._commands()))

    def refused(self, refusals: Sequence[NetworkRefusal], mirrors: Collection[str] = ()) -> None:
        """Note what the agent tried to reach; `mirrors`: hosts that its set-up had its packages from."""
        self._suspect([in_address(refusal.host, refusal.port, mirrors=mirrors) for refusal in refusals])

    def left(self, tampering: Sequence[str]) -> None:
        """Note what the verifier found where only tests write."""
        self._suspect(in_leftovers(tampering))

    def _commands(self) -> Iterator[str]:
        for call in self._store.calls(self._attempt.rollout_id, self._attempt.attempt):
            yield from commands_of(_reply(self._store, call))

    def _suspect(self, suspicions: Sequence[Suspicion]) -> None:
        events = []
        for suspicion in suspicions:
            key = (suspicion.trick, suspicion.evidence)
            if key not in self._seen and len(self._seen) < MOST:
                self._seen.add(key)
                events.append(self._event(SUSPECTED, msgspec.to_builtins(suspicion)))
        if events:
            note(self._store, events)

    def _event(self, kind: str, data: dict[str, Any]) -> Event:
        attempt = self._attempt
        return Event(
            event_id=f"{attempt.rollout_id}-{attempt.attempt}-{kind}-{len(self._seen)}",
            rollout_id=attempt.rollout_id,
            attempt=attempt.attempt,
            time=time.time(),
            kind=kind,
            data=data,
        )

    async def _or_none(self, work: Coroutine[Any, Any, Survey]) -> Survey | None:
        try:
            return await work
        except SandboxError as error:
            log.warning("%s: planted files will not be looked for: %s", self._attempt.rollout_id, error)
            note(self._store, [self._event(SKIPPED, {"what": "survey", "reason": error.cause})])
            return None


def _reply(store: Store, call: Call) -> ParsedMessage | None:
    try:
        payload = store.payload(call)
    except StoreError:
        return None  # it sampled nothing, or its tokens were given up
    return msgspec.json.decode(payload.reply_json, type=ParsedMessage) if payload.reply_json else None


def commands_of(reply: ParsedMessage | None) -> Iterator[str]:
    """What a reply asks to be run: every text in the arguments of its calls, and blocks of code in its content."""
    if reply is None:
        return
    for call in reply.tool_calls:
        try:
            yield from _texts(msgspec.json.decode(call.arguments))
        except msgspec.DecodeError:
            yield call.arguments
    yield from _BLOCK.findall(reply.content)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        if value and all(isinstance(item, str) for item in value):
            yield " ".join(value)  # a command as a list of words
        else:
            for inner in value:
                yield from _texts(inner)


def note(store: Store, events: Sequence[Event]) -> None:
    """Write events without waiting; the log says so where that fails."""
    store.append_events(events).add_done_callback(_tell_if_lost)


def _tell_if_lost(written: Future[None]) -> None:
    if (error := written.exception()) is not None:
        log.error("an event was not written: %s", error)
