"""whippletree/tasks/suites/bugs.py"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from whippletree.errors import ConfigurationError
from whippletree.tasks import check_task, load_task
from whippletree.tasks.suites.bugs import HELDOUT, HOME, TRAIN, make_repository, module_files, write_bugs
from whippletree.tasks.suites.config import BugsFamily


def test_there_is_a_dozen_of_modules_each_in_one_set():
    names = {path.name for path in HOME.iterdir() if not path.name.startswith(("_", "."))}
    assert names == {*TRAIN, *HELDOUT} and len(names) == len(TRAIN) + len(HELDOUT) >= 12


@pytest.mark.parametrize("name", [*TRAIN, *HELDOUT])
def test_every_module_is_small_and_passes_its_tests(name: str, tmp_path: Path):
    files = module_files(name)
    assert set(files) == {f"{name}.py", f"test_{name}.py"}
    assert 30 <= len(files[f"{name}.py"].splitlines()) <= 150
    repository = make_repository(name, tmp_path)
    command = ["/usr/bin/env", "python3", "-B", "-m", "unittest", "-q"]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and "OK" in done.stderr, done.stderr
    log = subprocess.run(["git", "-C", repository, "log", "--oneline"], capture_output=True, text=True, check=True)
    assert len(log.stdout.splitlines()) == 1


async def test_a_small_suite_is_accepted_by_the_checker(tmp_path: Path, make_sandbox):
    family = BugsFamily(train=2, heldout=1)
    tallies = await write_bugs(tmp_path, family, make_sandbox)
    assert {split: list(found) for split, found in tallies.items()} == {"train": list(TRAIN[:2]), "heldout": [HELDOUT[0]]}
    tasks = {split: sorted(path.parent for path in tmp_path.glob(f"{split}/*/task.toml")) for split in ("train", "heldout")}
    assert [len(found) for found in tasks.values()] == [2, 1]
    for path in [*tasks["train"], *tasks["heldout"]]:
        check = await check_task(load_task(path), make_sandbox, times=1)
        assert check.problems == ()
    families = {split: {load_task(path).labels["family"] for path in found} for split, found in tasks.items()}
    assert not families["train"] & families["heldout"]


async def test_negative_numbers_are_refused(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="negative"):
        await write_bugs(tmp_path, BugsFamily(train=-1), lambda spec: None)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("make_sandbox", ["bubblewrap"], indirect=True)  # one backend is enough for the sweep
async def test_a_suite_of_every_module_is_made_and_accepted(tmp_path: Path, make_sandbox):
    tallies = await write_bugs(tmp_path, BugsFamily(train=36, heldout=12), make_sandbox)
    counts = {split: sum(tally.kept for tally in found.values()) for split, found in tallies.items()}
    assert counts == {"train": 36, "heldout": 12}
