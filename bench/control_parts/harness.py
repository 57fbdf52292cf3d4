"""Harnesses of the benchmark, loaded by pool hosts as "control_parts.harness:Class"."""

from __future__ import annotations

import json
import threading
import urllib.request

from whippletree.harnesses.packages import Adapter
from whippletree.protocols import AttemptSpec, HarnessFacts, HarnessResult


class OneCall(Adapter):
    """Asks the model once and is done: what an attempt costs without an agent."""

    name = "one-call"
    version = "1"
    facts = HarnessFacts(dialects=("chat",), streams=False, launches=("pool",))

    def load(self) -> None:
        """Nothing to import."""

    def run(self, spec: AttemptSpec) -> HarnessResult:
        """One call."""
        body = json.dumps({"model": spec.model, "messages": [{"role": "user", "content": "?"}]}).encode()
        headers = {"Authorization": f"Bearer {spec.api_key}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{spec.base_url}/chat/completions", body, headers)
        with urllib.request.urlopen(request, timeout=spec.timeout) as reply:
            reply.read()
        return HarnessResult(exit_status="Submitted", steps=1)


class Idle(OneCall):
    """Waits until its time is over, as an agent does while a model or a command works."""

    def run(self, spec: AttemptSpec) -> HarnessResult:
        """Wait."""
        threading.Event().wait(spec.timeout)
        return HarnessResult(exit_status="Submitted", steps=0)
