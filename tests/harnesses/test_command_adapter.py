"""The generic command adapter: what it launches, what it refuses, what it makes of the end."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import msgspec
import pytest
from adapter_parts import KEY, attempt

from whippletree.errors import ConfigurationError, HarnessError
from whippletree.harnesses import load_harness
from whippletree.harnesses.command import Command
from whippletree.protocols import ConfiguredHarness, Harness, HarnessResult
from whippletree.traces.atif import Agent, Step, Trajectory

spec = partial(attempt, "Say {api_key} and {model}.")


def configured(**settings: Any) -> Command:
    return Command().configured({"argv": ["/bin/agent"], **settings})


def test_it_is_a_harness_that_is_configured_per_source() -> None:
    harness = load_harness("command")
    assert isinstance(harness, Harness) and isinstance(harness, ConfiguredHarness)
    assert harness.read_only == ()
    mine = harness.configured({"argv": ["/opt/x/run"], "read_only": [["/srv/x", "/opt/x"]]})
    assert mine.read_only == (("/srv/x", "/opt/x"),)


def test_placeholders_are_filled_once_and_other_braces_are_text() -> None:
    plan = Command().plan(
        spec(
            argv=[
                "/bin/agent",
                "--url={base_url}",
                "{root_url}/x",
                "{model}",
                "{workdir}",
                "{output_dir}",
                '{"a": {}}',
                "{instruction}",
            ],
            environment={"A_KEY": "Bearer {api_key}", "M": "{model}"},
            files={"/home/agent/.agent/config.toml": 'key = "{api_key}"', "/app/x.json": '{"model": "{model}"}'},
            stdin="{instruction}",
            trajectory="/logs/agent/t.json",
        )
    )
    assert plan.argv[1:7] == (
        "--url=http://127.0.0.1:8000/v1",
        "http://127.0.0.1:8000/x",
        "policy",
        "/app",
        "/logs/agent",
        '{"a": {}}',
    )
    assert plan.argv[7] == "Say {api_key} and {model}." == plan.stdin  # an instruction cannot ask for the key
    assert plan.environment == {
        "HOME": "/home/agent",
        "OPENAI_BASE_URL": "http://127.0.0.1:8000/v1",
        "OPENAI_API_KEY": KEY,
        "A_KEY": f"Bearer {KEY}",
        "M": "policy",
    }
    assert dict(plan.files) == {"/home/agent/.agent/config.toml": f'key = "{KEY}"', "/app/x.json": '{"model": "policy"}'}
    assert plan.trajectory == "/logs/agent/t.json"
    assert KEY not in " ".join(plan.argv) + plan.stdin


@pytest.mark.parametrize(
    ("dialect", "variables"),
    [
        ("responses", {"OPENAI_BASE_URL": "http://127.0.0.1:8000/v1", "OPENAI_API_KEY": KEY}),
        ("messages", {"ANTHROPIC_BASE_URL": "http://127.0.0.1:8000", "ANTHROPIC_API_KEY": KEY}),
        ("gemini", {"GOOGLE_GEMINI_BASE_URL": "http://127.0.0.1:8000", "GEMINI_API_KEY": KEY}),
    ],
)
def test_each_dialect_has_its_variables(dialect: str, variables: dict[str, str]) -> None:
    plan = Command().plan(spec(argv=["/bin/agent", "{base_url}"], dialect=dialect))
    assert plan.environment == {"HOME": "/home/agent"} | variables
    assert plan.argv[1] == next(value for name, value in variables.items() if name.endswith("URL"))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"argv": ["/bin/agent", "--key={api_key}"]}, "argv holds {api_key}"),
        ({"argv": ["/bin/agent"], "stdin": "{api_key}"}, "stdin holds {api_key}"),
        ({"argv": ["/bin/agent"], "files": {"/app/key": "{api_key}"}}, "not below /home/agent"),
        ({"argv": ["/bin/agent"], "files": {"/home/agent/../../app/key": "{api_key}"}}, "not below /home/agent"),
        ({"argv": ["/bin/agent"], "files": {"config": "x"}}, "no absolute path inside"),
        ({"argv": ["/bin/agent"], "read_only": [["agent", "/opt/agent"]]}, "no absolute path of this machine"),
        ({"argv": []}, "argv is missing"),
        ({"argv": ["/bin/agent"], "sucess_codes": [0]}, "success_codes"),
        ({"argv": ["/bin/agent"], "dialect": "chta"}, "chat"),
    ],
)
def test_wrong_settings_are_refused_with_their_names(settings: dict[str, Any], words: str) -> None:
    for refusing in (lambda: Command().configured(settings), lambda: Command().plan(spec(**settings))):
        with pytest.raises(ConfigurationError, match=r"harness command") as refused:
            refusing()
        assert words in str(refused.value)


def test_exit_codes_mean_what_the_settings_say() -> None:
    plain = configured()
    assert plain.result(0, "done\n", None) == HarnessResult(exit_status="Done", message="done\n")
    assert plain.result(3, "oops", None) == HarnessResult(exit_status="Exit3", message="oops", crashed=True)
    told = configured(success_codes=[0, 10], crash_codes=[1], budget_codes=[75])
    assert not told.result(10, "", None).crashed
    assert told.result(1, "", None).crashed
    assert told.result(75, "", None) == HarnessResult(exit_status="Exit75", ran_out="budget")
    assert told.result(4, "", None) == HarnessResult(exit_status="Exit4")
    assert told.result(-9, "", None) == HarnessResult(exit_status="Exit-9")


def test_its_own_trajectory_is_checked_and_counted() -> None:
    steps = [Step(step_id=1, source="user", message="go"), Step(step_id=2, source="agent", message="ok")]
    record = msgspec.json.encode(Trajectory(schema_version="ATIF-v1.8", agent=Agent(name="x", version="1"), steps=steps))
    harness = configured(trajectory="/logs/agent/t.json")
    assert harness.account("", {"/logs/agent/t.json": record, "/logs/agent/other": b"x"}) == record
    assert harness.account("", {}) is None
    assert harness.result(0, "", record).steps == 1
    assert harness.result(0, "", b"{not json").steps == 0
    with pytest.raises(HarnessError, match=r"/logs/agent/t\.json"):
        harness.account("", {"/logs/agent/t.json": json.dumps({"steps": 1}).encode()})
    with pytest.raises(HarnessError, match="no settings"):
        Command().result(0, "", None)
