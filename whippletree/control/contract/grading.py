"""What was seen against what the adapter's facts say: runs in, lines out. Pure.

    as wanted, and the facts do not say otherwise    pass
    otherwise, and the facts say so                   differs
    what was seen is not what the facts say           FAIL
    it cannot be seen of this harness, or here        not applicable

Invariants (tests/control/test_contract_report.py): every point has exactly one line, in the order of POINTS; a scenario that
could not be run fails the points that need it, with its error.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

from whippletree.control.contract.report import Grade, Line, Measured
from whippletree.control.contract.world import Run
from whippletree.protocols import HarnessFacts
from whippletree.traces import Node

Runs = Mapping[str, Sequence[Run]]
_ADAPTER = "mend the adapter, or its facts if they are wrong"
_TROUBLE = {
    "bad arguments": "arguments",
    "429": "429",
    "500": "500",
    "stream drop": "drop",
    "context overflow": "overflow",
}
_COUNTING = ("counttokens", "count_tokens")


def grade(facts: HarnessFacts, runs: Runs) -> tuple[Line, ...]:
    """A line for each point of the contract."""
    lines = [_reach(runs), _dialect(facts, runs), _other_dialects(facts, runs), _streaming(facts, runs), _captured(runs)]
    lines += [_side_calls(facts, runs), _tool_call(facts, runs), _job("parallel calls", facts, runs, "parallel")]
    lines += [_trouble(point, facts, runs) for point in _TROUBLE]
    lines += [_extends(facts, runs), _compaction(facts, runs), _subagents(facts, runs), _reconciled(facts, runs)]
    lines += [_clean_exit(runs), _two_at_once(runs), _cost(runs)]
    return tuple(lines)


POINTS = (
    "reaches us only",
    "dialect",
    "other dialects",
    "streaming",
    "captured, delivered",
    "side calls",
    "tool call",
    "parallel calls",
    *_TROUBLE,
    "second request",
    "compaction",
    "sub-agents",
    "trajectory",
    "clean exit",
    "two at once",
    "cost",
)


def measured(run: Run | None) -> Measured:
    """What the plain run took."""
    if run is None or run.usage is None:
        return Measured()
    start = max(0.0, run.first_request - run.began) if run.first_request is not None else 0.0
    peak = run.usage.memory_peak_bytes or 0
    return Measured(start_seconds=round(start, 2), cpu_seconds=round(run.usage.cpu_seconds, 2), peak_mb=peak >> 20)


def _line(point: str, held: bool, seen: str, next_step: str = _ADAPTER, *, wanted: bool = True) -> Line:
    """`held`: what was seen is what the facts say; `wanted`: it is also what one wants of a harness."""
    found: Grade = "FAIL" if not held else "pass" if wanted else "differs"
    return Line(point=point, grade=found, seen=seen, next_step="" if held else next_step)


def _absent(point: str, why: str) -> Line:
    return Line(point=point, grade="not applicable", seen=why)


def told(run: Run) -> str:
    """How a run ended, in words."""
    if run.error:
        return run.error
    if run.end.timed_out:
        return f"it did not end within its limit ({run.seconds:.0f} s)"
    if run.end.cause is not None:
        return run.end.cause.message
    result = run.end.result
    words = " ".join(result.message.split())[:160]
    return f"{result.exit_status}: {words}" if result.crashed and words else result.exit_status


def _plain(point: str, look: Callable[[Run], Line]) -> Callable[[Runs], Line]:
    return _of(point, "plain", look)


def _of(point: str, name: str, look: Callable[[Run], Line]) -> Callable[[Runs], Line]:
    """What `look` says of a scenario's run; a FAIL where there is none, or it could not be run."""

    def line(runs: Runs) -> Line:
        run = next(iter(runs.get(name, ())), None)
        if run is None:
            return _line(point, False, "its scenario was not run", "run the check again")
        return _line(point, False, run.error, "mend that first") if run.error else look(run)

    return line


def _reach(runs: Runs) -> Line:
    def look(run: Run) -> Line:
        everything = [one for several in runs.values() for one in several]
        if run.unrouted is None or run.lookups is None:
            why = "nothing isolates the network" if run.unrouted is None else "only root can see name look-ups in a sandbox"
            return _absent("reaches us only", why)
        unrouted = sum(one.unrouted or 0 for one in everything)
        names = sorted({name for one in everything for name in one.lookups or ()})
        strange = sorted({f"{asked.method} {asked.path}" for one in everything for asked in one.asked if asked.status == 404})
        seen = f"{unrouted} packets elsewhere, {len(names)} names looked up in {len(everything)} runs"
        seen += f": {', '.join(names[:5])}" if names else ""
        seen += f"; unknown paths: {', '.join(strange)}" if strange else ""
        return _line("reaches us only", not unrouted and not names, seen, "switch off what looks for updates or reports usage")

    return _plain("reaches us only", look)(runs)


