"""The capture against the harness's own account of the run, call by call. Pure.

    FATAL  the capture is not what the harness worked with: do not train this rollout
    WARN   the tellings differ in a way that a harness may have caused (a dropped or repaired turn, its own token count)
    INFO   captured calls that no account is expected to tell of (side calls, retries, cut-off calls)

Invariants (tests/traces/test_traces_reconcile.py):
- an account that was exported from a trace has no finding above INFO against that trace;
- every model turn of the account is paired with a captured call or is a FATAL finding, and every captured call is paired or is
  a finding;
- sampled ids that differ are FATAL, wherever the account gives ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from whippletree.traces.alignment import Alignment, Turn, align, key_of, turns_of
from whippletree.traces.atif import Account, Trajectory
from whippletree.traces.tree import Node, Trace
from whippletree.types import Struct

Level = Literal["FATAL", "WARN", "INFO"]
RANK: tuple[Level, ...] = ("FATAL", "WARN", "INFO")
ROUNDING_TOKENS = 2
ROUNDING_SHARE = 0.02
NOTHING_CAME = ("no payload", "error", "nothing sampled", "undelivered", "superseded")


class Finding(Struct):
    """One difference. `code` names its kind; `step_id` is 0 and `call_id` "" where there is none; `trajectory` is the id of a
    sub-agent's trajectory, "" for the main one.

    Example: Finding(level="FATAL", code="not_captured", message="step 4 has no captured call", step_id=4)
    """

    level: Level
    code: str
    message: str
    call_id: str = ""
    step_id: int = 0
    trajectory: str = ""


class Pair(Struct):
    """A captured call and the step that tells of it. Example: Pair(call_id="c-3", step_id=4)"""

    call_id: str
    step_id: int
    trajectory: str = ""


class Reconciliation(Struct):
    """All findings, the gravest first, and the pairs. `turns` counts model turns of the account, `calls` captured ones.

    Example: Reconciliation(turns=3, calls=4, pairs=(Pair(...),), findings=(Finding(level="INFO", code="side_call", ...),))
    """

    turns: int
    calls: int
    pairs: tuple[Pair, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def worst(self) -> Level | None:
        """Level of the gravest finding; None where there is none."""
        return self.findings[0].level if self.findings else None


def reconcile(trace: Trace, account: Account) -> Reconciliation:
    """Compare a trace with a harness's account. Raises AlignmentError when a recorded reply cannot be read."""
    expected = [node for node in trace.nodes if node.role != "side" and node.excluded not in NOTHING_CAME]
    branches: dict[str, list[Node]] = {}
    for node in expected:
        branches.setdefault(node.conversation if _branch(node, trace) == "subagent" else "", []).append(node)
    turns = [turn for segment in account.segments for turn in turns_of(segment, "")]
    sides = [align(turns, branches.pop("", [])), *_subagents(account.subagents, branches)]
    held_back = [node for node in trace.nodes if node.role == "side" or node.excluded in NOTHING_CAME]
    findings = [finding for side in sides for finding in _unexpected(side, held_back)]
    for side in sides:
        findings += _differences(side)
        findings += [_found("FATAL", "not_captured", "it has no captured call", turn) for turn in side.turns]
    alone = [node for nodes in (*(side.nodes for side in sides), *branches.values(), held_back) for node in nodes]
    findings += [_not_told(node, bool(account.subagents)) for node in alone]
    findings += _totals(account, sides)
    return Reconciliation(
        turns=sum(len(side.turns) + len(side.pairs) for side in sides),
        calls=len(trace.nodes),
        pairs=tuple(
            Pair(call_id=node.call_id, step_id=turn.step.step_id, trajectory=turn.trajectory)
            for side in sides
            for turn, node in side.pairs
        ),
        findings=tuple(sorted(findings, key=lambda finding: RANK.index(finding.level))),
    )


def _branch(node: Node, trace: Trace) -> str:
    """The role of the conversation that a call is part of."""
    return trace.node(node.conversation).role if node.role == "compaction" else node.role


def _subagents(trajectories: Sequence[Trajectory], branches: dict[str, list[Node]]) -> list[Alignment]:
    """Align each sub-agent's trajectory with the captured conversation that it shares most turns with, which is taken out."""
    sides: list[Alignment] = []
    for number, trajectory in enumerate(trajectories, start=1):
        turns = turns_of(trajectory, trajectory.trajectory_id or f"sub-agent {number}")
        best = _most_alike(turns, branches)
        sides.append(align(turns, branches.pop(best, [])))
    return sides


def _most_alike(turns: Sequence[Turn], branches: Mapping[str, Sequence[Node]]) -> str:
    """The conversation that shares most turns with these; of several, the one whose ids and counts agree most ("" of none)."""
    keys = {turn.key for turn in turns}
    shared = {name: sum(key_of(node) in keys for node in nodes) for name, nodes in branches.items()}
    likely = [name for name, count in shared.items() if count == max(shared.values())]
    if len(likely) < 2:
        return likely[0] if likely else ""
    agreed = {name: align(turns, branches[name]).agreed for name in likely}
    return max(likely, key=lambda name: agreed[name])


def _unexpected(side: Alignment, held_back: list[Node]) -> list[Finding]:
    """Turns without a call are looked for among the calls that should not have come into the account; those are then paired."""
    findings: list[Finding] = []
    for turn in list(side.turns):
        same = [node for node in held_back if node.reply_json and key_of(node) == turn.key]
        if same:
            node = same[-1]
            held_back.remove(node)
            side.turns.remove(turn)
            side.pairs.append((turn, node))
            what = "a side call" if node.role == "side" else f"one that is left out ({node.excluded})"
            findings.append(_found("WARN", "unexpected", f"it tells of a call that was taken for {what}", turn, node))
    return findings


