"""bench/harnesses.py at toy size, and the harnesses of bench/control.py, which derive from the adapters' base."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from whippletree import sandboxes
from whippletree.errors import HarnessError
from whippletree.harnesses import load_harness
from whippletree.protocols import AttemptSpec, PoolHarness

BENCH = Path(__file__).parents[2] / "bench"
ISOLATED = sandboxes.choose(sandboxes.SandboxConfig()).kind == "bubblewrap"


@pytest.mark.parametrize("name", ["OneCall", "Idle"])
def test_a_harness_of_the_benchmarks_has_the_contract_and_no_process_mode(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    harness = load_harness(f"control_parts.harness:{name}")
    assert isinstance(harness, PoolHarness) and harness.facts.launches == ("pool",)
    spec = AttemptSpec("r", 1, "go", "http://127.0.0.1:1/v1", "key", "policy", "/app", "/tmp/out")
    for refused in (lambda: harness.plan(spec), lambda: harness.result(0, "", None)):
        with pytest.raises(HarnessError, match=r'one-call cannot be launched as a process.*launch = "pool"'):
            refused()


@pytest.mark.timeout(300)
@pytest.mark.skipif(not ISOLATED, reason="bubblewrap does not work here")
def test_what_harnesses_cost_is_measured_and_what_is_not_installed_is_named(tmp_path: Path) -> None:
    words = ["--only", "whitebox,codex", "--attempts", "1", "--directory", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(BENCH / "harnesses.py"), *words], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert "codex: left out, it is not installed (whippletree harness install codex)" in done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["bench"] == "harnesses" and set(result["harnesses"]) == {"whitebox"}, done.stderr
    found = result["harnesses"]["whitebox"]
    assert set(found) == {"cpu_s_start", "wall_s_start", "added_ms_per_call", "attempts_per_min"}
    assert found["cpu_s_start"] > 0 and found["wall_s_start"] > 0 and found["attempts_per_min"] > 0
    assert "pool_over_process" not in result


def test_the_model_of_the_benchmark_makes_three_calls_of_any_harness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    from startup_parts.model import scenario

    for name in ("codex", "aider"):
        found = scenario(load_harness(name).facts)
        assert len(found.moves) == 2 and found.writes["bench-1.txt"] == "amber", name
