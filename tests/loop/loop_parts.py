"""What tests of the loop are made of: played rollouts, a gateway on a thread, a run over real parts.

Only the agent is made up. Rollouts are claimed, recorded and finished in a real store as a controller and a gateway would;
what they sampled and how they ended follows from their ids, so that two runs with one configuration see the same world.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np

from whippletree.engines.connect import connect
from whippletree.gateway.client import GatewayControl
from whippletree.gateway.config import GatewayConfig
from whippletree.gateway.keys import control_key
from whippletree.gateway.server import Parts, serving
from whippletree.learner.learner import Learner
from whippletree.loop.config import RunConfig
from whippletree.loop.evaluation import Heldout
from whippletree.loop.fleet import Fleet
from whippletree.loop.groups import SourceTasks
from whippletree.loop.layout import Layout, Services
from whippletree.loop.run import Run
from whippletree.loop.teacher import Teacher
from whippletree.protocols import AttemptOutcome, Engine, Renderer, Store
from whippletree.store import open_store
from whippletree.types import (
    Attempt,
    Call,
    CallPayload,
    CallReward,
    CallTimes,
    Cause,
    CauseClass,
    PrefixBreak,
    RolloutSpec,
    Sampling,
    VerifierResult,
    VersionSpan,
)

VOCABULARY = 320
SECRET = bytes(range(32))
SOURCE = SourceTasks(name="s", tasks=tuple((f"t{n}", f"/t/{n}") for n in range(4)), harness="h")
HELDOUT = [Heldout(source="s", task_id=f"h{n}", task_path=f"/h/{n}", harness="h") for n in range(2)]


class Turn(msgspec.Struct, frozen=True):
    """One call: ids that are new in its prompt, ids sampled; `extends` is the index of the call that it goes on from."""

    new: tuple[int, ...]
    sampled: tuple[int, ...]
    extends: int = -1
    prefix_break: PrefixBreak = ""
    version: int = 0


class Judged(msgspec.Struct, frozen=True):
    """A rollout's reward, and what its calls earned besides."""

    reward: float
    calls: tuple[CallReward, ...] = ()


Ending = float | CauseClass | Judged
Script = Callable[[RolloutSpec], tuple[list[Turn], Ending]]


def by_name(spec: RolloutSpec) -> tuple[list[Turn], Ending]:
    """Two calls of one conversation with ids drawn from the rollout's id; every other member of a group succeeds."""
    draw = random.Random(spec.rollout_id)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(draw.randrange(5, VOCABULARY) for _ in range(count))

    turns = [
        Turn(ids(6), ids(4), prefix_break="first", version=spec.step),
        Turn(ids(3), ids(3), extends=0, version=spec.step),
    ]
    return turns, float(int(spec.rollout_id[-2:]) % 2)


def write_attempt(store: Store, attempt: Attempt, turns: Sequence[Turn], ending: Ending, *, requeue: bool = False) -> None:
    """Record an attempt's calls, each delivered, and close it."""
    pending: list[Future] = []
    lengths: list[int] = []
    for index, turn in enumerate(turns):
        before = lengths[turn.extends] if turn.extends >= 0 else 0
        lengths.append(before + len(turn.new) + len(turn.sampled))
        name = f"{attempt.rollout_id}/{attempt.attempt}"
        call = Call(
            call_id=f"{name}/{index}",
            rollout_id=attempt.rollout_id,
            attempt=attempt.attempt,
            index=index,
            digest=f"{name}/{index}",
            prompt_tokens=before + len(turn.new),
            sampled_tokens=len(turn.sampled),
            finish_reason="stop",
            times=CallTimes(received=1.0),
            sampling=Sampling(),
            parent_call_id=f"{name}/{turn.extends}" if turn.extends >= 0 else "",
            prefix_break=turn.prefix_break,
            versions=(VersionSpan(start=0, policy_version=turn.version),),
        )
        logprobs = np.array([-5.0 - 0.01 * (token % 100) for token in turn.sampled], np.float32)
        payload = CallPayload(
            prompt_delta=np.array(turn.new, np.int32), sampled_ids=np.array(turn.sampled, np.int32), logprobs=logprobs
        )
        pending += [store.record_call(call, payload), store.mark_delivered(call.call_id)]
    for write in pending:
        write.result()
    done = msgspec.structs.replace(attempt, finished=attempt.started + 1.0)
    if isinstance(ending, CauseClass):
        cause = Cause(cause=ending, phase="boot", message="made up", next_step="none")
        done = msgspec.structs.replace(done, cause=cause)
    else:
        judged = ending if isinstance(ending, Judged) else Judged(ending)
        done = msgspec.structs.replace(done, result=VerifierResult(reward=judged.reward, call_rewards=judged.calls))
    store.finish(AttemptOutcome(attempt=done, requeue=requeue)).result()


