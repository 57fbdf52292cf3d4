"""The gateway of a benchmark, a process of its own: `python -m control_parts.gateway RUN MODEL READY`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from whippletree.engines.scripted import ScriptedEngine
from whippletree.gateway.config import GatewayConfig
from whippletree.gateway.keys import load_secret
from whippletree.gateway.server import Parts, run
from whippletree.protocols import Renderer
from whippletree.rendering import RenderingConfig, load_renderer
from whippletree.store import open_store


def serve(directory: Path, model: Path, ready: Path, template: str, engine: Callable[[Renderer], ScriptedEngine]) -> None:
    """Serve a run directory until SIGTERM; `ready` is written once the port is open."""

    def parts() -> Parts:
        renderer = load_renderer(model, RenderingConfig(template=template))
        return Parts(
            store=open_store(directory / "store", instance="gateway"),
            engines=[engine(renderer)],
            renderer=renderer,
            secret=load_secret(directory / "secret"),
        )

    run(GatewayConfig(port=0), parts, ready_file=ready)


def answers_done(renderer: Renderer) -> ScriptedEngine:
    """An engine that says "done" to everything."""
    answer = [*renderer.codec.encode("done"), *renderer.stop_token_ids[:1]]  # type: ignore[attr-defined]
    return ScriptedEngine(lambda prompt: answer, context=8192, vocabulary=8192)


if __name__ == "__main__":
    serve(*map(Path, sys.argv[1:]), template="tiny", engine=answers_done)
