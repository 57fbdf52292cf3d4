"""whippletree/ui/grid.py and whippletree/ui/sft.py: progress, tables, curves in the terminal."""

from __future__ import annotations

import io
import time

import pytest
from grid_parts import cell, tasks
from rich.console import Console

from whippletree.loop.grid.statistics import Resampling
from whippletree.loop.grid.tables import ALL, Results, summarise
from whippletree.loop.metrics import Log
from whippletree.loop.sft.training import SftMetrics
from whippletree.ui.grid import GridView, cost_text, print_results, rate_text, time_left
from whippletree.ui.sft import SftView, curve_text


def console(*, terminal: bool = False, width: int = 200) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=terminal, highlight=False, markup=False)


def said(of: Console) -> str:
    assert isinstance(of.file, io.StringIO)
    return of.file.getvalue()


def results(cells, *, models=("m",), harnesses=("h",), failed=None, samples=1, sources=("s",)) -> Results:
    return summarise(
        "g",
        cells,
        [task for source in sources for task in tasks(4, source)],
        models=models,
        harnesses=harnesses,
        samples=samples,
        pass_at=(1, samples),
        how=Resampling(resamples=50),
        failed=failed,
    )


def test_the_time_left_is_the_pace_of_this_process():
    assert time_left(0, 10, 5.0) is None
    assert time_left(5, 10, 5.0) == 10.0


def test_cells_that_were_over_before_do_not_count_for_the_pace(monkeypatch: pytest.MonkeyPatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    view = GridView(100, console=console(terminal=True))
    view.begin("m", total=100, done=80)
    assert "80/100" in view._line() and "–:–– left" in view._line()
    now[0] += 30.0
    view.update("m", done=10, passed=4, invalid=1)
    assert view._line() == "90/100 cells, 4 of 10 passed, 1 invalid, 0:30 left"


def test_plain_output_has_a_line_for_each_stage_and_each_tenth():
    out = console()
    with GridView(200, console=out) as view:
        view.begin("a", total=100, done=0)
        for done in range(101):
            view.update("a", done=done, passed=0, invalid=0)
        view.begin("b", total=100, done=0)
        for done in range(101):
            view.update("b", done=done, passed=0, invalid=0)
    lines = said(out).splitlines()
    assert len(lines) == 2 + 10
    assert lines[0] == "a: 100 of 100 cells to run"
    assert "200/200 cells" in lines[-1]


def test_a_terminal_shows_a_bar():
    out = console(terminal=True)
    with GridView(10, console=out) as view:
        view.begin("m", total=10, done=0)
        view.say("m: \x1b[2Jstarting")
        view.update("m", done=5, passed=1, invalid=0)
    assert "5/10 cells" in said(out) and "\x1b[2J" not in said(out)


def test_tables_show_every_model_and_harness():
    cells = [cell(f"t{n}", n > 0, harness="a") for n in range(4)]
    out = console()
    print_results(results(cells, models=("m", "never"), harnesses=("a", "b"), failed={"never": "no engine [bold]"}), out)
    text = said(out)
    assert "3/4" in text and "0.75" in text
    assert "0/0 (4 missing)" in text and "never could not be evaluated: no engine [bold]" in text
    assert "b - a" in text and "never - m" in text


def test_invalid_cells_are_told_by_cause_beside_the_rate_of_all():
    cells = [cell("t0", True), cell("t1", None), cell("t2", None, cause="engine"), cell("t3", True)]
    out = console()
    print_results(results(cells), out)
    text = said(out)
    assert "2/2" in text and "1 sandbox, 1 engine" in text and "of all" in text and "0.50" in text
    out = console()
    print_results(results([cell(f"t{n}", True) for n in range(4)]), out)
    assert "of all" not in said(out)


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_no_number_is_cut_off_at_the_width_of_a_terminal(width: int):
    names = ("claude-code-lean-with-tools", "mini-toolcall")
    cells = [cell(f"t{n}", n > 1, harness=name, sample=sample) for n in range(4) for name in names for sample in range(4)]
    cells[0] = cell("t0", None, harness=names[0], cause="engine")
    found = results(cells, models=("SmolLM2-135M-step-0024",), harnesses=names, samples=4)
    out = console(width=width)
    print_results(found, out)
    text = said(out)
    assert "…" not in text and max(map(len, text.splitlines())) <= width
    for block in found.blocks:
        for number in (rate_text(block.rate), rate_text(block.pass_at[4]), cost_text(block.sampled_per_solved)):
            assert number in text
    for gap in (gap for gap in found.differences if gap.source == ALL and gap.estimate is not None):
        assert f"{gap.estimate.value:+.2f} [{gap.estimate.low:+.2f}, {gap.estimate.high:+.2f}]" in text
    assert ("costs, over the same cells" in text) == (width < 200)


def test_several_sources_have_a_table_each():
    out = console()
    print_results(results([cell("t0", True)], sources=("s", "other")), out)
    assert all(title in said(out) for title in ("g: every task", "g: s,", "g: other,"))


def test_many_differences_are_cut_in_the_terminal_alone():
    harnesses = tuple("abcdefgh")
    out = console()
    print_results(results([], harnesses=harnesses), out)
    assert "4 more are in differences.csv" in said(out)


def line(step: int, steps: int = 100, held: float | None = None) -> SftMetrics:
    loss = None if step == 0 else 2.0 / step
    return SftMetrics(step=step, steps=steps, loss=loss, tokens=10, heldout_loss=held)


def test_a_fine_tuning_tells_its_ends_and_measurements():
    out = console()
    view = SftView(out)
    for step in range(101):
        view.line(line(step, held=1.5 if step in (0, 33, 100) else None))
    lines = said(out).splitlines()
    assert lines[0] == "before the first update: held-out loss 1.5000"
    assert lines[1].startswith("update 1/100 loss 2.0000")
    assert any(text.startswith("update 33/100") and "held-out loss 1.5000" in text for text in lines)
    assert lines[-1].startswith("update 100/100")
    assert len(lines) <= 25


def test_a_curve_is_drawn_from_the_record(tmp_path):
    log = Log(tmp_path)
    for step in range(4):
        log.append("sft", line(step, held=3.0 - step if step in (0, 3) else None))
    out = console()
    SftView(out).curve(tmp_path)
    assert said(out).splitlines() == ["loss     2.000 █▃▁ 0.667", "held out 3.000 █▁ 0.000"]


@pytest.mark.parametrize("values", [[1.0], [2.0, 2.0], [3.0, 1.0, 2.0], [float(n) for n in range(500)]])
def test_a_curve_has_its_own_scale(values):
    text = curve_text(values, 60)
    assert len(text) == min(60, len(values))
    if max(values) > min(values):
        assert {"▁", "█"} <= set(text)
