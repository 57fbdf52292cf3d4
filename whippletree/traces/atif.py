"""Harbor's Agent Trajectory Interchange Format (ATIF) v1.8, typed, and reading it.

A harness's own account of a run: steps of the user, the system and the agent; an agent step is one model turn with its tool
calls, what they gave, and the tokens it says it used. Sub-agents are trajectories of their own, within the document or in a
file beside it; a summarised run goes on in another file.

Invariants (tests/traces/test_traces_atif.py):
- any 1.x document is read, unknown fields are ignored, and what is read is written back equal;
- a document that cannot be used is a HarnessError that names the file and the place;
- files that a document refers to are read only from its own folder or below, each once, and only so many.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from whippletree.errors import HarnessError
from whippletree.types import Struct

VERSION = "ATIF-v1.8"
MOST_FILES = 200
Source = Literal["system", "user", "agent"]


class MediaSource(Struct):
    """Where an image or sound lies, a path or URL. Example: MediaSource(media_type="image/png", path="images/1.png")"""

    media_type: str
    path: str
    duration_sec: float | None = None


class ContentPart(Struct):
    """A part of a message. Example: ContentPart(type="text", text="hello")"""

    type: str
    text: str | None = None
    source: MediaSource | None = None


Content = str | list[ContentPart]


class StepToolCall(Struct):
    """A tool call. Example: StepToolCall(tool_call_id="call_1", function_name="bash", arguments={"command": "ls"})"""

    tool_call_id: str
    function_name: str
    arguments: dict[str, Any] | str
    extra: dict[str, Any] | None = None


class SubagentRef(Struct):
    """Where a sub-agent's trajectory is: in this document by id, or in a file. Example: SubagentRef(trajectory_id="c-4")"""

    trajectory_id: str | None = None
    trajectory_path: str | None = None
    session_id: str | None = None
    extra: dict[str, Any] | None = None


class ObservationResult(Struct):
    """What a tool call, or an event without one, gave. Example: ObservationResult(source_call_id="call_1", content="a.txt")"""

    source_call_id: str | None = None
    content: Content | None = None
    subagent_trajectory_ref: list[SubagentRef] | None = None
    extra: dict[str, Any] | None = None


class Observation(Struct):
    """What the environment said after a step. Example: Observation(results=[ObservationResult(content="a.txt")])"""

    results: list[ObservationResult]


