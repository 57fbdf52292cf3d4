"""The processes of a run on this machine: their command lines and addresses, for whoever supervises them.

Invariants (tests/loop/test_processes.py):
- an engine that somebody else runs, or that lives in the gateway, is not started;
- what is started has its log and its ready file below the run's directory.
"""

from __future__ import annotations

import socket
import sys

import msgspec

from whippletree.control.supervisor import ChildSpec
from whippletree.engines.config import EmbeddedConfig, EngineConfig, ScriptedConfig, SglangConfig, VllmConfig
from whippletree.learner.config import RanksConfig
from whippletree.loop.config import RunConfig
from whippletree.loop.layout import Layout, Services


def free_port() -> int:
    """A TCP port of loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def given_url(engine: EngineConfig) -> str:
    """Where somebody else runs the engine; "" where nobody does."""
    return engine.url if isinstance(engine, VllmConfig | SglangConfig | ScriptedConfig) else ""


def new_services(config: RunConfig, *, model_directory: str, isolation: str, started: float) -> Services:
    """Addresses for a run: free ports, but for an engine that runs already."""
    given = given_url(config.engine)
    return Services(
        gateway_url=f"http://127.0.0.1:{free_port()}",
        engine_url=given or f"http://127.0.0.1:{free_port()}",
        engine_is_local=not given,
        gateway_ports=worker_ports(config),
        model_directory=model_directory,
        isolation=isolation,
        started=started,
    )


def moved_services(config: RunConfig, services: Services) -> Services:
    """The same for a run that goes on: the old ports may be taken."""
    return msgspec.structs.replace(
        services,
        gateway_url=f"http://127.0.0.1:{free_port()}",
        engine_url=services.engine_url if not services.engine_is_local else f"http://127.0.0.1:{free_port()}",
        gateway_ports=worker_ports(config),
    )


def worker_ports(config: RunConfig) -> tuple[int, ...]:
    """One port of its own for each gateway worker, where there are several."""
    return tuple(free_port() for _ in range(config.gateway.workers)) if config.gateway.workers > 1 else ()


def sampling_children(config: RunConfig, layout: Layout) -> list[ChildSpec]:
    """What rollouts need, in the order in which it starts: the engine, unless it runs already, the gateway, the controller."""
    found = []
    if isinstance(config.engine, EmbeddedConfig):
        found.append(child(layout, "engine"))
    elif isinstance(config.engine, VllmConfig) and not config.engine.url:
        found.append(_vllm(config.engine, layout))
    return [*found, child(layout, "gateway"), child(layout, "controller")]


def learner_child(config: RunConfig, layout: Layout) -> ChildSpec:
    """The learner: one process, or torchrun with one for each rank."""
    learner = child(layout, "learner", ready=False, final_codes=(0, 2))
    if config.learner.ranks.world > 1:
        return msgspec.structs.replace(learner, argv=(sys.executable, *torchrun(config.learner.ranks), *learner.argv[1:]))
    return learner


def child(layout: Layout, name: str, *, ready: bool = True, final_codes: tuple[int, ...] = ()) -> ChildSpec:
    """The process `whippletree NAME --run-dir DIR`, which leaves its end to the supervisor."""
    return ChildSpec(
        name=name,
        argv=(sys.executable, "-m", "whippletree.cli", name, "--run-dir", str(layout.directory), "--supervised"),
        log_path=str(layout.log(name)),
        ready_file=str(layout.ready(name)) if ready else "",
        ready_seconds=300.0,
        stop_seconds=30.0,
        final_codes=final_codes,
    )


def torchrun(ranks: RanksConfig) -> tuple[str, ...]:
    """What stands between the interpreter and `-m whippletree.cli learner` to start one process per rank on this machine."""
    return ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks.world}")


def _vllm(engine: VllmConfig, layout: Layout) -> ChildSpec:
    from whippletree.engines.vllm import vllm_command

    services = layout.read_services()
    port = int(services.engine_url.rsplit(":", 1)[1])
    command = vllm_command(msgspec.structs.replace(engine, model=services.model_directory, port=port))
    return ChildSpec(
        name="vllm", argv=tuple(command.argv), environment=dict(command.environment), log_path=str(layout.log("vllm"))
    )
