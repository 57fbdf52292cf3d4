"""The generated family, as data and as directories."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whippletree.errors import ConfigurationError, TaskError
from whippletree.tasks import TrailFamily, load_task
from whippletree.tasks.trail import TrailStream, write_tasks

FAMILY = TrailFamily(train=12, heldout=12, depths=(1, 2, 3), decoys=(0, 2), seed=5)

families = st.builds(
    TrailFamily,
    heldout=st.integers(0, 24),
    depths=st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple),
    decoys=st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple),
    names=st.integers(8, 24),
    codes=st.integers(10, 90),
    seed=st.integers(0, 1000),
)


def _tree(directory: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(directory)): (path.stat().st_mode, path.read_bytes())
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def test_the_same_family_gives_the_same_bytes(tmp_path):
    for name in ("one", "two"):
        write_tasks(tmp_path / name, FAMILY)
    assert _tree(tmp_path / "one") == _tree(tmp_path / "two")
    assert len(_tree(tmp_path / "one")) > 24 * 6
    write_tasks(tmp_path / "one", FAMILY)  # again: nothing to do, no error
    write_tasks(tmp_path / "three", TrailFamily(train=12, heldout=12, decoys=(0, 2), seed=6))
    assert _tree(tmp_path / "one") != _tree(tmp_path / "three")


@settings(max_examples=40, deadline=None)
@given(family=families)
def test_training_and_heldout_tasks_are_disjoint_by_content(family):
    stream = TrailStream(family)
    heldout = {(trail.names, trail.code) for trail in stream.heldout}
    assert len(heldout) == family.heldout
    assert not heldout & {(trail.names, trail.code) for trail in map(stream.train, range(300))}


def test_a_small_family_still_keeps_the_sets_apart():
    stream = TrailStream(TrailFamily(depths=(1,), decoys=(0,), names=2, codes=10, heldout=10))
    heldout = {(trail.names, trail.code) for trail in stream.heldout}
    train = {(trail.names, trail.code) for trail in map(stream.train, range(500))}
    assert len(heldout) == 10
    assert len(train) == 10
    assert not heldout & train


@settings(max_examples=40, deadline=None)
@given(family=families, index=st.integers(0, 10_000))
def test_files_lead_from_start_to_code_and_decoys_are_off_the_trail(family, index):
    trail = TrailStream(family).train(index)
    files = trail.files()
    assert len(files) == trail.depth + len(trail.decoys)
    assert trail.depth == family.depths[index % len(family.depths)]
    for name, following in zip(trail.names, trail.names[1:], strict=False):
        assert files[name] == f'{{"next": "{following}"}}'
    assert files[trail.names[-1]] == f'{{"code": "{trail.code}"}}'
    for name, code in trail.decoys:
        assert code != trail.code
        assert name not in trail.names
        assert files[name] == f'{{"code": "{code}"}}'
    assert trail.instruction.split()[2] == trail.names[0]


def test_depths_and_decoys_take_turns():
    trails = [TrailStream(FAMILY).train(index) for index in range(6)]
    assert [(trail.depth, len(trail.decoys)) for trail in trails] == [(1, 0), (2, 0), (3, 0), (1, 2), (2, 2), (3, 2)]


def test_written_tasks_load_and_are_labelled(tmp_path):
    train, heldout = write_tasks(tmp_path, FAMILY)
    assert len(train) == len(heldout) == 12
    for path, trail in zip(heldout, TrailStream(FAMILY).heldout, strict=True):
        task = load_task(path)
        assert task.task_id == trail.task_id
        assert task.steps[0].instruction == trail.instruction
        assert task.workdir == "/app"
        assert task.labels["depth"] == str(trail.depth)
        assert task.labels["decoys"] == str(len(trail.decoys))
    assert trail.code not in task.steps[0].instruction


def test_a_directory_with_other_tasks_is_not_touched(tmp_path):
    write_tasks(tmp_path, FAMILY)
    before = _tree(tmp_path)
    with pytest.raises(TaskError, match="exists with other content"):
        write_tasks(tmp_path, TrailFamily(train=12, heldout=12, decoys=(0, 2), seed=6))
    assert _tree(tmp_path) == before


@pytest.mark.parametrize(
    ("settings_", "key"),
    [
        ({"names": 4}, "names"),
        ({"names": 25}, "names"),
        ({"codes": 2}, "codes"),
        ({"codes": 91}, "codes"),
        ({"depths": (0,)}, "depths"),
        ({"decoys": ()}, "decoys"),
        ({"heldout": -1}, "heldout"),
        ({"heldout": 10_000}, "heldout"),
    ],
)
def test_a_family_that_cannot_be_cut_is_refused(settings_, key):
    with pytest.raises(ConfigurationError, match=key):
        TrailStream(TrailFamily(**settings_))


def test_tasks_of_other_settings_are_not_laid_among_those_that_are_there(tmp_path):
    write_tasks(tmp_path, TrailFamily(train=4, heldout=2))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(TaskError, match="tasks of other settings"):
        write_tasks(tmp_path, TrailFamily(train=2, heldout=2))
    assert sorted(tmp_path.rglob("*")) == before
    write_tasks(tmp_path, TrailFamily(train=5, heldout=2))  # more of the same
    assert len(list((tmp_path / "train").iterdir())) == 5
