"""whippletree/harnesses/codex.py; the records are of real runs, cut and reworded"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from adapter_parts import KEY, RECORDS, attempt, placed, read, turns

from whippletree.errors import ConfigurationError
from whippletree.harnesses.codex import CODEX_HOME, Codex, configuration
from whippletree.harnesses.config import CodexSettings
from whippletree.protocols import HarnessResult

SESSIONS = f"{CODEX_HOME}/sessions/2026/11/30"
MAIN = "01a22a7d-1fc3-7d00-a493-30499e041312"
CHILD = "01a22a7d-2128-7043-a894-5d2ad989e3bd"


@pytest.fixture
def codex(tmp_path: Path) -> Codex:
    return placed(Codex, tmp_path)


def configured(**settings: object) -> dict[str, object]:
    return tomllib.loads(dict(_plan(**settings).files)[f"{CODEX_HOME}/config.toml"])


def _plan(**settings: object):  # the files do not depend on where it is installed
    spec = attempt(**settings)
    text = configuration(CodexSettings(**settings), spec)  # type: ignore[arg-type]
    return type("Plan", (), {"files": ((f"{CODEX_HOME}/config.toml", text),)})


def test_a_plan_keeps_the_key_off_the_command_line_and_out_of_files(codex: Codex) -> None:
    plan = codex.plan(attempt(system_prompt="S"))
    assert not any(KEY in word for word in plan.argv) and not any(KEY in text for _, text in plan.files)
    assert plan.environment["WHIPPLETREE_KEY"] == KEY
    assert (plan.environment["HOME"], plan.environment["CODEX_HOME"]) == ("/home/agent", CODEX_HOME)
    assert plan.argv[-1] == "-" and plan.stdin == attempt().instruction
    assert dict(plan.files)[f"{CODEX_HOME}/instructions.md"] == "S"


def test_the_native_program_is_run_where_it_is_there(codex: Codex) -> None:
    assert codex.binary("codex") == ("/opt/harnesses/codex/node_modules/.bin/codex",)
    for short, long in (("x64", "x86_64"), ("arm64", "aarch64")):
        program = codex.folder / f"node_modules/@openai/codex-linux-{short}/vendor/{long}-unknown-linux-musl/bin/codex"
        program.parent.mkdir(parents=True)
        program.touch()
    (path,) = codex.binary("codex")
    assert path.startswith("/opt/harnesses/codex/node_modules/@openai/codex-linux-") and path.endswith("-linux-musl/bin/codex")


def test_its_configuration_names_the_gateway_and_nobody_else() -> None:
    found = configured()
    assert found["model_providers"] == {
        "whippletree": {
            "name": "whippletree",
            "base_url": "http://127.0.0.1:8000/v1",
            "env_key": "WHIPPLETREE_KEY",
            "wire_api": "responses",
            "request_max_retries": 2,
            "stream_max_retries": 2,
            "stream_idle_timeout_ms": 300_000,
        }
    }
    assert (found["model"], found["model_provider"]) == ("policy", "whippletree")
    assert found["shell_environment_policy"] == {"exclude": ["WHIPPLETREE_KEY"]}
    assert found["check_for_update_on_startup"] is False and found["analytics"] == {"enabled": False}
    assert (found["model_context_window"], found["model_auto_compact_token_limit"]) == (200_000, 180_000)


def test_profiles_and_overrides() -> None:
    lean = configured(features={"view_image": True}, environment_context=False)
    assert lean["web_search"] == "disabled" and lean["agents"] == {"enabled": False}
    assert lean["features"]["goals"] is False and lean["features"]["view_image"] is True  # type: ignore[index]
    assert lean["include_environment_context"] is False
    full = configured(profile="full", model="m", system_prompt="S", system_append='A "quoted"\n', compact_tokens=5)
    assert "web_search" not in full and "agents" not in full and full["features"] == {"daemon_auto_start": False}
    assert (full["model"], full["developer_instructions"]) == ("m", 'A "quoted"\n')
    assert full["model_instructions_file"] == f"{CODEX_HOME}/instructions.md"
    assert full["model_auto_compact_token_limit"] == 5
    assert configured(options={"model_provider": "mine"})["model_provider"] == "mine"


def test_wrong_settings_are_named(codex: Codex) -> None:
    with pytest.raises(ConfigurationError, match=r"harness codex: unknown key feature .*features"):
        codex.plan(attempt(feature={}))


def events(*lines: dict[str, object]) -> str:
    return "\n".join(json.dumps(line) for line in ({"type": "thread.started", "thread_id": "t"}, *lines))


def item(kind: str, text: str = "") -> dict[str, object]:
    return {"type": "item.completed", "item": {"id": "item_1", "type": kind, "text": text}}


WARNED = item("error", "Model metadata for `policy` not found.")
DONE = {"type": "turn.completed", "usage": {"input_tokens": 10, "output_tokens": 2}}
OVERFLOW = "Codex ran out of room in the model's context window. Start a new thread."
CUT = "Incomplete response returned, reason: max_output_tokens"
FAILED = {"type": "turn.failed", "error": {"message": "high demand"}}


@pytest.mark.parametrize(
    ("code", "output", "expected"),
    [
        (
            0,
            events(WARNED, item("command_execution"), item("agent_message", "Done."), DONE),
            HarnessResult(exit_status="Completed", steps=2, message="Done."),
        ),
        (
            1,
            events(WARNED, {"type": "error", "message": "Reconnecting... 1/2"}, FAILED),
            HarnessResult(exit_status="TurnFailed", steps=1, message="high demand", crashed=True),
        ),
        (
            1,
            events({"type": "turn.failed", "error": {"message": OVERFLOW}}),
            HarnessResult(exit_status="ContextWindowExceeded", steps=1, message=OVERFLOW, ran_out="budget"),
        ),
        (
            1,
            events({"type": "turn.failed", "error": {"message": CUT}}),
            HarnessResult(exit_status="OutputLimit", steps=1, message=CUT, ran_out="budget"),
        ),
        (1, "Error: no config", HarnessResult(exit_status="Exit1", message="Error: no config", crashed=True)),
        (0, events(WARNED), HarnessResult(exit_status="Exit0", steps=1, message=events(WARNED), crashed=True)),
        (
            124,
            events(WARNED),
            HarnessResult(exit_status="TimedOut", steps=1, message="ended at its time limit", ran_out="time"),
        ),
    ],
)
def test_what_its_end_means(codex: Codex, code: int, output: str, expected: HarnessResult) -> None:
    assert codex.result(code, output, None) == expected


def test_rollout_files_become_one_document_with_its_sub_agents(codex: Codex) -> None:
    records = {
        f"{SESSIONS}/rollout-1-{MAIN}.jsonl": (RECORDS / "codex-main.jsonl").read_bytes(),
        f"{SESSIONS}/rollout-2-{CHILD}.jsonl": (RECORDS / "codex-child.jsonl").read_bytes(),
    }
    told = read(codex.account("", records))
    assert told.session_id == MAIN
    assert turns(told) == [
        ("I delegate.", ["multi_agent_v1__spawn_agent"], 21485, 66),
        ("I wait.", ["multi_agent_v1__wait_agent"], 21640, 82),
        ("Done, the file is written.", [], turns(told)[2][2], 8),
    ]
    started = [
        (step.message, reference.trajectory_id)
        for step in told.steps
        for result in (step.observation.results if step.observation else ())
        for reference in result.subagent_trajectory_ref or ()
    ]
    assert started == [("I delegate.", CHILD)]
    (child,) = told.subagent_trajectories or []
    assert child.trajectory_id == CHILD and [turn[0] for turn in turns(child)] == ["Child done."]


def test_a_turn_without_a_count_of_its_tokens_was_not_sampled_to_its_end(codex: Codex) -> None:
    def line(kind: str, **payload: object) -> str:
        return json.dumps({"timestamp": "t", "type": kind, "payload": payload})

    text = [{"type": "output_text", "text": "I beg"}]
    patch = {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin Patch"}
    lines = [
        line("session_meta", id="s"),
        line("response_item", type="reasoning", summary=[{"type": "summary_text", "text": "hm"}]),
        line("response_item", **patch),
        line("response_item", type="custom_tool_call_output", call_id="c1", output={"text": "done"}),
        line("token_usage_record", usage={"input_tokens": 7, "output_tokens": 3, "cached_input_tokens": 4}),
        line("compacted", message="What happened so far."),
        line("response_item", type="message", role="assistant", content=text),
        '{"timestamp": "cut o',
    ]
    told = read(codex.account("", {"/x/rollout-s.jsonl": "\n".join(lines).encode()}))
    assert turns(told) == [("", ["apply_patch"], 7, 3), ("I beg", [], None, None)]
    first = told.steps[0]
    assert first.reasoning_content == "hm" and first.tool_calls is not None and first.observation is not None
    assert (first.tool_calls[0].extra, first.observation.results[0].content) == (
        {"arguments": "*** Begin Patch"},
        '{"text":"done"}',
    )
    assert [(step.source, step.llm_call_count) for step in told.steps] == [("agent", 1), ("system", None), ("agent", 0)]


def test_without_a_rollout_file_there_is_no_account(codex: Codex) -> None:
    assert codex.account("anything", {}) is None