def _differences(side: Alignment) -> list[Finding]:
    """What differs within the pairs. The metrics of a step that stands for several calls are their sums."""
    findings: list[Finding] = []
    together: dict[int, list[Node]] = {}
    for turn, node in side.pairs:
        together.setdefault(id(turn.step), []).append(node)
        if turn.last:
            nodes = together.pop(id(turn.step))
            findings += [*_told_otherwise(turn, node), *_ids(turn, nodes), *_counts(turn, nodes)]
    return findings


def _told_otherwise(turn: Turn, node: Node) -> list[Finding]:
    own = key_of(node)
    findings: list[Finding] = []
    if not node.reply_json or own == turn.key:
        return findings
    if turn.key.text != own.text:
        what = f"its text is {turn.key.text[:60]!r}, captured was {own.text[:60]!r}"
        findings.append(_found("WARN", "text", what, turn, node))
    if turn.key.calls != own.calls:
        names, sampled = [name for name, _ in turn.key.calls], [name for name, _ in own.calls]
        what = f"its tool calls are {names}, captured were {sampled}" if names != sampled else f"arguments of {names} differ"
        findings.append(_found("WARN", "tool_calls", what, turn, node))
    return findings


def _ids(turn: Turn, nodes: Sequence[Node]) -> list[Finding]:
    """Ids can be compared where the step stands for one call, and both sides have them."""
    metrics, node = turn.step.metrics, nodes[-1]
    if metrics is None or len(nodes) > 1 or node.prompt is None:
        return []
    findings: list[Finding] = []
    for code, told, own in (
        ("sampled_ids", metrics.completion_token_ids, node.sampled_ids.tolist()),
        ("prompt_ids", metrics.prompt_token_ids, node.prompt_ids.tolist() if metrics.prompt_token_ids else []),
    ):
        if told and told != own:
            pairs = enumerate(zip(told, own, strict=False))
            place = next((place for place, (one, other) in pairs if one != other), min(len(told), len(own)))
            findings.append(_found("FATAL", code, f"they differ from place {place} on", turn, node))
    return findings


def _counts(turn: Turn, nodes: Sequence[Node]) -> list[Finding]:
    """Token counts. With ids beside it a count settles nothing, and what a harness counts of its prompt is its own affair."""
    metrics = turn.step.metrics
    if metrics is None:
        return []
    findings: list[Finding] = []
    sampled, prompt = sum(node.call.sampled_tokens for node in nodes), sum(node.call.prompt_tokens for node in nodes)
    if metrics.completion_tokens is not None and metrics.completion_tokens != sampled:
        near = abs(metrics.completion_tokens - sampled) <= max(ROUNDING_TOKENS, ROUNDING_SHARE * sampled)
        level: Level = "WARN" if near or metrics.completion_token_ids else "FATAL"
        what = f"it counts {metrics.completion_tokens} sampled tokens, captured were {sampled}"
        findings.append(_found(level, "completion_tokens", what, turn, nodes[-1]))
    if metrics.prompt_tokens is not None and metrics.prompt_tokens != prompt:
        what = f"it counts {metrics.prompt_tokens} prompt tokens, captured were {prompt}"
        findings.append(_found("WARN", "prompt_tokens", what, turn, nodes[-1]))
    return findings


def _not_told(node: Node, subagents_told: bool) -> Finding:
    """A captured call that no turn of the account was paired with."""
    if node.role == "side":
        return _found("INFO", "side_call", "a side call, not in the account", node=node)
    if node.excluded in NOTHING_CAME:
        code = (
            "retry" if node.excluded == "superseded" else "aborted" if node.call.finish_reason == "abort" else "came_to_nothing"
        )
        return _found("INFO", code, f"not in the account: {node.excluded}", node=node)
    if node.role == "compaction":
        return _found("INFO", "compaction", "a compaction, not in the account", node=node)
    if node.role == "subagent" and not subagents_told:
        return _found("INFO", "subagent", "a sub-agent's call, and the account has no sub-agents", node=node)
    return _found("WARN", "not_told", "captured, but not in the account", node=node)


def _totals(account: Account, sides: Sequence[Alignment]) -> list[Finding]:
    """The account's own sums against its own steps: a harness that lost steps may still have counted them."""
    findings: list[Finding] = []
    for segment in account.segments:
        final = segment.final_metrics
        steps = [step.metrics for step in segment.steps if step.metrics is not None and not step.is_copied_context]
        told = sum(metrics.completion_tokens or 0 for metrics in steps)
        if final is not None and final.total_completion_tokens is not None and steps and final.total_completion_tokens > told:
            what = f"its total is {final.total_completion_tokens} sampled tokens, its steps have {told}"
            findings.append(_found("WARN", "total", what))
    turns = sum(len(side.turns) + len(side.pairs) for side in sides)
    calls = sum(len(side.pairs) + sum(node.role != "compaction" for node in side.nodes) for side in sides)
    if turns != calls:
        findings.append(_found("WARN", "turn_count", f"the account has {turns} model turns, captured were {calls}"))
    return findings


def _found(level: Level, code: str, what: str, turn: Turn | None = None, node: Node | None = None) -> Finding:
    """A finding in words that begin with what it is about."""
    about = f"step {turn.step.step_id}" if turn is not None else f"call {node.call.index}" if node is not None else "account"
    if turn is not None and turn.trajectory:
        about += f" of {turn.trajectory}"
    return Finding(
        level=level,
        code=code,
        message=f"{about}: {what}",
        call_id=node.call_id if node is not None else "",
        step_id=turn.step.step_id if turn is not None else 0,
        trajectory=turn.trajectory if turn is not None else "",
    )
