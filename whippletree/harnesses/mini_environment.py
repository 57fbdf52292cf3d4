"""Mini's environment class for pool hosts: commands run in the attempt's sandbox, and look to mini as if they ran locally.

Results equal those of mini's LocalEnvironment (tests/harnesses/test_mini_environment.py): return code (negative for a signal),
merged output, universal newlines, the exception of a time limit, the mark of a submission. But where a command has exited and
left a process in the background, mini's own waits for that until the time limit; this returns. Imports mini.
"""

from __future__ import annotations

import os
import platform
import subprocess
from typing import Any

from minisweagent.environments.local import LocalEnvironment
from minisweagent.utils.serialize import recursive_merge

from whippletree import sandboxes
from whippletree.protocols import SandboxHandle


class SandboxEnvironment(LocalEnvironment):  # type: ignore[misc]  # mini is not typed here
    """LocalEnvironment with its commands in a sandbox. Raises SandboxError when that is gone."""

    def __init__(self, *, sandbox: SandboxHandle, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._sandbox = sandbox
        self._exec = sandboxes.attach(sandbox)

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        """Run the action's command by the shell. Raises mini's Submitted when it marks the task as done."""
        limit = timeout or self.config.timeout
        try:
            argv = _argv(action.get("command", ""))
        except (TypeError, ValueError) as error:
            return _failed(error, "")
        done = self._exec.exec(argv, timeout=limit, environment=self.config.env, cwd=cwd or self.config.cwd)
        text = done.output.replace("\r\n", "\n").replace("\r", "\n")
        if done.timed_out:
            output = _failed(subprocess.TimeoutExpired(action.get("command", ""), limit), text)
        else:
            output = {"output": text, "returncode": done.exit_code, "exception_info": ""}
        self._check_finished(output)
        return output

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        """Names for mini's templates: as LocalEnvironment's, with the sandbox's environment and host name."""
        machine = platform.uname()._asdict() | {"node": "sandbox"}
        merged: dict[str, Any] = recursive_merge(self.config.model_dump(), machine, self._sandbox.environment, kwargs)
        return merged


def _argv(command: Any) -> tuple[str, ...]:
    """The shell's command line, as `subprocess` with shell=True makes it. Raises what that raises for anything else."""
    words = [command] if isinstance(command, str) else list(command)
    for word in words:
        if b"\0" in os.fsencode(word):
            raise ValueError("embedded null byte")
    return ("/bin/sh", "-c", *map(os.fsdecode, words))


def _failed(error: Exception, text: str) -> dict[str, Any]:
    return {
        "output": text,
        "returncode": -1,
        "exception_info": f"An error occurred while executing the command: {error}",
        "extra": {"exception_type": type(error).__name__, "exception": str(error)},
    }
