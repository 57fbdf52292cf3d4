"""Harnesses that run in pool hosts alone: those of the benchmarks, which derive from the adapters' base."""

from __future__ import annotations

from pathlib import Path

import pytest

from whippletree.errors import HarnessError
from whippletree.harnesses import load_harness
from whippletree.protocols import AttemptSpec, PoolHarness

BENCH = Path(__file__).parents[2] / "bench"


@pytest.mark.parametrize("name", ["OneCall", "Idle"])
def test_a_harness_of_the_benchmarks_has_the_contract_and_no_process_mode(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    harness = load_harness(f"control_parts.harness:{name}")
    assert isinstance(harness, PoolHarness) and harness.facts.launches == ("pool",)
    spec = AttemptSpec("r", 1, "go", "http://127.0.0.1:1/v1", "key", "policy", "/app", "/tmp/out")
    for refused in (lambda: harness.plan(spec), lambda: harness.result(0, "", None)):
        with pytest.raises(HarnessError, match=r'one-call cannot be launched as a process.*launch = "pool"'):
            refused()
