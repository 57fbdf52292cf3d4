"""whippletree/loop/fleet.py: a real engine process, a real gateway"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from engine_parts import embedded_process
from loop_parts import SECRET, World

from whippletree.engines.connect import connect
from whippletree.engines.scripted import Faults, ScriptedEngine
from whippletree.errors import EngineError, EngineUnavailable, RequestError, WeightMismatch
from whippletree.gateway.client import GatewayControl
from whippletree.gateway.keys import control_key
from whippletree.gateway.wire import HoldReport
from whippletree.learner.model import load_model
from whippletree.learner.scoring import score
from whippletree.loop.fleet import Fleet
from whippletree.loop.processes import free_ports
from whippletree.types import WeightUpdate

PROMPT = [7, 30, 200, 31, 8, 90, 301, 12]


@contextmanager
def fleet_of(
    world: World, *urls: str, limit: float = 60.0, patience: float = 20.0, gateway: GatewayControl | None = None
) -> Iterator[Fleet]:
    engines = [connect("embedded", url) for url in urls or (world.engine_url,)]
    fleet = Fleet(gateway or world.control(), engines, limit=limit, patience=patience)
    try:
        yield fleet
    finally:
        fleet.close()


def update(directory: Path, version: int) -> WeightUpdate:
    return WeightUpdate(directory=str(directory), policy_version=version)


def expected(directory: Path) -> Sequence[float]:
    return score(load_model(directory), PROMPT).tolist()


def test_a_replica_that_starts_late_is_waited_for_and_all_serve_the_version(world: World, tmp_path: Path):
    (port,) = free_ports(1)
    with (
        fleet_of(world, world.engine_url, f"http://127.0.0.1:{port}", patience=60.0) as fleet,
        ThreadPoolExecutor(1) as pool,
    ):
        published = pool.submit(fleet.publish, update(world.other, 41))
        with embedded_process(str(world.model), tmp_path, "--port", str(port)):
            published.result(60)
            assert [(status.policy_version, status.paused) for status in fleet.statuses()] == [(41, False), (41, False)]
            assert fleet.check(PROMPT, expected(world.other), tolerance=1e-3) < 1e-4
            asyncio.run(change(world.engine_url, world.model, 41))  # one of two goes wrong
            with pytest.raises(WeightMismatch, match="does not serve the learner's weights"):
                fleet.check(PROMPT, expected(world.other), tolerance=1e-3)


async def change(url: str, directory: Path, version: int) -> None:
    """Behind the fleet's back."""
    engine = connect("embedded", url)
    await engine.update_weights(update(directory, version))
    await engine.close()


def test_whoever_is_missing_is_named(world: World):
    nobody = f"http://127.0.0.1:{free_ports(1)[0]}"
    with fleet_of(world) as fleet:
        assert fleet.missing() == ""
    with fleet_of(world, world.engine_url, nobody) as fleet:
        assert fleet.missing() == ""  # the other replica answers
    with fleet_of(world, nobody) as fleet:
        assert fleet.missing().startswith("no engine answers: ")
    with fleet_of(world, gateway=GatewayControl(nobody, control_key(SECRET), patience=0.0)) as fleet:
        assert fleet.missing().startswith(f"the gateway at {nobody.removeprefix('http://')} is not there")


def test_an_engine_that_never_answers_is_given_up(world: World):
    with fleet_of(world, f"http://127.0.0.1:{free_ports(1)[0]}", patience=0.3) as fleet, pytest.raises(EngineUnavailable):
        fleet.publish(update(world.model, 1))


def test_a_verb_that_takes_longer_than_the_limit_ends_with_an_error_that_says_so(world: World):
    with (
        fleet_of(world, f"http://127.0.0.1:{free_ports(1)[0]}", limit=0.3) as fleet,
        pytest.raises(EngineUnavailable, match=r"within 0\.3 s"),
    ):
        fleet.publish(update(world.model, 1))


def test_weights_that_an_engine_refuses_raise_and_leave_it_serving_the_old_ones(world: World, tmp_path: Path):
    with fleet_of(world) as fleet:
        fleet.publish(update(world.model, 3))
        with pytest.raises(EngineError, match=str(tmp_path)):
            fleet.publish(update(tmp_path, 4))
        assert [(status.policy_version, status.paused) for status in fleet.statuses()] == [(3, False)]
        assert fleet.check(PROMPT, expected(world.model), tolerance=1e-3) < 1e-4


def test_held_holds_the_gateway_and_releases_it(world: World):
    with fleet_of(world) as fleet:
        with fleet.held():
            assert fleet.gateway.status().held
        assert not fleet.gateway.status().held


def test_held_releases_when_the_update_raises(world: World):
    with fleet_of(world) as fleet:
        with pytest.raises(RuntimeError, match="the update"), fleet.held():
            raise RuntimeError("the update")
        assert not fleet.gateway.status().held


class Deaf(GatewayControl):
    """A gateway whose answer to a hold is lost, after it was done."""

    def hold(self, limit: float | None = None) -> HoldReport:
        super().hold(limit)
        raise RequestError("no answer to POST /control/hold", status=503)


def test_held_releases_when_the_hold_itself_fails(world: World):
    with fleet_of(world, gateway=Deaf(world.gateway_url, control_key(SECRET))) as fleet:
        with pytest.raises(RequestError, match="no answer"), fleet.held():
            raise AssertionError("nothing may run without the hold")
        assert not fleet.gateway.status().held


def test_closing_ends_the_thread_and_its_event_loop(world: World):
    with fleet_of(world) as fleet:
        fleet.statuses()
        assert "fleet" in [thread.name for thread in threading.enumerate()]
    assert "fleet" not in [thread.name for thread in threading.enumerate()]
    assert fleet._loop.is_closed()


def test_engines_are_graded_by_measurement(world: World):
    with fleet_of(world) as fleet:
        assert [(report.grade, report.logprobs) for report in fleet.probe(0.7)] == [("tokens", "processed")]


def test_an_engine_without_logprobs_is_not_trained_on(world: World):
    fleet = Fleet(world.control(), [ScriptedEngine(faults=Faults(no_logprobs=True))])
    try:
        with pytest.raises(EngineError, match="can be evaluated but not trained on"):
            fleet.probe(1.0)
    finally:
        fleet.close()
