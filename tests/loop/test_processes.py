"""whippletree/loop/processes.py: which processes a run has, and where."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from recorded_run import new_run

from whippletree.engines.config import EmbeddedConfig, EngineConfig, HostedConfig, ScriptedConfig, SglangConfig, VllmConfig
from whippletree.errors import ProcessError
from whippletree.gateway.config import GatewayConfig
from whippletree.learner.config import LearnerConfig, RanksConfig
from whippletree.loop import processes
from whippletree.loop.config import RunConfig, SourceSection
from whippletree.loop.layout import Layout
from whippletree.loop.processes import learner_child, moved_services, new_services, sampling_children
from whippletree.loop.sources import TrailTasks

URL = "http://10.0.0.7:8000"
HERE = VllmConfig(python="python", model="m")
ELSEWHERE = [VllmConfig(url=URL), SglangConfig(url=URL), ScriptedConfig(url=URL)]


def config(engine: EngineConfig, **parts) -> RunConfig:
    return RunConfig(sources=[SourceSection(name="s", tasks=TrailTasks())], engine=engine, **parts)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return new_run(tmp_path / "run")[1]


@pytest.mark.parametrize(
    "engine", [EmbeddedConfig(), HERE, *ELSEWHERE, HostedConfig(base_url=URL, model="m"), ScriptedConfig()]
)
def test_an_engine_is_started_where_nobody_else_runs_it(layout: Layout, engine: EngineConfig):
    names = [child.name for child in sampling_children(config(engine), layout)]
    started = ["engine"] if isinstance(engine, EmbeddedConfig) else ["vllm"] if engine == HERE else []
    assert names == [*started, "gateway", "controller"]


def test_what_is_started_stays_below_the_runs_directory(layout: Layout):
    run = config(EmbeddedConfig())
    for child in (*sampling_children(run, layout), learner_child(run, layout)):
        paths = [child.log_path, *([child.ready_file] if child.ready_file else [])]
        assert all(Path(path).is_relative_to(layout.directory) for path in paths)
        assert str(layout.directory) in child.argv


def test_several_ranks_are_started_by_torchrun(layout: Layout):
    one = learner_child(config(EmbeddedConfig()), layout)
    several = learner_child(config(EmbeddedConfig(), learner=LearnerConfig(ranks=RanksConfig(data=2))), layout)
    assert "torch.distributed.run" not in one.argv
    assert "torch.distributed.run" in several.argv and several.argv[-1] == one.argv[-1]


@pytest.mark.parametrize("engine", ELSEWHERE)
def test_an_engine_that_runs_elsewhere_keeps_its_address(engine: EngineConfig):
    run = config(engine)
    services = new_services(run, model_directory="/m", isolation="", started=1.0)
    assert (services.engine_url, services.engine_is_local) == (URL, False)
    assert moved_services(run, services).engine_url == URL


def test_no_port_of_a_run_is_given_to_whoever_asks_for_any():
    lowest, _ = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    if lowest < processes.PORTS.stop:
        pytest.skip(f"this machine gives ports from {lowest} on")
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as near:
        given = {server.getsockname()[1], near.getsockname()[1]}
    assert given.isdisjoint(processes.PORTS) and set(processes.free_ports(20)) < set(processes.PORTS)


def test_ports_are_free_and_different(monkeypatch: pytest.MonkeyPatch):
    found = processes.free_ports(20)
    assert len(set(found)) == 20
    monkeypatch.setattr(processes, "PORTS", found)
    monkeypatch.setattr(processes, "TRIES", len(found))
    with socket.create_server(("127.0.0.1", found[0])):
        assert set(processes.free_ports(10)) < set(found[1:])
        with pytest.raises(ProcessError, match="no 20 free ports among 20"):
            processes.free_ports(20)


def test_ports_are_free_and_new_after_a_move():
    run = config(EmbeddedConfig(), gateway=GatewayConfig(workers=2))
    services = new_services(run, model_directory="/m", isolation="", started=1.0)
    moved = moved_services(run, services)
    assert len(services.gateway_ports) == len(moved.gateway_ports) == 2
    assert services.engine_is_local and services.engine_url.startswith("http://127.0.0.1:")
    assert (moved.model_directory, moved.started) == ("/m", 1.0)
