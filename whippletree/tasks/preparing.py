"""What is done in a sandbox before an agent: the files and the script of a step, and the healthcheck.

Invariants (tests/tasks/test_preparing.py):
- an agent with a user of its own can write where it works, but for an image, whose modes are left as they are;
- a step's files replace those of the same name, and its setup.sh is run and not left behind;
- a healthcheck ends: with a success, or after its retries, each of which is held to its own limit.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from pathlib import Path

from whippletree.errors import SandboxError, TaskError
from whippletree.protocols import Sandbox
from whippletree.tasks.task import Healthcheck, Step, Task

TAIL = 1_000  # characters of output in a message

# $1: the working directory, $2: where the step's files were put
_LAY = """root=${PWD%/}; files="$root/$2"
cd "$root/$1" || exit 125
if [ -f "$files/setup.sh" ]; then mv "$files/setup.sh" "$files.sh" && chmod 755 "$files.sh" || exit 125; fi
cp -a "$files/." . && rm -rf "$files\""""
# An agent with a user of its own is to write the harness's files, and to work in the working directory, unless that is an
# image's, whose owners and modes are meant.
_OPEN = "mkdir -p logs/agent && chmod -R a+rwX logs/agent"
_OPEN_ALL = f'{_OPEN} && chmod -R a+rwX -- "$1"'
_SET_UP = """root=${PWD%/}; script="$root/$2.sh"; cd "$root/$1" || exit 125; exec "$script\""""


async def prepare_step(task: Task, step: Step, sandbox: Sandbox, *, timeout: float) -> None:
    """Lay the step's files into the working directory and run its setup.sh as the agent's user, within `timeout` seconds each.

    Raises TaskError when the script fails, SandboxError when the sandbox does.
    """
    place = f"tmp/step-{secrets.token_hex(8)}"
    arguments = ["prepare", task.workdir.lstrip("/"), place]
    if step.files_dir:
        await sandbox.put(Path(step.files_dir), f"/{place}")
        await _own(sandbox, _LAY, arguments, timeout)
    if step.agent_user:
        await _own(sandbox, _OPEN if task.place.rootfs else _OPEN_ALL, arguments, timeout)
    script = Path(step.files_dir, "setup.sh")
    if not step.files_dir or not script.is_file():
        return
    done = await sandbox.exec(
        ["/bin/sh", "-c", _SET_UP, *arguments],
        timeout=timeout,
        environment=sandbox.proxy_environment,
        cwd="/",
        user=step.agent_user,
    )
    await sandbox.exec(["/bin/rm", "-f", f"{place}.sh"], timeout=timeout, cwd="/")
    if done.timed_out or done.exit_code:
        how = f"ran past {timeout:g} s" if done.timed_out else f"ended with {done.exit_code}"
        raise TaskError(f"{script} {how}: {done.output[-TAIL:].strip()}", "run it by hand: `whippletree tasks run --shell`")


async def _own(sandbox: Sandbox, script: str, arguments: list[str], timeout: float) -> None:
    """Run a script of ours as the sandbox's own user. Raises SandboxError."""
    done = await sandbox.exec(["/bin/sh", "-c", script, *arguments], timeout=timeout, cwd="/")
    if done.exit_code or done.timed_out:
        raise SandboxError(f"the step cannot be prepared: {done.output[-TAIL:].strip()}", "is there space in the sandbox?")


async def await_health(check: Healthcheck, sandbox: Sandbox) -> None:
    """Return once the command succeeds. Raises TaskError after its retries, SandboxError when the sandbox fails.

    A failure within the start period does not count; after it, `retries` failures in a row are the end.
    """
    begun = time.monotonic()
    failures = 0
    while True:
        argv = ["/bin/sh", "-c", check.command]
        done = await sandbox.exec(argv, timeout=check.timeout, environment=sandbox.proxy_environment)
        if done.exit_code == 0 and not done.timed_out:
            return
        starting = time.monotonic() - begun < check.start_period
        failures += not starting
        if failures >= check.retries:
            how = f"took more than {check.timeout:g} s" if done.timed_out else f"ended with {done.exit_code}"
            said = done.output[-TAIL:].strip()
            raise TaskError(
                f"the environment is not healthy: {check.command!r} {how}, {failures} times in a row: {said}",
                "look at the healthcheck's command, or give it a longer start period",
            )
        await asyncio.sleep(check.start_interval if starting else check.interval)
