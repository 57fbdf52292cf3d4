"""The program `submit` of generated tasks: it hands an answer in, and says the harness's own word for "the work is done".

It finds the sandbox's root from its own path ("" in a sandbox with a root of its own), and needs only a shell.
"""

from __future__ import annotations

ANSWER = "answer.txt"  # in the working directory, /app

SUBMIT = b"""#!/bin/sh
# submit [ANSWER]: hand in. What it prints is the caller's word for "the work is done".
root=${0%/usr/local/bin/submit}
if [ $# -gt 0 ]; then printf '%s\\n' "$*" > "$root/app/answer.txt" || exit 1; fi
printf '%s\\n' "${DONE_MESSAGE:-submitted}"
"""
