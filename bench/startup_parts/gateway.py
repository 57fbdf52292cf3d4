"""The gateway of one harness's benchmark: `python -m startup_parts.gateway RUN MODEL READY HARNESS`, until SIGTERM."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from control_parts.gateway import serve

from startup_parts.model import engine
from whippletree.harnesses import load_harness


def main() -> None:
    """Serve one harness."""
    directory, model, ready = map(Path, sys.argv[1:4])
    facts = load_harness(sys.argv[4]).facts
    serve(directory, model, ready, template=str(model / "template.jinja"), engine=functools.partial(engine, facts))


if __name__ == "__main__":
    main()
