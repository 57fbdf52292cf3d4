"""Acting by hand in a sandbox: a shell command, or commands typed one by one.

Each line is a command of its own in the sandbox, which every backend can run; the working directory and exported variables
carry over. There is no terminal inside: editors, pagers and prompts do not work, and output comes when the command has ended.

Invariants (tests/cli/test_cli_tasks.py): what is typed runs inside the sandbox, as the step's user; the end of the input, or
`exit`, ends the shell and not the task.
"""

from __future__ import annotations

import asyncio
import secrets
import sys

from whippletree.protocols import Sandbox
from whippletree.tasks.task import Step, Task
from whippletree.ui.conversation import printable

COMMAND_SECONDS = 3_600.0
NO_GATEWAY = ("127.0.0.1", 9)  # sandboxes are made without a network here, so this is never used

# $1: file that carries variables over, $2: the line. The file's last line changes the directory.
_LINE = """[ -f "$1" ] && . "$1"
eval "$2"
code=$?
{ export -p; printf 'cd "%s"\\n' "$PWD"; } > "$1"
exit $code"""


async def command(text: str, task: Task, step: Step, sandbox: Sandbox, *, quiet: bool = False) -> None:
    """Run one shell command in the working directory and print what it says. Raises SandboxError."""
    argv = ["/bin/sh", "-c", text]
    done = await sandbox.exec(argv, timeout=step.agent_timeout, environment=sandbox.proxy_environment, user=step.agent_user)
    if not quiet:
        print(printable(done.output), end="")
        if done.timed_out or done.exit_code:
            print(f"[status {done.exit_code}]")


async def shell(task: Task, step: Step, sandbox: Sandbox) -> None:
    """Run what is typed until `exit` or the end of the input. Raises SandboxError."""
    print(f"--- {task.task_id}{f', step {step.name}' if step.name else ''} ---")
    print(f"{printable(step.instruction)}\n--- `exit` or Ctrl-D ends it; then the verifier runs ---")
    await prompt(sandbox, task.workdir, user=step.agent_user)


async def prompt(sandbox: Sandbox, workdir: str, *, user: str = "") -> None:
    """Ask for commands and run them, until `exit` or the end of the input. Raises SandboxError."""
    handle = sandbox.handle
    state = f"{handle.environment.get('WHIPPLETREE_ROOT', '') if handle else ''}/tmp/shell-{secrets.token_hex(6)}"
    while True:
        print(f"{workdir} $ ", end="", flush=True)
        line = await asyncio.to_thread(sys.stdin.readline)
        if not line or line.strip() == "exit":
            print()
            return
        argv = ["/bin/sh", "-c", _LINE, "shell", state, line.rstrip("\n")]
        proxy = sandbox.proxy_environment
        done = await sandbox.exec(argv, timeout=COMMAND_SECONDS, environment=proxy, user=user)
        print(printable(done.output), end="")
        if done.exit_code:
            print(f"[status {done.exit_code}]")
