"""Tasks to judge, and real sandboxes to judge them in."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from whippletree.protocols import Sandbox, SandboxSpec
from whippletree.sandboxes import SandboxConfig, create, probe
from whippletree.tasks import Task, load_task

NO_GATEWAY = ("127.0.0.1", 9)
MakeSandbox = Callable[[SandboxSpec], Sandbox]


@pytest.fixture(params=["bubblewrap", "process"])
def make_sandbox(request) -> Iterator[MakeSandbox]:
    """Makes sandboxes of each backend that works here; the process backend works everywhere."""
    kind = request.param
    if kind == "bubblewrap" and not probe().works:
        pytest.skip("bubblewrap does not work on this machine")
    with tempfile.TemporaryDirectory(prefix="wt-", ignore_cleanup_errors=True) as root:  # short: socket paths have a limit
        config = SandboxConfig(kind=kind, root=root)
        yield lambda spec: create(config, spec, gateway=NO_GATEWAY)


@pytest.fixture
def make_task(tmp_path) -> Callable[..., Task]:
    """Writes a task with this tests/test.sh, and an oracle that writes "yes" into answer.txt of the working directory."""

    def write(test: str, *, solve: str = "#!/bin/sh\necho yes > answer.txt\n", toml: str = "", **files: str) -> Task:
        directory = tmp_path / "a-task"
        texts = {
            "task.toml": toml,
            "instruction.md": "write yes",
            "environment/Dockerfile": "FROM x\nWORKDIR /app\nENV COLOUR=red\nCOPY files/ /app/\n",
            "environment/files/given": "given",
            "tests/test.sh": test,
            "tests/helper": "helper of the tests",
            "solution/solve.sh": solve,
            **files,
        }
        for name, text in texts.items():
            if text is not None:
                (directory / name).parent.mkdir(parents=True, exist_ok=True)
                (directory / name).write_text(text)
        return load_task(Path(directory))

    return write
