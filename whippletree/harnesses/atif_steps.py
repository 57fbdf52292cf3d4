"""Writing a harness's own record as ATIF: what the adapters share.

Invariants (tests/harnesses/test_atif_steps.py): step ids count from 1; a result is put to the latest step that made its call,
and stands alone where no step did; a step without token counts stands for no model call.
"""

from __future__ import annotations

from typing import Any

import msgspec

from whippletree.traces.atif import (
    VERSION,
    Agent,
    Metrics,
    Observation,
    ObservationResult,
    Source,
    Step,
    StepToolCall,
    SubagentRef,
    Trajectory,
)


class Steps:
    """The steps of one conversation, in the order in which they are added."""

    def __init__(self) -> None:
        self._steps: list[Step] = []
        self._calls: dict[str, int] = {}  # id of a tool call → place of its step

    def say(self, source: Source, text: str, timestamp: str | None = None) -> None:
        """A message that no model call made."""
        self._add(Step(step_id=0, source=source, message=text, timestamp=timestamp))

    def turn(
        self,
        text: str,
        calls: list[StepToolCall],
        metrics: Metrics | None,
        *,
        reasoning: str = "",
        timestamp: str | None = None,
        model: str | None = None,
    ) -> None:
        """A turn of the agent; without metrics it is one that no model call made."""
        self._add(
            Step(
                step_id=0,
                source="agent",
                message=text,
                timestamp=timestamp,
                model_name=model,
                reasoning_content=reasoning or None,
                tool_calls=calls or None,
                metrics=metrics,
                llm_call_count=0 if metrics is None else 1,
            )
        )
        self._calls |= {call.tool_call_id: len(self._steps) - 1 for call in calls}

    def observe(self, call_id: str, content: str, *, failed: bool = False) -> None:
        """What a tool call gave."""
        extra = {"is_error": True} if failed else None
        place = self._calls.get(call_id)
        if place is None:
            self.say("system", "")
            place = len(self._steps) - 1
        result = ObservationResult(source_call_id=call_id if call_id in self._calls else None, content=content, extra=extra)
        before = self._steps[place].observation
        results = [*before.results, result] if before is not None else [result]
        self._steps[place] = msgspec.structs.replace(self._steps[place], observation=Observation(results=results))

    def refer(self, call_id: str, trajectory_id: str) -> None:
        """Say that a tool call started the sub-agent of this trajectory; its result has been added."""
        place = self._calls.get(call_id)
        observed = self._steps[place].observation if place is not None else None
        if place is None or observed is None:
            return
        reference = [SubagentRef(trajectory_id=trajectory_id)]
        results = [
            msgspec.structs.replace(result, subagent_trajectory_ref=reference) if result.source_call_id == call_id else result
            for result in observed.results
        ]
        self._steps[place] = msgspec.structs.replace(self._steps[place], observation=Observation(results=results))

    def trajectory(
        self,
        agent: Agent,
        session_id: str | None = None,
        *,
        trajectory_id: str | None = None,
        subagents: list[Trajectory] | None = None,
    ) -> Trajectory:
        """The whole conversation."""
        return Trajectory(
            schema_version=VERSION,
            agent=agent,
            steps=list(self._steps),
            session_id=session_id,
            trajectory_id=trajectory_id,
            subagent_trajectories=subagents or None,
        )

    def _add(self, step: Step) -> None:
        self._steps.append(msgspec.structs.replace(step, step_id=len(self._steps) + 1))


def counts(prompt: int, sampled: int, cached: int = 0) -> Metrics:
    """Token counts of one model call."""
    return Metrics(prompt_tokens=prompt, completion_tokens=sampled, cached_tokens=cached)


def text_of(value: Any) -> str:
    """What a tool gave, as text: a text as it is, anything else as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
