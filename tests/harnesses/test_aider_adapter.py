"""Aider's adapter: what it launches, what its end means, and its log as ATIF (records put small and reworded)."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from adapter_parts import placed
from python_packages import SPEC, with_settings

from whippletree.errors import ConfigurationError, HarnessError
from whippletree.harnesses.aider import LOG, Aider
from whippletree.protocols import HarnessResult
from whippletree.traces.atif import read_trajectory

RECORDS = Path(__file__).parent / "records" / "aider"
REFUSED = "Aider v0.86.2\nModel: openai/policy with whole edit format\n\nlitellm.BadRequestError: OpenAIException - no\n"


@pytest.fixture
def aider(tmp_path: Path) -> Aider:
    return placed(Aider, tmp_path)


def test_it_is_not_launched_where_it_is_not_installed(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="whippletree harness install aider"):
        Aider(tmp_path).plan(SPEC)


def test_the_key_is_in_one_variable_alone_and_nothing_is_looked_up(aider: Aider) -> None:
    plan = aider.plan(SPEC)
    assert plan.environment["OPENAI_API_KEY"] == SPEC.api_key and plan.environment["OPENAI_API_BASE"] == SPEC.base_url
    assert SPEC.api_key not in " ".join(plan.argv) and not any(SPEC.api_key in text for _, text in plan.files)
    assert {"--analytics-disable", "--no-check-update", "--yes-always"} <= set(plan.argv)
    files = dict(plan.files)
    sizes = json.loads(files[plan.argv[plan.argv.index("--model-metadata-file") + 1]])
    assert sizes["openai/policy"]["max_input_tokens"] == 32768  # aider looks up the sizes of a model of which it is told none
    assert files[plan.argv[plan.argv.index("--message-file") + 1]] == SPEC.instruction


def test_settings_arrive_on_the_command_line(aider: Aider) -> None:
    argv = aider.plan(with_settings(edit_format="diff", files=["a.py", "b.py"], commits=False, stream=False, map_tokens=0)).argv
    assert argv[argv.index("--edit-format") + 1] == "diff" and argv[argv.index("--map-tokens") + 1] == "0"
    assert {"--no-auto-commits", "--no-stream"} <= set(argv) and argv[-4:] == ("--file", "a.py", "--file", "b.py")
    assert {"--auto-commits", "--stream"} <= set(aider.plan(SPEC).argv)


def test_wrong_settings_and_instructions_are_refused(aider: Aider) -> None:
    for settings, word in (({"edit_format": "patch"}, "edit_format"), ({"commit": False}, "commits")):
        with pytest.raises(ConfigurationError, match=word):
            aider.plan(with_settings(**settings))
    for instruction in ("/run rm x", "\n!ls"):
        with pytest.raises(ConfigurationError, match="aider's own commands"):
            aider.plan(msgspec.structs.replace(SPEC, instruction=instruction))


def test_an_exit_code_of_zero_does_not_mean_that_the_model_answered(aider: Aider) -> None:
    log, refused = (RECORDS / "llm.txt").read_bytes(), (RECORDS / "refused.txt").read_bytes()
    assert aider.result(0, "Applied edit to out.txt\n", log) == HarnessResult(
        exit_status="Done", steps=2, message="Applied edit to out.txt\n"
    )
    assert aider.result(0, REFUSED, refused) == HarnessResult(exit_status="BadRequestError", message=REFUSED, crashed=True)
    over = "Model openai/policy has hit a token limit!\n"
    assert aider.result(0, over, refused) == HarnessResult(exit_status="TokenLimit", message=over, ran_out="budget")
    assert aider.result(0, "", None) == HarnessResult(exit_status="NoAnswer", crashed=True)
    assert aider.result(1, "usage", None) == HarnessResult(exit_status="Exit1", message="usage", crashed=True)


def test_an_error_that_it_got_over_is_none(aider: Aider) -> None:
    log = (RECORDS / "llm.txt").read_bytes()
    got_over = "litellm.InternalServerError: busy\nRetrying in 0.2 seconds...\nApplied edit to out.txt\n"
    assert not aider.result(0, got_over, log).crashed
    cut_off = "half an answer\nlitellm.BadRequestError: gone\n"
    assert aider.result(0, cut_off, log).crashed


def test_its_log_is_told_answer_by_answer(aider: Aider) -> None:
    told = read_trajectory(aider.account("", {LOG: (RECORDS / "llm.txt").read_bytes()}) or b"")
    said = [(step.source, step.message) for step in told.steps]
    assert said == [
        ("system", "Change files as asked.\n\nWrite the whole file."),
        ("user", "Write amber into out.txt."),
        ("system", "Write the whole file."),
        ("agent", "I change it.\n\nout.md\n```\namber"),
        ("user", "The file was not closed."),
        ("agent", "I create the file.\n\nout.txt\n```\namber\n```"),
    ]
    assert [step.llm_call_count for step in told.steps if step.source == "agent"] == [1, 1]
    refused = read_trajectory(aider.account("", {LOG: (RECORDS / "refused.txt").read_bytes()}) or b"")
    assert [step.source for step in refused.steps] == ["system"]
    assert aider.account("", {}) is None


def test_reasoning_is_told_apart_from_the_answer(aider: Aider) -> None:
    """Its log has both under one role, the reasoning between marks."""
    mark = "thinking-content-7bbeb8e1441453ad999a0bbba8a46d4b"
    said = f"<{mark}>\n\nfirst\n\nsecond\n\n</{mark}>\n\nI write it.\n\nout.txt\n```\namber\n```"
    lines = "\n".join(f"ASSISTANT {line}" for line in said.split("\n"))
    log = f"TO LLM 2026-11-30T06:56:48\n-------\nUSER go\nLLM RESPONSE 2026-11-30T06:56:49\n{lines}\n".encode()
    (step,) = [step for step in read_trajectory(aider.account("", {LOG: log}) or b"").steps if step.source == "agent"]
    assert (step.message, step.reasoning_content) == ("I write it.\n\nout.txt\n```\namber\n```", "first\n\nsecond")
    assert aider.result(0, "", log).steps == 1
