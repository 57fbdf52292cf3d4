"""whippletree/harnesses/claude_code.py; the records are of real runs, cut and reworded"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from adapter_parts import KEY, RECORDS, attempt, placed, read, turns

from whippletree.errors import ConfigurationError
from whippletree.harnesses.claude_code import CONFIG, ClaudeCode
from whippletree.protocols import HarnessResult

PROJECT = f"{CONFIG}/projects/-app"
SESSION = "876d0e2c-db7d-4e28-be8b-70556fc77f51"
CHILD = "agent-aa3f02a8fc35025e2"


@pytest.fixture
def claude(tmp_path: Path) -> ClaudeCode:
    return placed(ClaudeCode, tmp_path)


CUT = "API Error: Claude's response exceeded the 8192 output token maximum. To configure this behavior, set a variable."


def test_a_plan_keeps_the_key_off_the_command_line_and_out_of_files(claude: ClaudeCode) -> None:
    plan = claude.plan(attempt(system_prompt="S", system_append="A"))
    assert not any(KEY in word for word in plan.argv) and not any(KEY in text for _, text in plan.files)
    assert plan.environment["ANTHROPIC_API_KEY"] == KEY
    assert plan.environment["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:8000"
    assert (plan.environment["HOME"], plan.environment["CLAUDE_CONFIG_DIR"]) == ("/home/agent", CONFIG)
    assert plan.stdin == attempt().instruction and plan.records == (f"{CONFIG}/projects/**/*.jsonl",)
    assert plan.argv[0] == "/opt/harnesses/claude-code/node_modules/.bin/claude"
    assert dict(plan.files) == {f"{CONFIG}/system-prompt.md": "S", f"{CONFIG}/append-system-prompt.md": "A"}
    assert plan.argv[plan.argv.index("--system-prompt-file") + 1] == f"{CONFIG}/system-prompt.md"


def test_it_is_told_to_contact_nobody_else(claude: ClaudeCode) -> None:
    environment = claude.plan(attempt(profile="full")).environment
    quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "DISABLE_AUTOUPDATER", "DISABLE_TELEMETRY", "DISABLE_ERROR_REPORTING"}
    assert all(environment[name] == "1" for name in quiet)
    assert {environment[name] for name in environment if "MODEL" in name} == {"policy"}


def test_profiles_tools_and_steps(claude: ClaudeCode) -> None:
    lean = claude.plan(attempt(step_limit=7, model="m", arguments=["--effort", "low"], environment={"A": "b"}))
    assert lean.argv[lean.argv.index("--tools") + 1] == "Bash,Read,Edit,Write"
    assert lean.argv[lean.argv.index("--max-turns") + 1] == "7" and lean.argv[-2:] == ("--effort", "low")
    assert lean.environment["DISABLE_PROMPT_CACHING"] == "1" and lean.environment["CLAUDE_CODE_ATTRIBUTION_HEADER"] == "0"
    assert (lean.environment["ANTHROPIC_MODEL"], lean.environment["A"]) == ("m", "b")
    assert "--bare" in claude.plan(attempt(profile="bare")).argv
    full = claude.plan(attempt(profile="full"))
    assert "--tools" not in full.argv and "DISABLE_PROMPT_CACHING" not in full.environment
    assert "DISABLE_AUTO_COMPACT" not in full.environment
    assert claude.plan(attempt(compaction=False)).environment["DISABLE_AUTO_COMPACT"] == "1"


def test_wrong_settings_are_named(claude: ClaudeCode) -> None:
    with pytest.raises(ConfigurationError, match=r"harness claude-code: unknown key step_limits .*step_limit"):
        claude.plan(attempt(step_limits=5))
    with pytest.raises(ConfigurationError, match="profile"):
        claude.plan(attempt(profile="small"))


def said(**fields: object) -> str:
    end = {"type": "result", "subtype": "success", "is_error": False, "num_turns": 2, "result": "All done."} | fields
    return f"[claude-code:unrecognized_model]\n{json.dumps(end)}\n"


@pytest.mark.parametrize(
    ("code", "output", "expected"),
    [
        (0, said(), HarnessResult(exit_status="Completed", steps=2, message="All done.")),
        (
            1,
            said(
                subtype="error_max_turns", is_error=True, num_turns=4, result="", errors=["Reached maximum number of turns (3)"]
            ),
            HarnessResult(exit_status="TurnLimit", steps=3, message="Reached maximum number of turns (3)", ran_out="budget"),
        ),
        (
            1,
            said(is_error=True, num_turns=1, result="API Error: 500"),
            HarnessResult(exit_status="ApiError", steps=1, message="API Error: 500", crashed=True),
        ),
        (
            1,
            said(is_error=True, num_turns=2, result=CUT),
            HarnessResult(exit_status="OutputLimit", steps=2, message=CUT, ran_out="budget"),
        ),
        (
            0,  # the exit code and the subtype lie, is_error does not
            said(is_error=True, num_turns=1, result="Credit is too low"),
            HarnessResult(exit_status="ApiError", steps=1, message="Credit is too low", crashed=True),
        ),
        (
            1,
            said(is_error=True, num_turns=3, result="Prompt is too long \u00b7 6495 tokens", terminal_reason="prompt_too_long"),
            HarnessResult(
                exit_status="ContextWindowExceeded", steps=3, message="Prompt is too long \u00b7 6495 tokens", ran_out="budget"
            ),
        ),
        (
            1,
            said(subtype="error_during_execution", is_error=True, result="", errors=["it broke"]),
            HarnessResult(exit_status="error_during_execution", steps=2, message="it broke", crashed=True),
        ),
        (1, "Invalid API key\n", HarnessResult(exit_status="Exit1", message="Invalid API key\n", crashed=True)),
        (124, "", HarnessResult(exit_status="TimedOut", message="ended at its time limit", ran_out="time")),
        (0, "", HarnessResult(exit_status="Exit0", crashed=True)),
    ],
)
def test_what_its_end_means(claude: ClaudeCode, code: int, output: str, expected: HarnessResult) -> None:
    assert claude.result(code, output, None) == expected


def test_transcripts_become_one_document_with_its_sub_agents(claude: ClaudeCode) -> None:
    records = {
        f"{PROJECT}/{SESSION}.jsonl": (RECORDS / "claude-code-main.jsonl").read_bytes(),
        f"{PROJECT}/{SESSION}/subagents/{CHILD}.jsonl": (RECORDS / "claude-code-child.jsonl").read_bytes(),
    }
    told = read(claude.account("", records))
    assert told.session_id == SESSION
    first, second = turns(told)
    assert (first[0], first[1], second[0], second[1]) == ("I delegate.", ["Agent"], "Done, the file is written.", [])
    assert all(isinstance(count, int) and count > 0 for turn in (first, second) for count in turn[2:])
    (result,) = next(step.observation for step in told.steps if step.observation).results
    assert [reference.trajectory_id for reference in result.subagent_trajectory_ref or []] == [CHILD]
    (child,) = told.subagent_trajectories or []
    assert child.trajectory_id == CHILD
    assert [(text, tools) for text, tools, _, _ in turns(child)] == [("Child looks.", ["Bash"]), ("Child done.", [])]
    assert child.steps[0].source == "user" and child.steps[0].message == "CHILDTASK say done"


def test_blocks_of_one_turn_are_one_step_whatever_lies_between_them(claude: ClaudeCode) -> None:
    usage = {"input_tokens": 5, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 5, "output_tokens": 1}

    def block(part: dict[str, object], output: int, model: str = "policy", name: str = "m1") -> str:
        message = {
            "id": name,
            "role": "assistant",
            "model": model,
            "content": [part],
            "usage": usage | {"output_tokens": output},
        }
        return json.dumps({"type": "assistant", "message": message, "isApiErrorMessage": model == "<synthetic>"})

    given = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "one"}], "is_error": True}
    lines = [
        json.dumps({"type": "user", "message": {"role": "user", "content": "go"}}),
        block({"type": "thinking", "thinking": "two tools"}, 1),
        block({"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "a"}}, 1),
        json.dumps({"type": "user", "message": {"role": "user", "content": [given]}}),
        block({"type": "tool_use", "id": "t2", "name": "Bash", "input": {"command": "b"}}, 33),
        block({"type": "text", "text": "API Error: 500"}, 0, model="<synthetic>", name="m2"),
    ]
    told = read(claude.account("", {f"{PROJECT}/s.jsonl": "\n".join(lines).encode()}))
    assert turns(told) == [("", ["Bash", "Bash"], 100, 33), ("API Error: 500", [], None, None)]
    step = next(step for step in told.steps if step.source == "agent")
    assert step.reasoning_content == "two tools" and step.observation is not None
    assert [(one.source_call_id, one.content, one.extra) for one in step.observation.results] == [
        ("t1", "one", {"is_error": True})
    ]
    assert [step.llm_call_count for step in told.steps if step.source == "agent"] == [1, 0]


def test_without_a_transcript_there_is_no_account(claude: ClaudeCode) -> None:
    assert claude.account("anything", {}) is None
    assert claude.account("", {f"{PROJECT}/s/subagents/agent-1.jsonl": b""}) is None
