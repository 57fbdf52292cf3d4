"""Small real harnesses for the tests of the control room: plain Python that posts to a chat endpoint and runs commands.

Pool hosts load them by "harness_parts:Class"; this folder is then on their PYTHONPATH.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.request
from pathlib import Path

from whippletree.errors import ConfigurationError
from whippletree.harnesses.packages import Adapter
from whippletree.protocols import AttemptSpec, HarnessResult, LaunchPlan


def ask(spec: AttemptSpec, text: str) -> dict:
    """One chat completion; raises what urllib raises."""
    body = json.dumps({"model": spec.model, "messages": [{"role": "user", "content": text}]}).encode()
    headers = {"Authorization": f"Bearer {spec.api_key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{spec.base_url}/chat/completions", body, headers)
    with urllib.request.urlopen(request, timeout=spec.timeout) as reply:
        return json.load(reply)


ASK = """
import json, os, urllib.request
body = json.dumps({"model": "policy", "messages": [{"role": "user", "content": "hi"}]}).encode()
headers = {"Authorization": "Bearer " + os.environ["KEY"], "Content-Type": "application/json"}
urllib.request.urlopen(urllib.request.Request(os.environ["URL"] + "/chat/completions", body, headers)).read()
"""


class HttpHarness(Adapter):
    """Asks once, then runs `command` of its settings in the attempt's sandbox. Other settings make it misbehave, or wait for a
    file (`wait_for`, with ROLLOUT for the rollout's id)."""

    name = "http"
    version = "1"
    settings = None

    def load(self) -> None:
        print("loading: this must not disturb the channel to the pool")

    def run(self, spec: AttemptSpec) -> HarnessResult:
        settings = spec.settings
        os.write(1, f"{spec.rollout_id} prints to standard output\n".encode())
        if "child" in settings:
            subprocess.Popen(["sleep", "1000"], process_group=0)
        if "raise" in settings:
            raise RuntimeError(f"{settings['raise']} with {spec.api_key}")
        if settings.get("reset_in") == spec.rollout_id:
            raise ConnectionResetError(104, "Connection reset by peer")
        if "wrong" in settings:
            raise ConfigurationError("setting wrong is wrong", "leave it out")
        if "exit" in settings:
            raise SystemExit(3)
        if "sleep" in settings:
            time.sleep(float(str(settings["sleep"])))
        while "wait_for" in settings and not Path(str(settings["wait_for"]).replace("ROLLOUT", spec.rollout_id)).exists():
            time.sleep(0.02)
        if "kill" in settings:
            os.kill(spec.sandbox.pid, signal.SIGKILL)
        steps = 0
        if settings.get("ask", True):
            try:
                ask(spec, spec.instruction)
            finally:
                if "asked" in settings:
                    Path(str(settings["asked"])).touch()
            steps = 1
        if "command" in settings:
            from whippletree.sandboxes import attach

            attach(spec.sandbox).exec(["/bin/sh", "-c", str(settings["command"])], timeout=60)
        if "again" in settings:  # as an agent that takes every error for its end
            with contextlib.suppress(OSError):
                ask(spec, str(settings["again"]))
        return HarnessResult(exit_status="Submitted", steps=steps, ran_out=settings.get("ran_out", ""))

    def plan(self, spec: AttemptSpec) -> LaunchPlan:
        if "raise" in spec.settings:
            raise RuntimeError(str(spec.settings["raise"]))
        if "wrong" in spec.settings:
            raise ConfigurationError("setting wrong is wrong", "leave it out")
        return LaunchPlan(
            argv=("/bin/sh", "-c", str(spec.settings.get("shell", "cat note; cat note > /tmp/trajectory.json 2>/dev/null"))),
            environment={"KEY": spec.api_key, "URL": spec.base_url, "ASK": ASK},
            files=(("/app/note", f"note for {spec.rollout_id} {spec.api_key}\n"),),
        )

    def result(self, exit_code: int, output: str, trajectory: bytes | None) -> HarnessResult:
        if "garbage" in output:
            raise ValueError("this adapter cannot read garbage")
        return HarnessResult(exit_status=f"exit {exit_code}", crashed=exit_code != 0, message=output)


class BrokenHarness(HttpHarness):
    """Cannot be imported."""

    def load(self) -> None:
        raise ModuleNotFoundError("No module named 'the_agent'")


class DyingHarness(HttpHarness):
    """Loads, then takes its host with it whenever it runs."""

    def run(self, spec: AttemptSpec) -> HarnessResult:
        os._exit(9)
