"""whippletree/loop/grid/running.py, whippletree/cli/grid.py: grids over real engines, gateways, controllers and sandboxes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from grid_parts import IDLES, WORKS, command, environment, evaluate, fine, grid_text, hosted, scripted, write_world
from threaded_chat import threaded_chat

from whippletree.errors import ConfigurationError
from whippletree.loop.grid.running import GridLayout, read_grid, read_results, record_of, resolve_tasks
from whippletree.loop.grid.standin import write_stand_in
from whippletree.loop.processes import free_ports
from whippletree.loop.sources import DirectoryTasks
from whippletree.rendering import RenderingConfig, load_renderer
from whippletree.store import open_store
from whippletree.types import Message, Rollout

pytestmark = pytest.mark.timeout(900)


@dataclass(frozen=True)
class Done:
    """A grid that was run to its end: its file, its directory, what the command said, what the API was asked for."""

    file: Path
    layout: GridLayout
    output: str
    asked: int


def rollouts(layout: GridLayout, model: str) -> dict[str, Rollout]:
    with open_store(layout.model(model).store, instance="test") as store:
        return {rollout.spec.rollout_id: rollout for rollout in store.rollouts()}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    root = tmp_path_factory.mktemp("grid")
    world = write_world(root / "world")
    with threaded_chat(fine) as api:
        models = f"{scripted(world, 'one')}\n\n{hosted(api.url)}"
        file = root / "grid.toml"
        file.write_text(grid_text(world, harnesses=[("works", WORKS), ("idles", IDLES)], models=models))
        ended = evaluate(str(file), "--run-dir", str(root / "g"))
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return Done(file, GridLayout(root / "g"), ended.stdout, len(api.asked))


def test_every_cell_of_the_grid_is_judged(done: Done):
    results = read_results(done.layout)
    assert results.failed == {}
    for model in ("one", "api"):
        works, idles = (results.block(model, harness) for harness in ("works", "idles"))
        assert (works.cells, works.valid, works.passed, works.rate.value) == (8, 8, 8, 1.0)
        assert (idles.valid, idles.passed, idles.rate.value) == (8, 0, 0.0)
        assert works.turns == 1.0 and works.seconds > 0 and works.rate.low < 1.0
    gaps = {(gap.kind, gap.within): gap for gap in results.differences}
    assert gaps["harnesses", "one"].estimate.value == -1.0
    assert gaps["models", "works"].estimate.value == 0.0


def test_a_chat_api_is_evaluated_without_a_model_of_ours(done: Done):
    config, layout = read_grid(done.layout.directory)
    cells = [cell for cell in record_of(config, layout) if cell.model == "api"]
    assert {(cell.grade, cell.prompt_tokens, cell.sampled_tokens) for cell in cells} == {("text", 30, 2)}
    assert done.asked == len(cells) + 3  # three requests grade it


def test_what_was_found_is_in_the_terminal_and_in_files(done: Done):
    for name in ("works", "idles", "one", "api", "pass@1", "pass@2", "idles - works", "-1.00"):
        assert name in done.output, name
    directory = done.layout.directory
    assert len((directory / "cells.jsonl").read_text().splitlines()) == 32
    assert len((directory / "grid.csv").read_text().splitlines()) == 1 + 4
    assert len((directory / "differences.csv").read_text().splitlines()) == 1 + 4
    assert (directory / "grid.png").read_bytes().startswith(b"\x89PNG")


def test_a_models_directory_is_a_run_that_the_other_commands_read(done: Done):
    directory = str(done.layout.model("api").directory)
    listed = subprocess.run(
        command("rollouts", "list", directory), env=environment(), capture_output=True, text=True, check=True
    )
    name = next(word for word in listed.stdout.split() if word.startswith("dir.works-heldout-0"))
    shown = subprocess.run(
        command("rollouts", "show", directory, name, "--tokens"), env=environment(), capture_output=True, text=True, check=True
    )
    assert "fine" in shown.stdout and "make a file called done" in shown.stdout


def test_nothing_is_evaluated_twice_and_more_samples_only_add(done: Done, tmp_path: Path):
    before = {model: rollouts(done.layout, model) for model in ("one", "api")}
    services = done.layout.model("one").services_file.read_bytes()
    again = evaluate(str(done.file), "--run-dir", str(done.layout.directory))
    assert again.returncode == 0 and "one: 0 of 16 cells to run" in again.stdout
    assert done.layout.model("one").services_file.read_bytes() == services  # nothing was started
    assert {model: rollouts(done.layout, model) for model in ("one", "api")} == before
    more = tmp_path / "more.toml"
    text = done.file.read_text().replace("samples = 2", "samples = 3")
    more.write_text(text[: text.index('[[models]]\nname = "api"')] + text[text.index("[[harnesses]]") :])
    added = evaluate(str(more), "--run-dir", str(done.layout.directory))
    assert added.returncode == 0, added.stdout + added.stderr
    assert "one: 8 of 24 cells to run" in added.stdout
    after = rollouts(done.layout, "one")
    assert len(after) == 24 and {name: after[name] for name in before["one"]} == before["one"]
    report = subprocess.run(
        command("report", str(done.layout.directory)), env=environment(), capture_output=True, text=True, check=False
    )
    assert report.returncode == 0 and "12/12" in report.stdout and "api" not in report.stdout


@pytest.mark.parametrize("name", ["cells.jsonl", "grid.csv", "grid.png"])
def test_the_table_is_shown_before_what_cannot_be_written(done: Done, tmp_path: Path, name: str):
    layout = GridLayout(shutil.copytree(done.layout.directory, tmp_path / "g"))
    (layout.directory / name).unlink()
    (layout.directory / name).mkdir()
    for words in (("eval", "--plain", str(done.file), "--run-dir"), ("report",)):
        ended = subprocess.run(
            command(*words, str(layout.directory)), env=environment(), capture_output=True, text=True, check=False
        )
        assert ended.returncode == 2
        assert "8/8" in ended.stdout and "idles - works" in ended.stdout
        assert f"{layout.directory / name}: Is a directory (a directory is where" in ended.stderr


def without(directory: Path, *modules: str) -> dict[str, str]:
    """The environment of processes that do not find these modules."""
    directory.mkdir()
    for name in modules:
        (directory / f"{name}.py").write_text(f"raise ModuleNotFoundError('not installed', name={name!r})")
    found = environment()
    return found | {"PYTHONPATH": os.pathsep.join((str(directory), found["PYTHONPATH"]))}


def test_without_matplotlib_a_grid_lacks_its_picture_alone(done: Done, tmp_path: Path):
    layout = GridLayout(shutil.copytree(done.layout.directory, tmp_path / "g"))
    for path in (layout.picture, layout.directory / "grid.csv"):
        path.unlink()
    ended = subprocess.run(
        command("report", str(layout.directory)),
        env=without(tmp_path / "hidden", "matplotlib"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "no picture: it needs matplotlib (pip install 'whippletree[plots]')" in ended.stdout
    assert not layout.picture.exists() and (layout.directory / "grid.csv").is_file()


def test_a_chat_api_is_evaluated_by_the_core_alone(tmp_path: Path):
    """As the core is installed: without what trains and draws."""
    world = write_world(tmp_path / "world")
    hidden = without(tmp_path / "hidden", "torch", "transformers", "safetensors", "pyarrow", "matplotlib", "peft")
    file = tmp_path / "grid.toml"
    with threaded_chat(fine) as api:
        file.write_text(grid_text(world, harnesses=[("works", WORKS)], models=hosted(api.url), samples=1))
        ended = subprocess.run(
            command("eval", "--plain", str(file), "--run-dir", str(tmp_path / "g")),
            env=hidden,
            capture_output=True,
            text=True,
            check=False,
        )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "4/4" in ended.stdout and "no picture" in ended.stdout


def test_only_the_set_that_is_evaluated_has_to_be_named(done: Done, tmp_path: Path):
    config, layout = read_grid(done.layout.directory)
    (source,) = config.sources
    assert isinstance(source.tasks, DirectoryTasks)
    alone = msgspec.structs.replace(source, tasks=DirectoryTasks(heldout=source.tasks.heldout))
    found = resolve_tasks(msgspec.structs.replace(config, sources=[alone]), layout)
    assert found == resolve_tasks(config, layout)
    other = msgspec.structs.replace(alone, split="train")
    with pytest.raises(ConfigurationError, match="has no train tasks"):
        resolve_tasks(msgspec.structs.replace(config, sources=[other]), layout)


def test_another_thing_under_an_old_name_is_refused(done: Done, tmp_path: Path):
    other = tmp_path / "other.toml"
    other.write_text(done.file.read_text().replace("touch /app/done", "touch /app/other"))
    ended = evaluate(str(other), "--run-dir", str(done.layout.directory))
    assert ended.returncode == 2 and "harnesses: works is not what" in ended.stderr


def test_a_killed_grid_goes_on_where_it_was(tmp_path: Path):
    world = write_world(tmp_path / "world", heldout=6)
    file, layout = tmp_path / "grid.toml", GridLayout(tmp_path / "g")
    gates = tmp_path / "gates"
    gates.mkdir()
    gated = WORKS | {"wait_for": f"{gates}/ROLLOUT"}
    text = grid_text(world, harnesses=[("gated", gated)], samples=2)
    file.write_text(text.replace("concurrency = 4", "concurrency = 2").replace("stall_limit = 60", "stall_limit = 600"))
    arguments = [str(file), "--run-dir", str(layout.directory)]
    process = subprocess.Popen(
        command("eval", "--plain", *arguments), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )

    def known() -> dict[str, Rollout]:
        return rollouts(layout, "one") if layout.model("one").store.is_dir() else {}

    def over() -> dict[str, Rollout]:
        return {name: rollout for name, rollout in known().items() if rollout.terminal}

    deadline = time.monotonic() + 400
    while len(over()) < 2:
        assert time.monotonic() < deadline and process.poll() is None
        for name, rollout in known().items():
            if rollout.state != "queuing" and len(list(gates.iterdir())) < 2:
                (gates / name).touch()
        time.sleep(0.05)
    busy = evaluate(*arguments)
    assert busy.returncode == 2 and "another" in busy.stderr
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = over()
    assert len(before) == 2
    for name in known():
        (gates / name).touch()
    ended = evaluate(*arguments)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    after = rollouts(layout, "one")
    assert len(after) == 12 and all(rollout.state == "succeeded" for rollout in after.values())
    assert {name: after[name] for name in before} == before
    assert "one: 10 of 12 cells to run" in ended.stdout


def test_invalid_cells_are_kept_apart_and_run_again_where_that_is_asked_for(tmp_path: Path):
    world = write_world(tmp_path / "world", heldout=2)
    (port,) = free_ports(1)
    missing = '[[models]]\nname = "gone"\nmodel = { kind = "directory", path = "/nowhere" }'
    models = "\n\n".join((missing, hosted(f"http://127.0.0.1:{port}/v1")))
    file, layout = tmp_path / "grid.toml", GridLayout(tmp_path / "g")
    text = grid_text(world, harnesses=[("works", WORKS)], models=models, samples=1, more="max_attempts = 1\n")
    file.write_text(f"{text}\n[gateway]\nengine_wait_limit = 1.0\n")
    arguments = [str(file), "--run-dir", str(layout.directory)]
    ended = evaluate(*arguments)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    results = read_results(layout)
    assert "/nowhere has no config.json" in results.failed["gone"]
    block = results.block("api", "works")
    assert (block.valid, block.invalid, block.missing, block.rate) == (0, 2, 0, None)
    assert sum(block.causes.values()) == 2
    assert results.block("gone", "works").missing == 2
    assert "gone could not be evaluated" in ended.stdout and "2 " in ended.stdout
    with threaded_chat(fine, port):
        assert evaluate(*arguments).returncode == 1  # invalid cells stay as they are
        ended = evaluate(*arguments, "--retry-invalid")
    assert ended.returncode == 1  # one model is still missing
    block = read_results(layout).block("api", "works")
    assert (block.valid, block.passed, block.invalid, block.tried_again) == (2, 2, 0, 2)


async def test_the_stand_in_tokenizer_takes_any_text(tmp_path: Path):
    renderer = load_renderer(write_stand_in(tmp_path), RenderingConfig(policy="engine", template="tiny"))
    text = "é \u202e \x00 <tool_call> 日本"
    ids = renderer.render([Message(role="user", content=text)], ())
    assert text in renderer.to_bytes(ids).decode()