class Metrics(Struct):
    """What a step used; `cached_tokens` are among `prompt_tokens`.

    Example: Metrics(prompt_tokens=120, completion_tokens=18, completion_token_ids=[5, 7, 2], logprobs=[-0.1, -0.2, -0.3])
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    cost_usd: float | None = None
    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    extra: dict[str, Any] | None = None


class Step(Struct):
    """One turn. `llm_call_count`: model calls that it stands for (0: none; over 1: metrics are their sums).

    Example: Step(step_id=2, source="agent", message="Let me look.", tool_calls=[StepToolCall(...)], metrics=Metrics(...))
    """

    step_id: int
    source: Source
    message: Content
    timestamp: str | None = None
    model_name: str | None = None
    reasoning_effort: str | float | None = None
    reasoning_content: str | None = None
    tool_calls: list[StepToolCall] | None = None
    observation: Observation | None = None
    metrics: Metrics | None = None
    llm_call_count: int | None = None
    is_copied_context: bool | None = None
    extra: dict[str, Any] | None = None


class Agent(Struct):
    """Who acted. Example: Agent(name="mini-swe-agent", version="2.4.6", model_name="policy")"""

    name: str
    version: str
    model_name: str | None = None
    tool_definitions: list[dict[str, Any]] | None = None
    extra: dict[str, Any] | None = None


class FinalMetrics(Struct):
    """Sums over the steps. Example: FinalMetrics(total_prompt_tokens=420, total_completion_tokens=60, total_steps=5)"""

    total_prompt_tokens: int | None = None
    total_completion_tokens: int | None = None
    total_cached_tokens: int | None = None
    total_cost_usd: float | None = None
    total_steps: int | None = None
    extra: dict[str, Any] | None = None


class Trajectory(Struct):
    """One document. What the format requires has no default, so that it is always written.

    Example: Trajectory(schema_version="ATIF-v1.8", agent=Agent(...), steps=[Step(...)])
    """

    schema_version: str
    agent: Agent
    steps: list[Step]
    session_id: str | None = None
    trajectory_id: str | None = None
    notes: str | None = None
    final_metrics: FinalMetrics | None = None
    continued_trajectory_ref: str | None = None
    subagent_trajectories: list[Trajectory] | None = None
    extra: dict[str, Any] | None = None


class Account(Struct):
    """A harness's whole account of a run: the main trajectory in its segments, oldest first, and its sub-agents' trajectories.

    Example: Account(segments=(Trajectory(...),), subagents=(Trajectory(...),))
    """

    segments: tuple[Trajectory, ...]
    subagents: tuple[Trajectory, ...] = ()


def read_trajectory(data: bytes, name: str = "trajectory.json") -> Trajectory:
    """One document from its JSON. Raises HarnessError that names the file."""
    try:
        trajectory = msgspec.json.decode(data, type=Trajectory)
    except msgspec.DecodeError as error:
        raise HarnessError(f"{name} is no ATIF document: {error}", "check what the harness wrote") from error
    if not trajectory.schema_version.startswith("ATIF-v1."):
        raise HarnessError(f"{name} has version {trajectory.schema_version!r}", "only ATIF-v1.x is read")
    for number, step in enumerate(trajectory.steps, start=1):
        if step.step_id != number:
            raise HarnessError(f"{name}: step {number} calls itself {step.step_id}", "step ids count from 1 without a gap")
    return trajectory


def read_account(path: Path) -> Account:
    """A document and what it refers to. Raises HarnessError; a sub-agent's file that is not there is passed over."""
    segments = [_read_file(path, path.parent)]
    seen = {path.resolve()}
    while segments[-1].continued_trajectory_ref:
        following = _beside(path, segments[-1].continued_trajectory_ref)
        if following in seen or len(seen) >= MOST_FILES:
            raise HarnessError(f"{path}: its continuations do not end", "check what the harness wrote")
        seen.add(following)
        segments.append(_read_file(following, path.parent))
    subagents: list[Trajectory] = []
    waiting = list(reversed(segments))
    while waiting:
        trajectory = waiting.pop()
        found = list(trajectory.subagent_trajectories or [])
        for reference in _references(trajectory):
            file = _beside(path, reference.trajectory_path) if reference.trajectory_path else None
            if file is not None and file not in seen and file.is_file() and len(seen) < MOST_FILES:
                seen.add(file)
                found.append(_read_file(file, path.parent))
        subagents += found
        waiting += found
    return Account(segments=tuple(segments), subagents=tuple(subagents))


def _references(trajectory: Trajectory) -> list[SubagentRef]:
    observed = [step.observation for step in trajectory.steps if step.observation is not None]
    results = [result for observation in observed for result in observation.results]
    return [reference for result in results for reference in result.subagent_trajectory_ref or []]


def _beside(path: Path, name: str) -> Path:
    """The file that a document names. A harness chose the name, so it must not lead out of the document's folder."""
    folder = path.parent.resolve()
    found = (folder / name).resolve()
    if not found.is_relative_to(folder):
        raise HarnessError(f"{path} refers to {name!r}, which is outside its folder", "such files are not read")
    return found


def _read_file(path: Path, folder: Path) -> Trajectory:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise HarnessError(f"cannot read {path}: {error.strerror}", f"the harness should leave it in {folder}") from error
    return read_trajectory(data, str(path))


def content_text(content: Content | None) -> str:
    """The text of a message; other parts stand in it as their kind, in brackets."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text if part.text is not None else f"[{part.type}]" for part in content)
