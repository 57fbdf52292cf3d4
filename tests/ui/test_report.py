"""whippletree/ui/report.py and plots.py"""

from __future__ import annotations

import itertools
import random
import re
import shutil
import struct
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.text import Text
from recorded_run import EVIL, new_run, play, record, step_metrics, story

from whippletree.errors import ConfigurationError
from whippletree.gateway.keys import load_secret
from whippletree.loop.evaluation import Heldout, evaluation_specs
from whippletree.loop.layout import Layout
from whippletree.loop.metrics import EvalMetrics, Log
from whippletree.store import open_store
from whippletree.types import Sampling
from whippletree.ui.data import RunData, read_run
from whippletree.ui.plots import by_depth, make_figure, natural, save, smooth, title, wilson
from whippletree.ui.report import cell, render, write_report


class Page(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text += data


def heldout_line(step: int, cells: dict[str, tuple[int, int]], valid: int = 4, success: float | None = 0.5) -> EvalMetrics:
    return EvalMetrics(
        step=step, policy_version=step, time=1.0, valid=valid, failed=0, success=success, turns_mean=success and 2.0,
        by_difficulty=cells, seconds=1.0,
    )  # fmt: skip


def size_of(png: Path) -> tuple[int, int]:
    head = png.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", head[16:24])


def test_a_whole_run_gives_page_and_picture(recorded: Layout):
    path, picture = write_report(recorded.directory)
    assert size_of(picture) == (1500, 900)
    page = Page(path.read_text(encoding="utf-8"))
    assert page.tags.count("img") == 1
    assert "held-out success after" in page.text
    assert "before training: reward 0" in page.text
    assert "after 4 updates: reward 1" in page.text
    assert 'bash {"command":"submit 17"}' in page.text
    assert page.text.count("0.9999999") == 0  # shown with six decimals, as 1


def test_the_rate_over_all_rollouts_is_a_column_of_its_own(tmp_path: Path, recorded: Layout):
    run = read_run(recorded.directory)
    told = msgspec.structs.replace(heldout_line(9, {}, valid=3, success=0.75), failed=2, success_of_all=0.45)
    page = Page(render(replace(run, evals=[told])))
    assert "success of all" in page.text
    assert "0.750.4532" in page.text.replace("\n", "").replace(" ", "")


def test_the_page_needs_nothing_but_the_picture(recorded: Layout):
    page = Page(render(read_run(recorded.directory)))
    assert "script" not in page.tags
    assert "link" not in page.tags
    assert [value for name, value in page.attributes if name in ("src", "href")] == ["report.png"]


def test_no_secret_is_in_the_page(recorded: Layout):
    secret = load_secret(recorded.secret)
    page = render(read_run(recorded.directory)).encode()
    assert secret not in page
    assert secret.hex().encode() not in page


def test_what_a_model_wrote_is_not_html(tmp_path: Path):
    _, layout = new_run(tmp_path / EVIL.replace("/", "")[:30].replace("\x00", ""))
    with open_store(layout.store) as store:
        tasks = [Heldout(source="trail", task_id=EVIL.replace("/", ""), task_path="/t", harness="mini-swe-agent")]
        for step, solved in ((0, False), (4, True)):
            specs = evaluation_specs(tasks, step=step, samples=1, sampling=Sampling(), max_attempts=1)
            play(store, specs, [story(2, solved=solved, text=EVIL)], version=step)
    text = render(read_run(layout.directory))
    page = Page(text)
    assert "script" not in page.tags
    assert page.text.count("<script>document.title = 'owned'</script>") >= 5  # said by the model, visible as text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e]", text)


def test_a_run_that_has_only_begun_gives_page_and_picture(tmp_path: Path):
    _, layout = new_run(tmp_path / "young")
    path, picture = write_report(layout.directory)
    assert size_of(picture) == (1500, 900)
    page = Page(path.read_text(encoding="utf-8"))
    assert "This run is not finished" in page.text
    assert page.tags.count("table") == 0


def test_warnings_of_updates_are_on_the_page(tmp_path: Path):
    _, layout = new_run(tmp_path / "poor")
    told = f"batch: only 5% of 100 sampled tokens are trained {EVIL}"
    Log(layout.directory).append("metrics", step_metrics(0, 4, random.Random(0), trained_share=0.05, alarms=(told,)))
    page = Page(render(read_run(layout.directory)))
    assert "Warnings" in page.text
    assert "update 0: batch: only 5% of 100 sampled tokens are trained" in page.text
    assert "0.05" in page.text
    assert "script" not in page.tags


def test_an_interrupted_run_gives_what_is_on_record(tmp_path: Path):
    layout = record(tmp_path / "cut", steps=2, tasks=1, complete=False)
    page = Page(render(read_run(layout.directory)))
    assert "This run is not finished" in page.text
    assert "updates so far" in page.text


def test_an_evaluation_without_any_valid_rollout_gives_page_and_picture(tmp_path: Path):
    _, layout = new_run(tmp_path / "unlucky")
    log = Log(layout.directory)
    log.append("eval", heldout_line(0, {}, valid=0, success=None))
    log.append("metrics", step_metrics(0, 1, random.Random(0), reward_mean=None, turns_mean=None, logprob_max_abs_diff=None))
    path, picture = write_report(layout.directory)
    assert size_of(picture) == (1500, 900)
    assert "–" in path.read_text(encoding="utf-8")


def test_a_directory_without_a_run_is_refused(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="holds no run"):
        write_report(tmp_path)


def test_without_matplotlib_the_page_says_what_is_missing(recorded: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    directory = shutil.copytree(recorded.directory, tmp_path / "run")
    write_report(directory)
    before = (directory / "report.png").stat()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page, picture = write_report(directory)
    assert picture is None and (directory / "report.png").stat() == before
    text = page.read_text(encoding="utf-8")
    assert "<img" not in text and "pip install &#39;whippletree[plots]&#39;" in text  # not the picture of an earlier report


def test_another_missing_module_is_not_taken_for_matplotlib(tmp_path: Path):
    def make() -> None:
        raise ModuleNotFoundError("No module named 'x'", name="x")

    with pytest.raises(ModuleNotFoundError, match="'x'"):
        save(make, tmp_path / "a.png")


def test_numbers_are_short_and_small_ones_keep_their_size():
    assert [cell(value) for value in (None, 0.0, 0.5, 3, 2.5e-6, -4e-4, 12.3456)] == [
        "–",
        "0",
        "0.5",
        "3",
        "2.5e-06",
        "-4.0e-04",
        "12.346",
    ]
    assert cell(0.999968, "logprob_correlation") == "0.999968"


# --- the picture -------------------------------------------------------------------------------------------------------


def overlaps(figure: Figure) -> list[tuple[str, str]]:
    """Pairs of drawn texts that cover each other."""
    hidden = set()
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        hidden |= {id(tick.label1) for tick in axis.get_major_ticks() if not low <= tick.get_loc() <= high}
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip() and id(text) not in hidden]
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts]
    return [
        (name, other)
        for (name, a), (other, b) in itertools.combinations(boxes, 2)
        if min(a.x1, b.x1) - max(a.x0, b.x0) > 1 and min(a.y1, b.y1) - max(a.y0, b.y0) > 1
    ]