def _dialect(facts: HarnessFacts, runs: Runs) -> Line:
    def look(run: Run) -> Line:
        seen = sorted({call.dialect for call in run.calls})
        return _line("dialect", seen == [facts.dialects[0]], ", ".join(seen) or "no call came")

    return _plain("dialect", look)(runs)


def _other_dialects(facts: HarnessFacts, runs: Runs) -> Line:
    others = {name.removeprefix("dialect-"): several[0] for name, several in runs.items() if name.startswith("dialect-")}
    if not others:
        return _absent("other dialects", "it speaks one")
    wrong = {}
    for name, run in others.items():
        dialects = {call.dialect for call in run.calls}
        if not run.did_its_job or not run.ended_well or dialects != {name}:
            wrong[name] = f"{', '.join(sorted(dialects)) or 'no call'}; {told(run)}"
    seen = "; ".join(f"{name}: {why}" for name, why in wrong.items()) if wrong else f"{', '.join(others)}: the same run in each"
    return _line("other dialects", not wrong, seen)


def _streaming(facts: HarnessFacts, runs: Runs) -> Line:
    def look(run: Run) -> Line:
        streamed = [node.call.streamed for node in _main(run)]
        held = bool(streamed) and all(one == facts.streams for one in streamed)
        return _line("streaming", held, f"{sum(streamed)} of {len(streamed)} calls streamed")

    return _plain("streaming", look)(runs)


def _captured(runs: Runs) -> Line:
    """Every reply that a harness got whole is on the record, and delivered. Runs with faults hold calls that were cut off."""

    def look(_: Run) -> Line:
        asked = calls = 0
        lost: list[str] = []
        for name in ("plain", "parallel", "arguments", "two-at-once"):
            for run in runs.get(name, ()):
                posts = [one for one in run.asked if one.method == "POST" and one.status == 200]
                posts = [one for one in posts if not any(word in one.path.lower() for word in _COUNTING)]
                asked, calls = asked + len(posts), calls + len(run.calls)
                wrong = [call for call in run.calls if call.error or not call.delivered]
                if len(posts) != len(run.calls) or wrong:
                    lost.append(f"{name}: {len(posts)} requests, {len(run.calls)} calls, {len(wrong)} of them not delivered")
        seen = "; ".join(lost) or f"{asked} requests, {calls} calls, all delivered"
        return _line("captured, delivered", not lost, seen, "look at the gateway's log: a reply was not read to its end")

    return _plain("captured, delivered", look)(runs)


def _side_calls(facts: HarnessFacts, runs: Runs) -> Line:
    def look(run: Run) -> Line:
        sides = sum(node.role == "side" for node in run.trace.nodes)
        said = f", as said: {', '.join(facts.side_calls)}" if facts.side_calls and sides else ""
        return _line(
            "side calls", bool(sides) == bool(facts.side_calls), f"{sides} beside the main ones{said}", wanted=not sides
        )

    return _plain("side calls", look)(runs)


def _tool_call(facts: HarnessFacts, runs: Runs) -> Line:
    if not facts.shell_tool:
        return _absent("tool call", "it offers the model no tool")
    return _job("tool call", facts, runs, "plain")


def _job(point: str, facts: HarnessFacts, runs: Runs, name: str) -> Line:
    """A scenario without trouble: everything ran, and the run ended by itself."""

    def look(run: Run) -> Line:
        ran = f"{len(run.written)} of {len(run.scenario.writes)} files written"
        return _line(point, run.did_its_job and run.ended_well, f"{ran}; {told(run)}")

    return _of(point, name, look)(runs) if facts.shell_tool else _absent(point, "it offers the model no tool")


def _trouble(point: str, facts: HarnessFacts, runs: Runs) -> Line:
    """It goes on and does its job, or gives up in good order where the facts say that it does."""
    name = _TROUBLE[point]
    gives_up = name in facts.ends_at

    def look(run: Run) -> Line:
        met = run.overflowed if name == "overflow" else name == "arguments" or any(one.fault for one in run.asked)
        if not met:
            return _line(point, False, "the trouble did not come about", "look at what it asked, with --keep")
        tries = f"{len(run.asked)} requests"
        if run.did_its_job and run.ended_well:
            return _line(point, not gives_up, f"it went on and did its job, {tries}; {told(run)}")
        held = gives_up and not run.end.timed_out
        return _line(point, held, f"it gave up, {tries}; {told(run)}", wanted=False)

    if point == "bad arguments" and not facts.shell_tool:
        return _absent(point, "it offers the model no tool")
    return _of(point, name, look)(runs)


