"""Between the agent and the tests: what was planted to take part in them is found and put away.

    before the agent: survey ─► what is there     after it: put_away ─► new files that others read by themselves go aside

A survey looks at the places that can be written in the sandbox, by name alone. What the task itself brought, changed or not,
stays where it is and is only reported when it changed: a task may ask for that.
Invariants (tests/tasks/test_defence.py):
- after `put_away` none of the new files stands where a program would find it, and each is reported;
- what was there before stays; a sandbox without `find` is told as such, not taken for a clean one.
"""

from __future__ import annotations

from whippletree.errors import SandboxError
from whippletree.protocols import Sandbox
from whippletree.tasks.detectors import SHADOWING, SHADOWING_ENDS, Suspicion, in_files, shadows
from whippletree.types import Struct

SURVEY_SECONDS = 30.0
AWAY = "tmp/.put-away"  # relative to the sandbox's root
LISTING_BYTES = 4_000_000
TEST_ENVIRONMENT = {"PYTHONNOUSERSITE": "1"}  # for the tests, beside the task's own variables

_NAMES = " -o ".join(f"-name '{name}'" for name in (*SHADOWING, *(f"*{end}" for end in SHADOWING_ENDS), "ld.so.preload"))
# Everything is relative to the sandbox's root, where the command starts. $1: the working directory. Files in folders named bin
# and in hooks of git are listed whole: which of them matter is decided outside.
_SURVEY = f"""for place in "$1" app tmp home root etc opt srv var usr/local logs; do
  [ -d "$place" ] && [ -w "$place" ] || continue
  find "$place" -path {AWAY} -prune -o \\( -type f -o -type l \\) \\
    \\( {_NAMES} -o -path '*/bin/*' -o -path '*/sbin/*' -o -path '*/.git/hooks/*' \\) -printf '/%p\\t%T@\\t%s\\n' || exit 9
done"""
_MOVE = f"""mkdir -p {AWAY} && chmod 700 {AWAY} || exit 1
number=0
for path; do
  number=$((number + 1))
  [ -e "$path" ] || [ -L "$path" ] || continue
  mv -f "$path" "{AWAY}/$$-$number" || rm -f "$path" || exit 1
done"""


class Survey(Struct):
    """Files that others read by themselves: path inside → time of change and size, as text.

    Example: Survey(files={"/app/conftest.py": "1764450000.5\\t120"})
    """

    files: dict[str, str] = {}


async def survey(sandbox: Sandbox, workdir: str) -> Survey:
    """What is there now. Raises SandboxError where it cannot be found out."""
    done = await sandbox.exec(
        ["/bin/sh", "-c", _SURVEY, "survey", workdir.strip("/")], timeout=SURVEY_SECONDS, cwd="/", output_limit=LISTING_BYTES
    )
    if done.exit_code != 0 or done.truncated:
        raise SandboxError(
            f"the sandbox could not be surveyed (exit {done.exit_code}): {done.output[-300:]}", "give its image GNU find"
        )
    files = {}
    for line in done.output.splitlines():
        path, _, state = line.partition("\t")
        if path.startswith("/") and shadows(path):
            files[path] = state
    return Survey(files=files)


async def put_away(sandbox: Sandbox, workdir: str, before: Survey) -> list[Suspicion]:
    """Move aside what is new since `before`, and say what it was; what was there and has changed is said only.

    The agent's processes must have ended. Raises SandboxError.
    """
    after = await survey(sandbox, workdir)
    new = sorted(path for path in after.files if path not in before.files)
    changed = sorted(path for path, state in after.files.items() if before.files.get(path, state) != state)
    if new:
        argv = ["/bin/sh", "-c", _MOVE, "put-away", *(path.lstrip("/") for path in new)]
        done = await sandbox.exec(argv, timeout=SURVEY_SECONDS, cwd="/")
        if done.exit_code != 0:
            raise SandboxError(f"planted files could not be put away: {done.output[-300:]}", "look at the sandbox")
    return in_files([*new, *changed])
