"""One process of a run each: gateway, engine, controller, learner. They share the run directory and nothing else.

Invariants (tests/cli/test_services.py):
- a restarted engine serves the weights that were published last, under their version;
- each command writes its ready file only once it serves;
- all of them end when the run has ended: by themselves (ending.py), or where a supervisor started them, by its word.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import msgspec

from whippletree.cli.ending import end_with_run
from whippletree.configuration import load
from whippletree.errors import ConfigurationError
from whippletree.loop.config import RunConfig
from whippletree.loop.layout import Layout


def add_commands(commands: Any) -> None:
    """Register the commands of this module."""
    for name, text, run in (
        ("gateway", "serve the model boundary of a run", _gateway),
        ("engine", "serve the run's model", _engine),
        ("controller", "run the rollouts that are queuing", _controller),
        ("learner", "run the training loop", _learner),
    ):
        parser = commands.add_parser(name, help=text)
        parser.add_argument("--run-dir", type=Path, required=True, help="directory of a run that `whippletree train` made")
        parser.add_argument("--exit-with-parent", type=int, default=0, help=argparse.SUPPRESS)
        parser.add_argument("--supervised", action="store_true", help=argparse.SUPPRESS)
        parser.set_defaults(run=run)


def _begin(arguments: argparse.Namespace) -> tuple[RunConfig, Layout]:
    if arguments.exit_with_parent:
        from whippletree.control.lifeline import exit_with_parent

        exit_with_parent(arguments.exit_with_parent)
    layout = Layout(arguments.run_dir.resolve())
    config = load(RunConfig, layout.config)
    layout.ready(arguments.command).parent.mkdir(exist_ok=True)
    if arguments.command != "learner" and not arguments.supervised:
        end_with_run(layout.summary, arguments.command)
    return config, layout


def _port(url: str) -> int:
    return int(url.rsplit(":", 1)[1])


def _gateway(arguments: argparse.Namespace) -> int:
    from whippletree.gateway import workers
    from whippletree.gateway.keys import load_secret
    from whippletree.gateway.server import Parts, run
    from whippletree.loop.engine import connect_engine
    from whippletree.rendering import load_renderer, selfcheck
    from whippletree.store import open_store

    config, layout = _begin(arguments)
    services = layout.read_services()

    def parts(worker: int = 0) -> Parts:
        renderer = load_renderer(Path(services.model_directory), config.rendering)
        if worker == 0:
            for finding in selfcheck(renderer):
                print(f"rendering: {finding}", flush=True)
        return Parts(
            store=open_store(layout.store, config=config.store, instance=f"gateway-{worker}"),
            engines=[connect_engine(config.engine, services.engine_url)],
            renderer=renderer,
            secret=load_secret(layout.secret),
            probe=True,
            traces=config.traces,
        )

    ports = services.gateway_ports
    gateway = msgspec.structs.replace(config.gateway, port=_port(services.gateway_url), worker_ports=ports)
    if gateway.workers > 1:
        return workers.run(gateway, parts, ready_file=layout.ready("gateway"))
    run(gateway, parts, ready_file=layout.ready("gateway"))
    return 0


def _engine(arguments: argparse.Namespace) -> int:
    from whippletree.engines import scripted_server
    from whippletree.engines.config import EmbeddedConfig, ScriptedConfig

    config, layout = _begin(arguments)
    services = layout.read_services()
    if isinstance(config.engine, ScriptedConfig):
        scripted = msgspec.structs.replace(config.engine, port=_port(services.engine_url))
        scripted_server.run(scripted, layout.ready("engine"))
        return 0
    if not isinstance(config.engine, EmbeddedConfig):
        raise ConfigurationError(
            f"[engine] is {type(config.engine).__name__}", "this command serves the embedded engine; start others by their own"
        )
    from whippletree.engines.embedded.__main__ import run

    newest = layout.newest_weights()
    directory, version = newest if newest else (Path(services.model_directory), 0)
    engine = msgspec.structs.replace(
        config.engine,
        model=str(directory),
        policy_version=version,
        port=_port(services.engine_url),
        seed=config.run.seed,
    )
    run(engine, layout.ready("engine"))
    return 0


def _controller(arguments: argparse.Namespace) -> int:
    from whippletree.control.config import HarnessBinding
    from whippletree.control.process import run
    from whippletree.control.spec import ControllerSpec

    config, layout = _begin(arguments)
    services = layout.read_services()
    spec = ControllerSpec(
        directory=str(layout.directory),
        store=str(layout.store),
        secret=str(layout.secret),
        gateway_url=services.gateway_url,
        gateway_ports=services.gateway_ports,
        model=config.gateway.model,
        ready_file=str(layout.ready("controller")),
        harnesses=tuple(
            HarnessBinding(
                harness=source.harness.name,
                source=source.name,
                settings=source.harness.settings,
                variants=source.harness.variants,
                launch=source.harness.launch,
                reward=source.reward,
            )
            for source in config.sources
        ),
        sandbox=config.sandbox,
        control=config.control,
    )
    asyncio.run(_until_signal(lambda stop: run(spec, stop)))
    return 0


async def _until_signal(start: Any) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await start(stop)


def _learner(arguments: argparse.Namespace) -> int:
    from whippletree.control.lifeline import exit_with_parent
    from whippletree.loop.learning import learn

    config, layout = _begin(arguments)
    if config.learner.ranks.world > 1:  # torchrun puts each rank into a session of its own
        exit_with_parent(os.getppid())
    learn(config, layout)
    return 0