def _extends(facts: HarnessFacts, runs: Runs) -> Line:
    def look(run: Run) -> Line:
        main = _main(run)
        if len(main) < 2:
            return _line("second request", facts.second_request == "single", f"{len(main)} request", wanted=False)
        breaks = [second.call.prefix_break for first, second in itertools.pairwise(main) if second.parent != first.call_id]
        seen = f"breaks: {', '.join(breaks)}" if breaks else f"it goes on from the first's exact ids ({facts.second_request})"
        return _line("second request", not breaks and facts.second_request != "single", seen)

    return _plain("second request", look)(runs)


def _compaction(facts: HarnessFacts, runs: Runs) -> Line:
    def look(run: Run) -> Line:
        summaries = [node for node in run.trace.nodes if node.role == "compaction"]
        main = _main(run)
        held = bool(summaries) and len(main) + len(summaries) == len(run.calls) and run.did_its_job and run.ended_well
        seen = f"{len(summaries)} compactions and {len(main)} main calls of {len(run.calls)}; {told(run)}"
        return _line("compaction", held, seen)

    if not facts.compacts:
        return _absent("compaction", "it never shortens its history")
    if not facts.probe.compaction or not facts.shell_tool:
        return _absent("compaction", "no settings bring it about in a short run")
    return _of("compaction", "compaction", look)(runs)


def _subagents(facts: HarnessFacts, runs: Runs) -> Line:
    def look(run: Run) -> Line:
        theirs = [node for node in run.trace.nodes if node.role == "subagent"]
        mains = {node.conversation for node in run.trace.nodes if node.role == "main"}
        held = bool(theirs) and len(mains) == 1 and run.did_its_job and run.ended_well
        return _line("sub-agents", held, f"{len(theirs)} of {len(run.calls)} calls are a sub-agent's; {told(run)}")

    if not facts.subagents:
        return _absent("sub-agents", "it has none")
    if not facts.probe.subagent_tool:
        return _absent("sub-agents", "no single call starts one")
    return _of("sub-agents", "subagent", look)(runs)


def _reconciled(facts: HarnessFacts, runs: Runs) -> Line:
    def look(run: Run) -> Line:
        if run.told is None:
            return _absent("trajectory", "it keeps no record that is read")
        worse: list[str] = []
        known: list[str] = []
        turns = pairs = 0
        for name, several in runs.items():
            for one in several:
                if one.told is None:
                    worse += [] if one.error or not one.calls else [f"{name}: no record"]
                    continue
                turns, pairs = turns + one.told.turns, pairs + len(one.told.pairs)
                grave = [finding for finding in one.told.findings if finding.level != "INFO"]
                found = [f"{name}: {finding.level} {finding.message}" for finding in grave]
                (known if name in facts.record_differs else worse).extend(found)
        seen = (
            "; ".join(worse[:4] or known[:2])
            or f"{turns} turns of its record, {pairs} paired with captured calls, none differs"
        )
        advice = "mend the adapter's account(), or look for calls that were not captured"
        return _line("trajectory", not worse, seen, advice, wanted=not known)

    return _plain("trajectory", look)(runs)


def _clean_exit(runs: Runs) -> Line:
    def look(run: Run) -> Line:
        left = run.usage.processes if run.usage is not None else 0
        seen = f"{told(run)}, {left} processes left"
        return _line("clean exit", run.ended_well and not left, seen, "look at agent.log, with --keep")

    return _plain("clean exit", look)(runs)


def _two_at_once(runs: Runs) -> Line:
    pair = list(runs.get("two-at-once", ()))
    broken = next((run.error for run in pair if run.error), "")
    if broken or len(pair) != 2:
        return _line("two at once", False, broken or "its scenario was not run", "mend that first")
    well = all(run.did_its_job and run.ended_well for run in pair)
    mixed = [run.token for run, other in zip(pair, pair[::-1], strict=True) if _mentions(run, other.token)]
    seen = f"{len(pair[0].calls)} and {len(pair[1].calls)} calls, {'mixed' if mixed else 'apart'}; "
    return _line("two at once", well and not mixed, seen + "; ".join(told(run) for run in pair))


def _mentions(run: Run, token: str) -> bool:
    return any(token.encode() in node.messages_json for node in run.trace.nodes)


def _cost(runs: Runs) -> Line:
    def look(run: Run) -> Line:
        found = measured(run)
        seen = f"{found.start_seconds:.1f} s to the first request, {found.cpu_seconds:.1f} CPU-seconds, {found.peak_mb} MiB"
        return Line(point="cost", grade="pass", seen=seen)

    return _plain("cost", look)(runs)


def _main(run: Run) -> list[Node]:
    return [node for node in run.trace.nodes if node.role == "main"]
