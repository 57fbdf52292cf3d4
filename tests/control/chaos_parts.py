"""The processes of the chaos test: a harness that retries as real clients do, and the gateway as a process of its own."""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from harness_parts import HttpHarness

from whippletree.engines.scripted import ScriptedEngine
from whippletree.gateway.config import GatewayConfig
from whippletree.gateway.keys import load_secret
from whippletree.gateway.server import Parts, run
from whippletree.protocols import AttemptSpec, HarnessResult
from whippletree.rendering import RenderingConfig, load_renderer
from whippletree.sandboxes import attach
from whippletree.store import open_store

TRIES = 60
PAUSE = 0.1  # seconds


class RetryingHarness(HttpHarness):
    """Asks twice, each time until it has a whole reply, notes what it got, then does what the instruction says.

    A command that was killed is no answer of the model: an agent that went on after it would earn what nobody sampled.
    """

    def run(self, spec: AttemptSpec) -> HarnessResult:
        for turn in range(2):
            reply = self._ask(spec, f"{spec.instruction} {turn}")
            with Path(str(spec.settings["acknowledged"])).open("a") as file:
                file.write(f"{spec.rollout_id} {spec.attempt} {reply['id']}\n")
        assert spec.sandbox is not None
        done = attach(spec.sandbox).exec(["/bin/sh", "-c", spec.instruction], timeout=20)
        if done.exit_code != 0:
            raise RuntimeError(f"the command ended with {done.exit_code}: it was killed")
        return HarnessResult(exit_status="Submitted", steps=2)

    def _ask(self, spec: AttemptSpec, text: str) -> dict[str, str]:
        body = json.dumps({"model": spec.model, "messages": [{"role": "user", "content": text}]}).encode()
        headers = {"Authorization": f"Bearer {spec.api_key}", "Content-Type": "application/json"}
        for _ in range(TRIES):
            request = urllib.request.Request(f"{spec.base_url}/chat/completions", body, headers)
            try:
                with urllib.request.urlopen(request, timeout=spec.timeout) as reply:
                    return dict(json.load(reply))
            except urllib.error.HTTPError as error:
                if error.code < 500:
                    raise
            except (OSError, ValueError):
                pass
            time.sleep(PAUSE)
        raise TimeoutError("the gateway did not come back")


def main() -> None:
    """Serve: RUN DIRECTORY, PORT, READY FILE."""
    directory, port, ready = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])

    def parts() -> Parts:
        renderer = load_renderer(directory / "model", RenderingConfig(template="tiny"))
        answer = [*renderer.codec.encode("done"), *renderer.stop_token_ids[:1]]
        return Parts(
            store=open_store(directory / "store", instance=f"gateway-{os.getpid()}"),
            engines=[ScriptedEngine(lambda prompt: answer, context=8192, vocabulary=1024)],
            renderer=renderer,
            secret=load_secret(directory / "secret"),
        )

    run(GatewayConfig(port=port), parts, ready_file=ready)


if __name__ == "__main__":
    main()
