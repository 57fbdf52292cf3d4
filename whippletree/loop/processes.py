"""The processes of a run on this machine: their command lines and addresses, for whoever supervises them.

Invariants (tests/loop/test_processes.py):
- an engine that somebody else runs, or that lives in the gateway, is not started;
- what is started has its log and its ready file below the run's directory;
- the ports of a run are different ones, and the system gives them to nobody else before its processes bind them.
"""

from __future__ import annotations

import random
import socket
import sys
from contextlib import ExitStack, suppress

import msgspec

from whippletree.control.supervisor import ChildSpec
from whippletree.engines.config import EmbeddedConfig, EngineConfig, ScriptedConfig, SglangConfig, VllmConfig
from whippletree.errors import ProcessError
from whippletree.learner.config import RanksConfig
from whippletree.loop.config import RunConfig
from whippletree.loop.layout import Layout, Services

TRIES = 1000  # ports that are looked at before it is said that none is free
PORTS = range(10_000, 32_768)
"""Below those that systems give by themselves, to whoever asks for any port and to the near end of a connection: from 32768 on
with Linux, from 49152 on elsewhere. Processes bind theirs much later than these are chosen, after a model is loaded."""


def free_ports(count: int) -> tuple[int, ...]:
    """As many TCP ports of loopback, all different, that are free now. Raises ProcessError where none is found."""
    found: list[int] = []
    with ExitStack() as held:
        for port in random.SystemRandom().sample(PORTS, TRIES):
            if len(found) == count:
                break
            probe = held.enter_context(socket.socket())
            with suppress(OSError):
                probe.bind(("127.0.0.1", port))
                found.append(port)
    if len(found) < count:
        raise ProcessError(f"no {count} free ports among {TRIES} that were tried", "look what listens there: `ss -tln`")
    return tuple(found)


def given_url(engine: EngineConfig) -> str:
    """Where somebody else runs the engine; "" where nobody does."""
    return engine.url if isinstance(engine, VllmConfig | SglangConfig | ScriptedConfig) else ""


def new_services(config: RunConfig, *, model_directory: str, isolation: str, started: float) -> Services:
    """Addresses for a run: free ports, but for an engine that runs already."""
    given = given_url(config.engine)
    gateway_url, engine_url, workers = _addresses(config)
    return Services(
        gateway_url=gateway_url,
        engine_url=given or engine_url,
        engine_is_local=not given,
        gateway_ports=workers,
        model_directory=model_directory,
        isolation=isolation,
        started=started,
    )


def moved_services(config: RunConfig, services: Services) -> Services:
    """The same for a run that goes on: the old ports may be taken."""
    gateway_url, engine_url, workers = _addresses(config)
    return msgspec.structs.replace(
        services,
        gateway_url=gateway_url,
        engine_url=engine_url if services.engine_is_local else services.engine_url,
        gateway_ports=workers,
    )


def _addresses(config: RunConfig) -> tuple[str, str, tuple[int, ...]]:
    """URLs for a gateway and an engine, and a port of its own for each gateway worker, where there are several."""
    count = config.gateway.workers
    gateway, engine, *workers = free_ports(2 + (count if count > 1 else 0))
    return f"http://127.0.0.1:{gateway}", f"http://127.0.0.1:{engine}", tuple(workers)


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
