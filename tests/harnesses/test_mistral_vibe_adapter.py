"""Mistral Vibe's adapter: what it launches, what its end means, and its journal as ATIF (records put small and reworded)."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from adapter_parts import placed
from python_packages import SPEC, with_settings

from whippletree.errors import ConfigurationError, HarnessError
from whippletree.harnesses.mistral_vibe import FOLDER, KEY, OUTPUT, MistralVibe
from whippletree.protocols import HarnessResult
from whippletree.traces.atif import read_trajectory

RECORDS = Path(__file__).parent / "records" / "mistral-vibe"


@pytest.fixture
def vibe(tmp_path: Path) -> MistralVibe:
    return placed(MistralVibe, tmp_path)


def config(vibe: MistralVibe, **settings: Any) -> dict[str, Any]:
    return tomllib.loads(dict(vibe.plan(with_settings(**settings)).files)[f"{FOLDER}/config.toml"])


def test_it_is_not_launched_where_it_is_not_installed(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="whippletree harness install mistral-vibe"):
        MistralVibe(tmp_path).plan(SPEC)


def test_the_key_is_in_one_variable_alone(vibe: MistralVibe) -> None:
    plan = vibe.plan(with_settings(step_limit=7))
    assert plan.environment[KEY] == SPEC.api_key
    assert SPEC.api_key not in " ".join(plan.argv) and not any(SPEC.api_key in text for _, text in plan.files)
    assert dict(plan.files)[f"{FOLDER}/instruction.txt"] == SPEC.instruction not in " ".join(plan.argv)
    assert plan.argv[-2:] == ("--max-turns", "7")
    assert plan.argv[plan.argv.index("--time-limit") + 1] == "295"


@pytest.mark.parametrize(
    ("dialect", "style", "base"),
    [
        ("chat", "openai", "http://127.0.0.1:8000/v1"),
        ("responses", "openai-responses", "http://127.0.0.1:8000/v1"),
        ("messages", "anthropic", "http://127.0.0.1:8000"),
    ],
)
def test_each_dialect_is_a_style_of_one_provider(vibe: MistralVibe, dialect: str, style: str, base: str) -> None:
    (provider,) = config(vibe, dialect=dialect)["providers"]
    assert (provider["api_style"], provider["api_base"], provider["api_key_env_var"]) == (style, base, KEY)


def test_nothing_looks_elsewhere_and_settings_arrive(vibe: MistralVibe) -> None:
    plain = config(vibe)
    switches = ("telemetry", "update_checks", "auto_update", "connectors", "mcp", "otel")
    assert not any(plain[f"enable_{name}"] for name in switches) and plain["experiments"] == {"enable": False}
    assert (plain["system_prompt_id"], plain["enable_subagents"]) == ("cli", True)
    (model,) = plain["models"]
    assert (model["name"], "max_context_length" in model) == ("policy", False)
    own = config(vibe, system_prompt="Be short.", subagents=False, context_tokens=4000, compact_at=3000)
    assert own["system_prompt_id"] == "whippletree" and own["enable_subagents"] is False
    assert (own["models"][0]["max_context_length"], own["models"][0]["auto_compact_threshold"]) == (4000, 3000)
    files = dict(vibe.plan(with_settings(system_prompt="Be short.")).files)
    assert files[f"{FOLDER}/prompts/whippletree.md"] == "Be short."


def test_wrong_settings_are_refused_with_their_names(vibe: MistralVibe) -> None:
    for settings, word in (({"dialect": "gemini"}, "dialect"), ({"step_limits": 1}, "step_limit"), ({"prompt": "x"}, "prompt")):
        with pytest.raises(ConfigurationError, match=word):
            vibe.plan(with_settings(**settings))


def test_its_export_says_how_it_ended(vibe: MistralVibe) -> None:
    def result(name: str, code: int = 0) -> HarnessResult:
        return vibe.result(code, "said", (RECORDS / f"{name}.json").read_bytes())

    assert result("finished") == HarnessResult(exit_status="finished", steps=2, message="said")
    limited = result("turn_limit", 3)
    assert (limited.exit_status, limited.steps, limited.ran_out, limited.crashed) == ("turn_limit", 1, "budget", False)
    failed = result("failed", 2)
    assert (failed.exit_status, failed.crashed) == ("infrastructure_failure", True) and "400 Bad Request" in failed.message
    full = (RECORDS / "failed.json").read_bytes().replace(b"400 Bad Request", b"400: maximum context length is 9")
    assert (vibe.result(2, "", full).exit_status, vibe.result(2, "", full).ran_out) == ("ContextWindowExceeded", "budget")
    late = result("deadline", 3)
    assert (late.steps, late.ran_out, late.crashed) == (0, "time", False)
    assert vibe.result(-9, "killed", None) == HarnessResult(exit_status="Exit-9", crashed=True, message="killed")
    assert vibe.result(0, "", b"{}").crashed


def journals(prefix: str) -> dict[str, bytes]:
    return {f"{OUTPUT}/{prefix}/journal/{path.name}": path.read_bytes() for path in RECORDS.glob("*.jsonl")}


def test_its_journal_is_told_call_by_call(vibe: MistralVibe) -> None:
    told = read_trajectory(vibe.account("", journals("session") | {f"{OUTPUT}/export.json": b"{}"}) or b"")
    assert [step.source for step in told.steps] == ["system", "user", "agent", "agent"]
    first, last = told.steps[2:]
    assert (first.message, first.reasoning_content) == ("I write it.", "it is missing")
    (call,) = first.tool_calls or []
    assert (call.tool_call_id, call.function_name, call.arguments) == ("call_1", "bash", {"command": "echo amber > out.txt"})
    assert first.observation is not None and first.observation.results[0].source_call_id == "call_1"
    assert first.metrics is not None and last.metrics is not None
    assert (first.metrics.prompt_tokens, first.metrics.completion_tokens, first.metrics.cached_tokens) == (120, 31, 7)
    assert (last.message, last.metrics.completion_tokens) == ("Done.", 13)
    assert vibe.account("", {}) is None


def test_subagents_have_trajectories_of_their_own(vibe: MistralVibe) -> None:
    told = msgspec.json.decode(vibe.account("", journals("session") | journals("subagents/s-2")) or b"")
    (below,) = told["subagent_trajectories"]
    assert (below["trajectory_id"], len(below["steps"])) == ("s-2", 4)