def play(store: Store, script: Script, limit: int = 1000) -> int:
    """Claim what is queuing and play it to its end, in order. Returns how many rollouts that were."""
    claimed = store.claim("controller/host-0", limit).result()
    for attempt in claimed:
        turns, ending = script(store.rollout(attempt.rollout_id).spec)
        write_attempt(store, attempt, turns, ending)
    return len(claimed)


@contextmanager
def playing(store_directory: Path, script: Script = by_name) -> Iterator[None]:
    """A controller that plays every rollout of a store, on a thread with a store client of its own."""
    stop = threading.Event()
    failures: list[Exception] = []

    def work() -> None:
        with open_store(store_directory, instance="controller") as store:
            try:
                while not stop.is_set():
                    if not play(store, script, limit=4):
                        stop.wait(0.01)
            except Exception as error:
                failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not failures


@contextmanager
def gateway_on_thread(directory: Path, engine_url: str, renderer: Renderer) -> Iterator[str]:
    """A real gateway with an event loop of its own; yields its URL."""
    listening: Future[int] = Future()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        engine = connect("embedded", engine_url)
        with open_store(directory, instance="gateway") as store:
            async with serving(
                GatewayConfig(drain_limit=5.0), Parts(store=store, engines=[engine], renderer=renderer, secret=SECRET)
            ) as port:
                listening.set_result(port)
                await stop.wait()
        await engine.close()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.result(30)}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


class World(msgspec.Struct, frozen=True):
    """What every test of the room shares: two sets of weights of one architecture, a running engine, a running gateway."""

    model: Path
    other: Path
    engine_url: str
    gateway_url: str

    def control(self) -> GatewayControl:
        """The gateway's control routes."""
        return GatewayControl(self.gateway_url, control_key(SECRET), patience=0.5)


def write_services(world: World, layout: Layout) -> None:
    """What `whippletree train` leaves in a run directory for the learner, beside the configuration."""
    layout.secret.write_text(SECRET.hex(), encoding="ascii")
    layout.write_services(
        Services(
            gateway_url=world.gateway_url,
            engine_url=world.engine_url,
            model_directory=str(world.model),
            isolation="none: nothing runs",
            started=1.0,
        )
    )


@contextmanager
def opened_run(
    world: World,
    directory: Path,
    config: RunConfig,
    *,
    engine: Engine | None = None,
    heldout: Sequence[Heldout] = (),
    taught: Callable[[Store], Teacher] | None = None,
) -> Iterator[Run]:
    """A run as the learner process opens it, over whatever its directory and store hold already."""
    store = open_store(directory / "store", instance="learner")
    fleet = Fleet(world.control(), [engine or connect("embedded", world.engine_url)], limit=60.0, patience=1.0)
    teacher = taught(store) if taught else None
    try:
        yield Run(
            config,
            directory,
            store=store,
            learner=Learner(world.model, config.learner, temperature=config.sampling.temperature),
            fleet=fleet,
            sources=[SOURCE],
            heldout=heldout,
            model_directory=world.model,
            weights_directory=directory / "weights",
            teacher=teacher,
        )
    finally:
        if teacher is not None:
            teacher.close()
        fleet.close()
        store.close()
