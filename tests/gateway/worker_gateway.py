"""A gateway with several workers as a process: `python worker_gateway.py RUN_DIR MODEL_DIR WORKERS SECONDS_PER_TOKEN`."""

from __future__ import annotations

import sys
from pathlib import Path

from whippletree.engines.scripted import Faults, ScriptedEngine
from whippletree.gateway import workers
from whippletree.gateway.config import GatewayConfig
from whippletree.gateway.keys import load_secret
from whippletree.gateway.server import Parts
from whippletree.rendering import RenderingConfig, load_renderer
from whippletree.store import open_store


def main() -> None:
    """Serve until SIGTERM."""
    directory, model, count, pace = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])

    def parts(number: int) -> Parts:
        renderer = load_renderer(model, RenderingConfig(template="tiny"))
        answer = [*renderer.codec.encode("the next file is birch"), *renderer.stop_token_ids]
        engine = ScriptedEngine(lambda prompt: answer, context=4096, vocabulary=4096, faults=Faults(token_seconds=pace))
        return Parts(
            store=open_store(directory / "store", instance=f"gateway-{number}"),
            engines=[engine],
            renderer=renderer,
            secret=load_secret(directory / "secret"),
        )

    sys.exit(workers.run(GatewayConfig(workers=count), parts, ready_file=directory / "ready.json"))


if __name__ == "__main__":
    main()
