"""whippletree/ui/panel.py"""

from __future__ import annotations

import io
import random
import re
import time
from pathlib import Path

import pytest
from recorded_run import EVIL, step_metrics
from rich.console import Console

from whippletree.loop.metrics import EvalMetrics, Log, StepMetrics
from whippletree.ui.panel import RunView, agreement, clock, eval_text, sources_text, sparkline, step_text, time_left


def step(number: int, at: float, **fields: object) -> StepMetrics:
    return step_metrics(number, 10, random.Random(number), time=at, **fields)


def evaluation(after: int, seconds: float = 6.0, **fields: object) -> EvalMetrics:
    given = {"valid": 4, "failed": 0, "success": 0.25, "turns_mean": 2.0, "by_difficulty": {"depth 1, decoys 1": (1, 4)}}
    return EvalMetrics(step=after, policy_version=after, time=time.time(), seconds=seconds, **(given | fields))


class Screen:
    """A console without a terminal, and what was written to it."""

    def __init__(self, width: int = 80) -> None:
        self.file = io.StringIO()
        self.console = Console(file=self.file, force_terminal=False, width=width)

    @property
    def lines(self) -> list[str]:
        return self.file.getvalue().splitlines()


def drawn(view: RunView, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    view.console = console
    console.print(view.render())
    return console.file.getvalue().splitlines()


# --- time left ---------------------------------------------------------------------------------------------------------


def test_there_is_no_time_left_before_the_first_update():
    assert time_left([], [evaluation(0)], 10, now=100.0) is None


def test_the_time_left_follows_the_pace_of_this_process():
    own = [step(4, 110.0, seconds_collect=8.0, seconds_update=2.0), step(5, 120.0, seconds_collect=8.0, seconds_update=2.0)]
    assert time_left(own, [], 10, now=120.0) == pytest.approx(4 * 10.0)
    assert time_left(own, [evaluation(0)], 10, now=123.0) == pytest.approx(4 * 10.0 + 6.0 - 3.0)
    assert time_left(own, [], 10, now=500.0) == 0.0


def test_after_the_last_update_only_the_last_evaluation_is_left():
    own = [step(9, 110.0, seconds_collect=8.0, seconds_update=2.0)]
    assert time_left(own, [evaluation(0)], 10, now=111.0) == pytest.approx(5.0)
    assert time_left(own, [evaluation(0), evaluation(10)], 10, now=111.0) == 0.0


def test_a_resumed_run_counts_only_its_own_updates(tmp_path: Path):
    log = Log(tmp_path)
    log.append("metrics", step(0, 10.0))
    log.append("metrics", step(1, time.time() + 5, replayed=True))
    view = RunView(tmp_path, 10, console=Screen().console, activity=dict)
    assert "left" not in "".join(drawn(view, 100))
    log.append("metrics", step(2, time.time() + 9, seconds_collect=8.0, seconds_update=1.0))
    assert re.search(r"about 1:\d\d left", "".join(drawn(view, 100)))  # seven updates of nine seconds


def test_clocks():
    assert [clock(value) for value in (None, 0.9, 61, 3599, 3600, 36_061)] == [
        "–:––",
        "0:00",
        "1:01",
        "59:59",
        "1:00:00",
        "10:01:01",
    ]


# --- lines -------------------------------------------------------------------------------------------------------------


def test_without_a_terminal_each_update_and_evaluation_is_one_line_in_order(tmp_path: Path):
    screen, log, now = Screen(), Log(tmp_path), time.time()
    with RunView(tmp_path, 2, console=screen.console, activity=dict) as view:
        view.say("running")
        log.append("eval", evaluation(0))
        view.refresh()
        log.append("metrics", step(0, now, weight_check_diff=None))
        view.refresh()  # not printed yet: its weight check is still to come
        log.append("metrics", step(0, now))
        log.append("metrics", step(1, now))
        log.append("eval", evaluation(1))
        log.append("eval", evaluation(2))
        for _ in range(3):
            view.refresh()
    assert [line.split(" reward")[0].split(":")[0] for line in screen.lines] == [
        "[0",
        "held-out after 0 updates",
        "update 1/2",
        "held-out after 1 updates",
        "update 2/2",
        "held-out after 2 updates",
    ]
    assert all(len(line) > 80 for line in screen.lines if line.startswith("update"))  # not wrapped, not cut
    assert "logprobs max diff" in screen.lines[2]
    assert "weight check" in screen.lines[2]


def test_what_an_earlier_process_printed_is_not_printed_again(tmp_path: Path):
    screen, log = Screen(), Log(tmp_path)
    log.append("metrics", step(0, 1.0))
    log.append("eval", evaluation(0))
    with RunView(tmp_path, 3, console=screen.console, activity=dict) as view:
        view.refresh()
        log.append("metrics", step(1, time.time()))
        view.refresh()
    assert [line[:10] for line in screen.lines] == ["update 2/3"]


def test_an_update_whose_weight_check_never_came_is_printed_at_the_end(tmp_path: Path):
    screen, log = Screen(), Log(tmp_path)
    with RunView(tmp_path, 3, console=screen.console, activity=dict) as view:
        log.append("metrics", step(0, time.time(), weight_check_diff=None))
        view.refresh()
        assert screen.lines == []
    assert [line[:10] for line in screen.lines] == ["update 1/3"]
    assert "weight check –" in screen.lines[0]


def test_warnings_of_an_update_are_below_its_line():
    text = step_text(step(0, 1.0, alarms=("batch: only 5% trained", "g0: \x1b[2J")), 10)
    assert text.splitlines()[1:] == ["  warning: batch: only 5% trained", r"  warning: g0: \x1b[2J"]


def test_a_line_says_what_is_missing_and_what_failed():
    line = step_text(step(0, 1.0, reward_mean=None, turns_mean=None, failed=3, logprob_max_abs_diff=None, replayed=True), 4)
    assert "reward –" in line
    assert "failed 3" in line
    assert "no token of the current version" in line
    assert line.endswith("replayed")
    assert eval_text(evaluation(4, success=None, valid=0, failed=2, by_difficulty={})) == (
        "held-out after 4 updates: success – of 0, 2 failed in 6.0 s"
    )
    assert eval_text(evaluation(4, failed=4, cut=2, success_of_all=0.1, by_difficulty={})) == (
        "held-out after 4 updates: success 0.250 of 4, 4 failed, 2 cut at the evaluation's limit (0.100 of all) in 6.0 s"
    )
    several = {"mini": (5, 8), "pi": (0, 8)}
    assert eval_text(evaluation(4, by_source=several)) == (
        "held-out after 4 updates: success 0.250 of 4 (mini: 5/8; pi: 0/8) in 6.0 s"  # what each source, so each harness, did
    )
    assert "(depth 1, decoys 1: 1/4)" in eval_text(evaluation(4, by_source={"mini": (1, 4)}))
    first, last = (
        evaluation(0, by_source={"pi": (1, 8), "mini": (0, 0)}),
        evaluation(4, by_source={"mini": (5, 8), "pi": (2, 8)}),
    )
    assert sources_text([first, last]) == "  mini: – → 0.625\n  pi: 0.125 → 0.250\n"
    assert sources_text([first]) == sources_text([evaluation(0), evaluation(4, by_source={"mini": (1, 4)})]) == ""
    assert agreement(step(0, 1.0, logprob_max_abs_diff=3e-6, logprob_correlation=None, weight_check_diff=2e-6)) == (
        "logprobs max diff 3.0e-06, correlation –; weight check 2.0e-06"
    )


# --- panel -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_panel_fits_its_terminal(tmp_path: Path, width: int):
    log = Log(tmp_path)
    for number in range(60):
        log.append("metrics", step_metrics(number, 60, random.Random(number)))
    for after in range(0, 60, 10):
        log.append("eval", evaluation(after))
    view = RunView(tmp_path, 60, console=Screen().console, activity=lambda: {"running": 16, "succeeded": 3200})
    lines = drawn(view, width)
    assert all(len(line) <= width for line in lines)
    text = "\n".join(lines)
    for word in ("60 of 60", "reward", "held-out", "0.25 after 50", "succeeded", "agreement"):
        assert word in text


def test_the_rate_over_all_rollouts_stands_beside_that_over_those_judged(tmp_path: Path):
    log = Log(tmp_path)
    log.append("eval", evaluation(0, success_of_all=0.25))
    log.append("eval", evaluation(8, failed=4, success=0.5, success_of_all=0.25))
    text = "\n".join(drawn(RunView(tmp_path, 8, console=Screen().console, activity=dict), 160))
    assert "0.25 after 0 (0.25 of all)  →  0.50 after 8 (0.25 of all)" in text


def test_an_evaluation_only_run_shows_no_updates(tmp_path: Path):
    view = RunView(tmp_path, 0, console=Screen().console, activity=dict)
    text = "\n".join(drawn(view, 80))
    assert "updates" not in text
    assert "none yet" in text


def test_bars_are_clamped_and_recent():
    assert sparkline([-1.0, 0.0, 0.49, 1.0, 7.0], width=4) == "▁▄██"
    assert sparkline([0.5], width=0) == ""


def test_nothing_that_is_shown_can_drive_the_terminal(tmp_path: Path):
    run = tmp_path / EVIL.replace("/", "")
    for terminal in (False, True):
        file = io.StringIO()
        console = Console(file=file, force_terminal=terminal, width=120, no_color=True, legacy_windows=False)
        Log(run).append("eval", evaluation(0, by_difficulty={EVIL: (1, 2)}))
        with RunView(run, 1, console=console, activity=lambda: {EVIL: 1}) as view:
            view.say(EVIL + ":smile:")
            Log(run).append("metrics", step(0, time.time()))
            view.refresh()
        written = file.getvalue()
        assert "\x1b]" not in written
        assert "\x1b[2J" not in written
        assert "\x07" not in written
        assert "\u202e" not in written
        assert r"\x1b]0;owned" in written
        assert ":smile:" in written


def test_how_attempts_are_isolated_stays_visible(tmp_path: Path):
    sentence = "process: NO isolation; commands run as this user on this machine"
    screen = Screen(200)
    with RunView(tmp_path, 10, console=screen.console, activity=dict) as view:
        view.isolate(sentence)
        view.say("running")
        shown = "\n".join(drawn(view, 100))
    assert any(sentence in line for line in screen.lines)
    assert "NO isolation" in shown
    assert "running" in shown
