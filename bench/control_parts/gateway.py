"""The gateway of the benchmark, a process of its own: `python -m control_parts.gateway RUN MODEL READY`."""

from __future__ import annotations

import sys
from pathlib import Path

from whippletree.engines.scripted import ScriptedEngine
from whippletree.gateway.config import GatewayConfig
from whippletree.gateway.keys import load_secret
from whippletree.gateway.server import Parts, run
from whippletree.rendering import RenderingConfig, load_renderer
from whippletree.store import open_store


def main() -> None:
    """Serve until SIGTERM."""
    directory, model, ready = map(Path, sys.argv[1:])

    def parts() -> Parts:
        renderer = load_renderer(model, RenderingConfig(template="tiny"))
        answer = [*renderer.codec.encode("done"), *renderer.stop_token_ids[:1]]
        return Parts(
            store=open_store(directory / "store", instance="gateway"),
            engines=[ScriptedEngine(lambda prompt: answer, context=8192, vocabulary=8192)],
            renderer=renderer,
            secret=load_secret(directory / "secret"),
        )

    run(GatewayConfig(port=0), parts, ready_file=ready)


if __name__ == "__main__":
    main()
