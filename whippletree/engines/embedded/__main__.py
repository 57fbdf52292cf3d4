"""`python -m whippletree.engines.embedded --model DIR`: the embedded engine as a process of its own.

Prints one line when it is ready. SIGTERM and SIGINT abort what is in flight and end it with status 0.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from whippletree.engines.embedded.config import EmbeddedConfig
from whippletree.engines.embedded.server import EmbeddedServer
from whippletree.engines.process import read_command, report, serve


def main(argv: Sequence[str] | None = None) -> int:
    """Run the engine until it is told to end. Returns the exit status."""
    given = sys.argv[1:] if argv is None else argv
    command = read_command(EmbeddedConfig, given, module="whippletree.engines.embedded", required=("model",))
    return report(lambda: run(command.config, command.ready_file, parent=command.parent))


def run(config: EmbeddedConfig, ready_file: Path | None = None, *, parent: int = 0) -> None:
    """Serve until SIGTERM, SIGINT or the end of process `parent` (0: none). Raises ConfigurationError or EngineError."""
    line = f"embedded engine serves {config.model}"
    serve(lambda: EmbeddedServer(config), config, line, ready_file, parent=parent)


if __name__ == "__main__":
    sys.exit(main())
