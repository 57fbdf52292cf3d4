"""A grid whose models a real vLLM serves: by token ids, and as any OpenAI-compatible endpoint; and a real vLLM as the judge."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from grid_parts import evaluate
from vllm_parts import PYTHON, needs_vllm, vllm_server

from whippletree.cli.training import CACHE
from whippletree.loop.grid.running import GridLayout, read_grid, read_results, record_of
from whippletree.loop.models import TinyModel, prepare_model
from whippletree.store import open_store

pytestmark = [pytest.mark.vllm, pytest.mark.live, pytest.mark.timeout(1200), needs_vllm]

TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser=hermes")
DENSE = '--structured-outputs-config={"backend": "xgrammar", "disable_any_whitespace": true}'
SAMPLES, TASKS = 2, 3

GRID = """
[grid]
name = "g"
samples = {samples}
resamples = 200

[[models]]
name = "tokens"
model = {{ kind = "directory", path = "{model}" }}
engine = {{ kind = "vllm", url = "{url}", context = 512 }}
rendering = {{ template = "tiny" }}

[[models]]
name = "chat"
engine = {{ kind = "hosted", base_url = "{url}/v1", model = "policy", context = 512 }}

[[harnesses]]
name = "mini"

[harnesses.harness]
name = "mini-swe-agent"

[harnesses.harness.settings]
mode = "toolcall"
system_template = "Work with the bash tool."
observation_template = "{{{{output.output}}}}"
step_limit = 4

[[sources]]
name = "trail"
tasks = {{ kind = "trail" }}
limit = {tasks}

[sampling]
max_tokens = 32

[control]
launch = "pool"
concurrency = 4

[control.pool]
hosts = 1
tenants = 4

[[control.rubrics]]
name = "manner"
sees = ["instruction", "transcript"]
group_wise = true
explain = false
max_tokens = 200
criteria = [{{ name = "direct", text = "nothing was done that was not needed", points = 2 }}]
judge = {{ base_url = "{url}/v1", model = "policy" }}
"""


def long_model(directory: Path) -> Path:
    """The demo's tiny model, said to take long prompts: a judge's are."""
    shutil.copytree(prepare_model(TinyModel(), seed=1, cache=CACHE / "models"), directory)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 8192}))
    return directory


def test_models_and_a_judge_behind_vllm(tmp_path: Path) -> None:
    model = long_model(tmp_path / "model")
    layout = GridLayout(tmp_path / "g")
    with vllm_server(PYTHON, model, tmp_path / "vllm.log", [*TOOLS, DENSE]) as url:
        file = tmp_path / "grid.toml"
        file.write_text(GRID.format(samples=SAMPLES, tasks=TASKS, model=model, url=url))
        ended = evaluate(str(file), "--run-dir", str(layout.directory), timeout=600)
        assert ended.returncode == 0, ended.stdout + ended.stderr
    results = read_results(layout)
    config, _ = read_grid(layout.directory)
    cells = record_of(config, layout)
    for name, grades in (("tokens", {"tokens"}), ("chat", {"text"})):
        block = results.block(name, "mini")
        assert (block.cells, block.valid) == (SAMPLES * TASKS, SAMPLES * TASKS), [cell for cell in cells if cell.cause]
        mine = [cell for cell in cells if cell.model == name]
        assert {cell.grade for cell in mine} == grades
        assert sum(cell.tool_calls for cell in mine) > 0 and all(cell.turns > 0 for cell in mine)
        assert scores_of(layout, name) == Counter({True: SAMPLES * TASKS})


def scores_of(layout: GridLayout, name: str) -> Counter[bool]:
    """Whether the judge gave each attempt of a model a score, which is of two points."""
    found: Counter[bool] = Counter()
    with open_store(layout.model(name).store) as store:
        for rollout in store.rollouts():
            result = store.attempts(rollout.spec.rollout_id)[-1].result
            assert result is not None
            (given,) = result.rubrics
            found[given.score in (0.0, 0.5, 1.0)] += 1
    return found
