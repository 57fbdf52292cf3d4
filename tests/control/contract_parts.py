"""Adapters of the small agent in contract_agent.py."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from whippletree.configuration import Config
from whippletree.harnesses.atif_steps import Steps, counts
from whippletree.harnesses.packages import HOME, Adapter, interpreter, read_settings
from whippletree.harnesses.reading import tool_call
from whippletree.protocols import AttemptSpec, HarnessFacts, HarnessResult, LaunchPlan
from whippletree.traces.atif import Agent

AGENT = Path(__file__).with_name("contract_agent.py")
TURNS = f"{HOME}/turns.json"


class SmallSettings(Config):
    """Settings of the small agent."""

    mode: Literal["", "nosy", "careless", "hasty", "forgetful", "tireless"] = ""
    """How it misbehaves."""

    step_limit: int = 0
    """Model calls after which it ends with 75; 0: no limit."""


class Small(Adapter):
    """The agent as it should be, with the facts of it. It gives up where a prompt does not fit."""

    name = "small"
    version = "1"
    mode = ""
    settings = SmallSettings
    facts = HarnessFacts(dialects=("chat",), streams=False, shell_tool="sh", ends_at=("overflow",), variations=("steps",))

    def __init__(self) -> None:
        self.read_only = interpreter(sys.prefix, sys.base_prefix)

    def plan(self, spec: AttemptSpec) -> LaunchPlan:
        settings = read_settings(SmallSettings, spec, self.name)
        mode = settings.mode or self.mode
        return LaunchPlan(
            argv=(sys.executable, f"{HOME}/agent.py", mode, str(settings.step_limit)),
            environment={"HOME": HOME, "BASE_URL": spec.base_url, "KEY": spec.api_key},
            files=((f"{HOME}/agent.py", AGENT.read_text()),),
            stdin=spec.instruction,
            records=(TURNS,),
        )

    def result(self, exit_code: int, output: str, trajectory: bytes | None) -> HarnessResult:
        if exit_code == 75:
            return HarnessResult(exit_status="OutOfSteps", ran_out="budget")
        return HarnessResult(exit_status=f"Exit{exit_code}", crashed=exit_code != 0, message=output[-500:])

    def account(self, output: str, records: Mapping[str, bytes]) -> bytes | None:
        if TURNS not in records:
            return None
        steps = Steps()
        for turn in json.loads(records[TURNS]):
            calls = [
                tool_call(one["id"], one["function"]["name"], one["function"]["arguments"])
                for one in turn.get("tool_calls") or []
            ]
            metrics = msgspec.structs.replace(counts(0, 0), prompt_tokens=None, completion_tokens=None, cached_tokens=None)
            steps.turn(turn.get("content") or "", calls, metrics)
        return msgspec.json.encode(steps.trajectory(Agent(name=self.name, version=self.version)))


class Nosy(Small):
    """Looks for others."""

    mode = "nosy"


class Careless(Small):
    """Leaves a process behind."""

    mode = "careless"


class Hasty(Small):
    """Asks nothing a second time, and its facts know it."""

    mode = "hasty"
    facts = msgspec.structs.replace(Small.facts, ends_at=("429", "500", "drop", "overflow"))


class Boastful(Hasty):
    """The same, and its facts say otherwise."""

    facts = Small.facts


class Tireless(Small):
    """Knows no limit, whatever its facts say."""

    mode = "tireless"


class Forgetful(Small):
    """Changes its history."""

    mode = "forgetful"