def evaluated(run: RunData, names: list[str], steps: tuple[int, ...] = (0, 4)) -> RunData:
    cells = {name: (number % 5, 4 + number % 5) for number, name in enumerate(names)}
    lines = [heldout_line(step, cells) for step in steps]
    return RunData(run.directory, run.steps, lines, run.summary, run.breakdown, run.config_text)


@pytest.mark.parametrize("depths", [3, 8])
def test_no_two_labels_overlap(recorded: Layout, depths: int):
    names = [f"depth {depth + 1}, decoys {decoys}" for depth in range(depths) for decoys in (1, 2)]
    assert overlaps(make_figure(evaluated(read_run(recorded.directory), names))) == []


def test_many_difficulties_have_room(recorded: Layout, count: int = 60):
    figure = make_figure(
        evaluated(read_run(recorded.directory), [f"a long difficulty name {number}" for number in range(count)])
    )
    shown = figure.axes[1].get_xticklabels()
    assert len(shown) <= 20
    assert len({label.get_text() for label in shown}) == len(shown)
    places = [label.get_window_extent(figure.canvas.get_renderer()).x1 for label in shown]
    assert all(second - first > 12 for first, second in itertools.pairwise(places))  # pixels between slanted lines of 9 points


def test_every_point_lies_inside_its_axes(recorded: Layout):
    run = read_run(recorded.directory)
    draw = random.Random(0)
    steps = [step_metrics(n, 4, draw, reward_mean=value) for n, value in enumerate((-2.0, 0.5, 7.0, 1.0))]
    figure = make_figure(RunData(run.directory, steps, run.evals, run.summary, run.breakdown, ""))
    for axis in figure.axes:
        (left, right), (low, high) = sorted(axis.get_xlim()), sorted(axis.get_ylim())
        for line in axis.lines:
            assert all(left <= x <= right for x in line.get_xdata())
            assert all(low <= y <= high for y in line.get_ydata())
    assert figure.axes[0].get_ylim()[0] < -2.0
    assert make_figure(run).axes[0].get_ylim()[0] == 0.0


def test_the_title_tells_first_and_last_success(recorded: Layout, tmp_path: Path):
    assert re.fullmatch(
        r"demo: held-out success 0\.\d\d → \d\.\d\d after 4 updates in \d+\.\d minutes", title(read_run(recorded.directory))
    )
    _, layout = new_run(tmp_path / "young")
    assert title(read_run(layout.directory)) == "young"


def test_many_difficulties_are_merged_by_what_is_before_the_comma(recorded: Layout):
    names = [f"depth {depth}, decoys {decoys}" for depth in (1, 2, 10) for decoys in range(4)]
    merged = by_depth(evaluated(read_run(recorded.directory), names).evals)[0]
    assert sorted(merged, key=natural) == ["depth 1", "depth 2", "depth 10"]
    assert sum(passed for passed, _ in merged.values()) == sum(number % 5 for number in range(12))
    assert sum(total for _, total in merged.values()) == sum(4 + number % 5 for number in range(12))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_smoothing_is_a_mean_of_the_last_five(values: list[float]):
    for number, value in enumerate(smooth(values)):
        window = values[max(0, number - 4) : number + 1]
        assert value == pytest.approx(sum(window) / len(window))


def test_the_interval_of_a_rate_is_wilsons():
    low, high = wilson(0.0, 10)
    assert (low, high) == (0.0, pytest.approx(0.2775, abs=1e-4))  # tabulated value for 0 of 10
    low, high = wilson(0.5, 10)
    assert (low, high) == (pytest.approx(0.2366, abs=1e-4), pytest.approx(0.7634, abs=1e-4))
    assert wilson(1.0, 10)[1] == 1.0


def test_a_name_is_never_read_as_a_formula(tmp_path: Path):
    _, layout = new_run(tmp_path / "a$\\frac{b}$")
    assert make_figure(read_run(layout.directory)).get_suptitle() == "a$\\frac{b}$"
