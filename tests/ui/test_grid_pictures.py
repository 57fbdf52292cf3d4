"""whippletree/ui/grid_pictures.py: the picture of a grid."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from grid_parts import cell, tasks

from whippletree.loop.grid.statistics import Resampling
from whippletree.loop.grid.tables import Results, summarise
from whippletree.ui.grid_pictures import MAP, draw_grid, make_figure, short
from whippletree.ui.plots import INK

pytest.importorskip("matplotlib")


def results(models: int, harnesses: int, *, holes: bool = False) -> Results:
    draw = random.Random(models)
    names = (
        [f"a-model-with-a-long-name-{number}" for number in range(models)],
        [f"harness-{number}" for number in range(harnesses)],
    )
    cells = [
        cell(f"t{task}", None if draw.random() < 0.1 else draw.random() < 0.5, model=model, harness=harness)
        for model in names[0]
        for harness in names[1]
        for task in range(6)
        if not (holes and (model, harness) == (names[0][0], names[1][0]))
    ]
    return summarise(
        "g", cells, tasks(6), models=names[0], harnesses=names[1], samples=1, pass_at=(1,), how=Resampling(resamples=50)
    )


@pytest.mark.parametrize(("models", "harnesses"), [(1, 1), (2, 3), (5, 10), (9, 2)])
def test_every_model_and_harness_is_in_both_parts_and_nothing_is_cut_off(models: int, harnesses: int):
    figure = make_figure(results(models, harnesses))
    heat, bars = figure.axes
    assert len(heat.get_xticklabels()) == len(bars.get_xticklabels()) == harnesses
    assert len(heat.get_yticklabels()) == models
    assert len(bars.patches) == models * harnesses
    renderer = figure.canvas.get_renderer()
    width, height = figure.canvas.get_width_height()
    labels = [*heat.get_xticklabels(), *heat.get_yticklabels(), *bars.get_xticklabels(), *heat.texts, bars.get_legend()]
    for label in labels:
        box = label.get_window_extent(renderer)
        assert box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1, label
    for axis in (heat, bars):
        boxes = [label.get_window_extent(renderer) for label in axis.get_xticklabels()]
        assert all(left.x1 <= right.x0 for left, right in itertools.pairwise(boxes))
    texts = [text.get_window_extent(renderer) for text in heat.texts]
    assert all(not one.overlaps(other) for place, one in enumerate(texts) for other in texts[place + 1 :])


def test_a_block_without_a_rate_is_a_mark_and_no_bar():
    figure = make_figure(results(2, 2, holes=True))
    heat, bars = figure.axes
    assert [text.get_text() for text in heat.texts].count("–") == 1
    assert len(bars.patches) == 3 and [text.get_text() for text in bars.texts] == ["–"]


def test_the_names_of_models_stand_in_even_rows():
    figure = make_figure(results(4, 4))
    legend = figure.axes[1].get_legend()
    renderer = figure.canvas.get_renderer()
    rows = [round(text.get_window_extent(renderer).y0) for text in legend.get_texts()]
    assert sorted(rows.count(row) for row in set(rows)) == [2, 2]


def test_a_grid_without_a_cell_is_drawn(tmp_path: Path):
    empty = summarise("g", [], tasks(2), models=["m"], harnesses=["h"], samples=1, pass_at=(1,), how=Resampling(resamples=50))
    assert draw_grid(empty, tmp_path / "grid.png").read_bytes().startswith(b"\x89PNG")


def luminance(colour: tuple[float, ...]) -> float:
    parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour[:3]]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def test_numbers_are_readable_on_every_ground():
    from matplotlib.colors import LinearSegmentedColormap, to_rgb

    colours = LinearSegmentedColormap.from_list("grid", MAP)
    for number in range(101):
        contrast = (luminance(colours(number / 100)) + 0.05) / (luminance(to_rgb(INK)) + 0.05)  # as WCAG 2 has it
        assert contrast > 4.5


def test_long_names_keep_both_ends():
    assert short("tiny") == "tiny"
    assert short("a-model-with-a-long-name-7").endswith("name-7") and len(short("a-model-with-a-long-name-7")) <= 18
