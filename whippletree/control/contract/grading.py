"""What was seen against what the adapter's facts say: runs in, lines out. Pure.

    as wanted, and the facts do not say otherwise    pass
    otherwise, and the facts say so                   differs
    what was seen is not what the facts say           FAIL
    it cannot be seen of this harness, or here        not applicable
    what it needs was left out (--only)               not run

Invariants (tests/control/test_contract_report.py): every point has exactly one line, in the order of POINTS; a scenario that
could not be run fails the points that need it, with its error; every scenario is needed by a point.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

from whippletree.control.contract.report import Line
from whippletree.control.contract.scenarios import DIALECTS, STEPS
from whippletree.control.contract.seen import Seen, absent, graded, main_nodes, measured, told
from whippletree.control.contract.tap import Asked
from whippletree.control.contract.world import Run
from whippletree.protocols import HarnessFacts

_COUNTING = ("counttokens", "count_tokens")
_WHOLE = ("plain", "parallel", "arguments", "steps", "two-at-once")  # scenarios in which no reply is refused or cut off
_TROUBLE = {
    "bad arguments": "arguments",
    "429": "429",
    "500": "500",
    "stream drop": "drop",
    "context overflow": "overflow",
}
NEEDS: dict[str, tuple[str, ...]] = {
    "reaches us only": ("plain",),
    "dialect": ("plain",),
    "other dialects": tuple(f"dialect-{name}" for name in DIALECTS),
    "streaming": ("plain",),
    "captured, delivered": ("plain",),
    "side calls": ("plain",),
    "tool call": ("plain",),
    "parallel calls": ("parallel",),
    **{point: (name,) for point, name in _TROUBLE.items()},
    "second request": ("plain", "extending"),
    "compaction": ("compaction",),
    "sub-agents": ("subagent",),
    "step limit": ("steps",),
    "trajectory": ("plain",),
    "clean exit": ("plain",),
    "two at once": ("two-at-once",),
    "cost": ("plain",),
}
"""The points, in the order of a report, and the scenarios that each needs; some are judged over whatever else was run, too."""
POINTS = tuple(NEEDS)


def grade(facts: HarnessFacts, runs: dict[str, Sequence[Run]], skipped: Collection[str] = ()) -> tuple[Line, ...]:
    """A line for each point of the contract. `skipped`: names of scenarios that apply and were not asked for."""
    seen = Seen(facts, runs, skipped)
    lines = [_reach(seen), _dialect(seen), _other_dialects(seen), _streaming(seen), _captured(seen), _side_calls(seen)]
    lines += [_tool_call(seen), _parallel(seen), *(_trouble(point, seen) for point in _TROUBLE), _extends(seen)]
    lines += [_compaction(seen), _subagents(seen), _step_limit(seen), _reconciled(seen), _clean_exit(seen)]
    return (*lines, _two_at_once(seen), _cost(seen))


def _reach(seen: Seen) -> Line:
    def look(runs: Sequence[tuple[str, Run]]) -> Line:
        if any(run.unrouted is None or run.lookups is None for _, run in runs):
            isolates = all(run.unrouted is not None for _, run in runs)
            why = "only root can see name look-ups in a sandbox" if isolates else "nothing isolates the network"
            return absent("reaches us only", why)
        unrouted = sum(run.unrouted or 0 for _, run in runs)
        names = sorted({name for _, run in runs for name in run.lookups or ()})
        strange = sorted({f"{asked.method} {asked.path}" for _, run in runs for asked in run.asked if asked.status == 404})
        words = f"{unrouted} packets elsewhere, {len(names)} names looked up in {len(runs)} runs"
        words += f": {', '.join(names[:5])}" if names else ""
        words += f"; unknown paths: {', '.join(strange)}" if strange else ""
        return graded(
            "reaches us only", not unrouted and not names, words, "switch off what looks for updates or reports usage"
        )

    return seen.any("reaches us only", look)


def _dialect(seen: Seen) -> Line:
    def look(run: Run) -> Line:
        dialects = sorted({call.dialect for call in run.calls})
        return graded("dialect", dialects == [seen.facts.dialects[0]], ", ".join(dialects) or "no call came")

    return seen.of("dialect", "plain", look)


def _other_dialects(seen: Seen) -> Line:
    others = {name.removeprefix("dialect-"): run for name, run in seen.all() if name.startswith("dialect-")}
    left_out = [name for name in seen.skipped if name.startswith("dialect-")]
    if not others:
        if left_out:
            return Line(point="other dialects", grade="not run", seen=f"needs {', '.join(left_out)}")
        return absent("other dialects", "it speaks one")
    wrong = {}
    for name, run in others.items():
        dialects = {call.dialect for call in run.calls}
        if not run.did_its_job or not run.ended_well or dialects != {name}:
            wrong[name] = f"{', '.join(sorted(dialects)) or 'no call'}; {told(run)}"
    words = (
        "; ".join(f"{name}: {why}" for name, why in wrong.items()) if wrong else f"{', '.join(others)}: the same run in each"
    )
    return graded("other dialects", not wrong, words)


def _streaming(seen: Seen) -> Line:
    def look(run: Run) -> Line:
        streamed = [node.call.streamed for node in main_nodes(run)]
        held = bool(streamed) and all(one == seen.facts.streams for one in streamed)
        return graded("streaming", held, f"{sum(streamed)} of {len(streamed)} calls streamed")

    return seen.of("streaming", "plain", look)


def _captured(seen: Seen) -> Line:
    """Every reply that a harness got whole is on the record, and delivered. Runs with faults hold calls that were cut off."""

    def look(runs: Sequence[tuple[str, Run]]) -> Line:
        answered = {id(run): len(_answered(run.asked)) for _, run in runs}
        lost = [
            f"{name}: {answered[id(run)]} requests, {len(run.calls)} calls, {_undelivered(run)} of them not delivered"
            for name, run in runs
            if answered[id(run)] != len(run.calls) or _undelivered(run)
        ]
        calls = sum(len(run.calls) for _, run in runs)
        words = "; ".join(lost) or f"{sum(answered.values())} requests, {calls} calls, all delivered"
        return graded("captured, delivered", not lost, words, "look at the gateway's log: a reply was not read to its end")

    return seen.any("captured, delivered", look, _WHOLE)


def _answered(asked: Sequence[Asked]) -> list[Asked]:
    posts = [one for one in asked if one.method == "POST" and one.status == 200]
    return [one for one in posts if not any(word in one.path.lower() for word in _COUNTING)]


def _undelivered(run: Run) -> int:
    return sum(bool(call.error or not call.delivered) for call in run.calls)


def _side_calls(seen: Seen) -> Line:
    kinds = seen.facts.side_calls

    def look(run: Run) -> Line:
        sides = sum(node.role == "side" for node in run.trace.nodes)
        said = f", as said: {', '.join(kinds)}" if kinds and sides else ""
        return graded("side calls", bool(sides) == bool(kinds), f"{sides} beside the main ones{said}", wanted=not sides)

    return seen.of("side calls", "plain", look)


def _tool_call(seen: Seen) -> Line:
    if not seen.facts.shell_tool and not seen.facts.probe.edit:
        return absent("tool call", "it offers the model no tool")
    return seen.of("tool call", "plain", lambda run: _job("tool call", run))


def _parallel(seen: Seen) -> Line:
    if not seen.facts.shell_tool:
        return absent("parallel calls", "it offers the model no tool")
    return seen.of("parallel calls", "parallel", lambda run: _job("parallel calls", run))


def _job(point: str, run: Run) -> Line:
    """A scenario without trouble: everything ran, and the run ended by itself."""
    ran = f"{len(run.written)} of {len(run.scenario.writes)} files written"
    return graded(point, run.did_its_job and run.ended_well, f"{ran}; {told(run)}")


def _trouble(point: str, seen: Seen) -> Line:
    """It goes on and does its job, or gives up in good order where the facts say that it does."""
    name, facts = _TROUBLE[point], seen.facts
    gives_up = name in facts.ends_at

    def look(run: Run) -> Line:
        met = run.overflowed if name == "overflow" else name == "arguments" or any(one.fault for one in run.asked)
        if not met:
            return graded(point, False, "the trouble did not come about", "look at what it asked, with --keep")
        tries = f"{len(run.asked)} requests"
        if run.did_its_job and run.ended_well:
            return graded(point, not gives_up, f"it went on and did its job, {tries}; {told(run)}")
        return graded(point, gives_up and not run.end.timed_out, f"it gave up, {tries}; {told(run)}", wanted=False)

    if name == "arguments" and not facts.shell_tool and not facts.probe.bad_edit:
        return absent(point, "it offers the model no tool")
    return seen.of(point, name, look)


def _extends(seen: Seen) -> Line:
    said = seen.facts.second_request

    def look(run: Run) -> Line:
        main = main_nodes(run)
        if len(main) < 2:
            again = next((_follows(other) for name, other in seen.all() if len(main_nodes(other)) > 1), "")
            words = f"{len(main)} request" + (f"; where there are more: {again}" if again else "")
            return graded("second request", said == "single", words, wanted=False)
        words = _follows(run)
        if said == "breaks":
            return _mended(seen, words)
        held = not words.startswith("breaks") and said != "single"
        return graded("second request", held, words + ("" if words.startswith("breaks") else f" ({said})"))

    return seen.of("second request", "plain", look)


def _mended(seen: Seen, by_default: str) -> Line:
    """Where the facts say that the prefix breaks by default: so it must, and must not under the settings of `extending`."""
    chosen = " ".join(f"{key}={value!r}" for key, value in seen.facts.probe.extending.items())
    if not chosen:
        return graded("second request", by_default.startswith("breaks"), by_default, wanted=False)

    def look(run: Run) -> Line:
        words = _follows(run)
        held = by_default.startswith("breaks") and not words.startswith("breaks") and len(main_nodes(run)) > 1
        return graded("second request", held, f"by default {by_default}; with {chosen} {words}", wanted=False)

    return seen.of("second request", "extending", look)


def _follows(run: Run) -> str:
    """Whether each main request goes on from the one before it, in words."""
    pairs = itertools.pairwise(main_nodes(run))
    breaks = [second.call.prefix_break for first, second in pairs if second.parent != first.call_id]
    return f"breaks: {', '.join(breaks)}" if breaks else "it goes on from the first's exact ids"


def _compaction(seen: Seen) -> Line:
    def look(run: Run) -> Line:
        summaries = [node for node in run.trace.nodes if node.role == "compaction"]
        main = main_nodes(run)
        held = bool(summaries) and len(main) + len(summaries) == len(run.calls) and run.did_its_job and run.ended_well
        words = f"{len(summaries)} compactions and {len(main)} main calls of {len(run.calls)}; {told(run)}"
        return graded("compaction", held, words)

    if not seen.facts.compacts:
        return absent("compaction", "it never shortens its history")
    if not seen.facts.probe.compaction or not seen.facts.shell_tool:
        return absent("compaction", "no settings bring it about in a short run")
    return seen.of("compaction", "compaction", look)


def _subagents(seen: Seen) -> Line:
    def look(run: Run) -> Line:
        theirs = [node for node in run.trace.nodes if node.role == "subagent"]
        mains = {node.conversation for node in run.trace.nodes if node.role == "main"}
        held = bool(theirs) and len(mains) == 1 and run.did_its_job and run.ended_well
        return graded("sub-agents", held, f"{len(theirs)} of {len(run.calls)} calls are a sub-agent's; {told(run)}")

    if not seen.facts.subagents:
        return absent("sub-agents", "it has none")
    if not seen.facts.probe.subagent_tool:
        return absent("sub-agents", "no single call starts one")
    return seen.of("sub-agents", "subagent", look)


def _step_limit(seen: Seen) -> Line:
    """It ends as out of budget after so many calls, all of them on the record, and what its commands did is there."""

    def look(run: Run) -> Line:
        result, calls = run.end.result, len(main_nodes(run))
        whole = len(_answered(run.asked)) == len(run.calls) and not _undelivered(run) and calls == len(run.calls)
        ended = result.ran_out == "budget" and not result.crashed and not run.end.timed_out and run.end.cause is None
        held = ended and whole and calls == STEPS and run.written == run.scenario.writes
        words = f"{calls} of {len(run.calls)} calls are main ones at a limit of {STEPS}; {told(run)}"
        return graded("step limit", held, f"{words}, ran out of {result.ran_out or 'nothing'}")

    if "steps" not in seen.facts.variations or not seen.facts.shell_tool:
        return absent("step limit", "it has none" if "steps" not in seen.facts.variations else "it offers the model no tool")
    return seen.of("step limit", "steps", look)


def _reconciled(seen: Seen) -> Line:
    def look(runs: Sequence[tuple[str, Run]]) -> Line:
        if not any(run.told is not None for _, run in runs):
            return absent("trajectory", "it keeps no record that is read")
        worse: list[str] = []
        expected: list[str] = []
        turns = pairs = 0
        for name, run in runs:
            if run.told is None:
                worse += [f"{name}: no record"] if run.calls else []
                continue
            turns, pairs = turns + run.told.turns, pairs + len(run.told.pairs)
            grave = [finding for finding in run.told.findings if finding.level != "INFO"]
            found = [f"{name}: {finding.level} {finding.message}" for finding in grave]
            (expected if name in seen.facts.record_differs else worse).extend(found)
        words = "; ".join(worse[:4] or expected[:2])
        words = words or f"{turns} turns of its record, {pairs} paired with captured calls, none differs"
        advice = "mend the adapter's account(), or look for calls that were not captured"
        return graded("trajectory", not worse, words, advice, wanted=not expected)

    return seen.any("trajectory", look)


def _clean_exit(seen: Seen) -> Line:
    def look(run: Run) -> Line:
        left = run.usage.processes if run.usage is not None else 0
        words = f"{told(run)}, {left} processes left"
        return graded("clean exit", run.ended_well and not left, words, "look at agent.log, with --keep")

    return seen.of("clean exit", "plain", look)


def _two_at_once(seen: Seen) -> Line:
    pair = list(seen.runs.get("two-at-once", ()))

    def look(_: Run) -> Line:
        broken = next((run.error for run in pair if run.error), "")
        if broken or len(pair) != 2:
            return graded("two at once", False, broken or "one of the two was not run", "mend that first")
        well = all(run.did_its_job and run.ended_well for run in pair)
        mixed = [run.token for run, other in zip(pair, pair[::-1], strict=True) if _mentions(run, other.token)]
        words = f"{len(pair[0].calls)} and {len(pair[1].calls)} calls, {'mixed' if mixed else 'apart'}; "
        return graded("two at once", well and not mixed, words + "; ".join(told(run) for run in pair))

    return seen.of("two at once", "two-at-once", look)


def _mentions(run: Run, token: str) -> bool:
    return any(token.encode() in node.messages_json for node in run.trace.nodes)


def _cost(seen: Seen) -> Line:
    def look(run: Run) -> Line:
        found = measured(run)
        memory = "memory not counted" if found.peak_mb is None else f"{found.peak_mb} MiB"
        words = f"{found.start_seconds:.1f} s to the first request, {found.cpu_seconds:.1f} CPU-seconds, {memory}"
        return Line(point="cost", grade="pass", seen=words)

    return seen.of("cost", "plain", look)
