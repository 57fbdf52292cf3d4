"""whippletree/loop/sft/training.py: updates of a real small model."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from recorded_run import write_tokenizer
from sft_parts import recording

from whippletree.configuration import convert
from whippletree.errors import ConfigurationError
from whippletree.learner.config import LearnerConfig
from whippletree.learner.learner import Learner
from whippletree.learner.losses.config import SFTLoss
from whippletree.loop.sft.config import ExportConfig, SftConfig
from whippletree.loop.sft.exporting import export
from whippletree.loop.sft.training import SftMetrics, SftRun, SftSummary, make_rows, read_metrics
from whippletree.rendering import RenderingConfig, load_renderer
from whippletree.types import Sample

NAMES = ("amber", "birch", "cedar", "delta", "ember", "frost")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows nothing, and exports of a run of six tasks."""
    import torch
    from engine_parts import build

    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("sft-training")
    shape = {"vocab_size": 320, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    build(root / "model", "qwen3", 1, **shape)
    write_tokenizer(root / "model")
    with recording(root / "demo") as (recorder, _):
        for number, name in enumerate(NAMES):
            recorder.rollout(f"r{number}", [f"cat {name}", f"submit {10 + number}"], task_id=f"t{number}")
    for form in ("chat", "tokens"):
        export([root / "demo"], root / form, ExportConfig(format=form, deduplicate=form == "chat"))
    return root


def run_of(
    world: Path, directory: Path, form: str = "chat", tell=lambda line: None, kind: type[SftRun] = SftRun, **sft: object
) -> SftRun:
    section = {"epochs": 4, "batch_tokens": 60, "heldout": 0.2, "measure_every": 3, "checkpoint_every": 2}
    data = {
        "data": [form],
        "sft": section | sft,
        "rendering": {"template": "tiny"},
        "learner": {"learning_rate": 3e-3, "warmup_steps": 1, "schedule": "linear"},
    }
    config = convert(SftConfig, data, "test")
    return kind(config, directory, data=[str(world / form)], model_directory=world / "model", tell=tell)


@pytest.mark.parametrize("form", ["chat", "tokens"])
def test_the_loss_falls_and_the_model_is_what_engines_load(world: Path, tmp_path: Path, form: str):
    told: list[SftMetrics] = []
    run = run_of(world, tmp_path, form, told.append)
    summary = run.run()
    assert summary.loss_last < 0.8 * summary.loss_first
    assert summary.heldout_after < summary.heldout_before
    assert [line.step for line in told] == list(range(len(run.batches) + 1)) == [line.step for line in read_metrics(tmp_path)]
    assert {line.step for line in told if line.heldout_loss is not None} == {0, len(run.batches)} | set(
        range(3, len(run.batches) + 1, 3)
    )
    assert msgspec.json.decode((tmp_path / "summary.json").read_bytes(), type=SftSummary) == summary
    again = Learner(tmp_path / "model", LearnerConfig(), temperature=1.0)
    prompt = list(range(5, 25))
    assert np.array_equal(again.score(prompt), run.learner.score(prompt))
    assert load_renderer(tmp_path / "model", RenderingConfig(template="tiny")).stop_token_ids


def test_held_out_tasks_are_never_learned_from(world: Path, tmp_path: Path):
    run = run_of(world, tmp_path)
    tasks = {name: run.encoded.origins[name].task_id for name in run.encoded.samples}
    assert {tasks[name] for batch in run.batches for name in batch} == {tasks[name] for name in run.learned}
    assert not {tasks[name] for name in run.learned} & {tasks[name] for name in run.held} and run.held


def test_a_killed_run_goes_on_to_the_same_weights(world: Path, tmp_path: Path):
    import torch

    whole, cut = run_of(world, tmp_path / "whole"), tmp_path / "cut"
    whole.run()

    class Killed(Exception):
        pass

    def kill(line: SftMetrics) -> None:
        if line.step == 5:  # the checkpoint before it holds 4
            raise Killed

    with pytest.raises(Killed):
        run_of(world, cut, tell=kill).run()
    resumed = run_of(world, cut)
    resumed.run()
    for name, tensor in whole.learner.model.state_dict().items():
        assert torch.equal(tensor, resumed.learner.model.state_dict()[name]), name
    lines = [[(line.step, line.loss, line.heldout_loss) for line in read_metrics(place)] for place in (tmp_path / "whole", cut)]
    assert lines[0] == lines[1]


@pytest.mark.parametrize("step", [4, "last"])
def test_a_run_that_is_killed_behind_a_checkpoint_has_every_line(world: Path, tmp_path: Path, step: int | str):
    whole = run_of(world, tmp_path / "whole").run()

    class Killed(Exception):
        pass

    class Cut(SftRun):
        def _save(self, done: int) -> None:
            super()._save(done)
            if done == (len(self.batches) if step == "last" else step):
                raise Killed

    with pytest.raises(Killed):
        run_of(world, tmp_path / "cut", kind=Cut).run()
    resumed = run_of(world, tmp_path / "cut").run()
    for name in ("tokens", "loss_last", "heldout_before", "heldout_after"):
        assert getattr(resumed, name) == getattr(whole, name), name


def test_a_stopped_run_has_done_what_it_told(world: Path, tmp_path: Path):
    import torch

    whole = run_of(world, tmp_path / "whole", checkpoint_every=50)
    whole.run()
    stopped = run_of(world, tmp_path / "cut", checkpoint_every=50, tell=lambda line: line.step == 3 and stopped.stop())
    with pytest.raises(KeyboardInterrupt):
        stopped.run()
    assert [path.name for path in (tmp_path / "cut" / "checkpoints").glob("step-*")] == ["step-0003"]
    told: list[SftMetrics] = []
    resumed = run_of(world, tmp_path / "cut", checkpoint_every=50, tell=told.append)
    resumed.run()
    assert told[0].step == 4
    for name, tensor in whole.learner.model.state_dict().items():
        assert torch.equal(tensor, resumed.learner.model.state_dict()[name]), name


def test_an_updates_loss_is_the_mean_over_its_tokens_however_they_lie(world: Path):
    draw = np.random.default_rng(1)
    prompt = draw.integers(5, 300, 10)
    samples = []
    for number, length in enumerate((3, 9, 20)):
        ids = np.concatenate([prompt, draw.integers(5, 300, length)]).astype(np.int32)
        samples.append(
            Sample(
                sample_id=f"s{number}",
                rollout_id=f"r{number}",
                group_id="g",
                call_ids=(),
                token_ids=ids,
                trained=np.arange(len(ids)) >= 10,
                logprobs=np.zeros(len(ids), np.float32),
                versions=np.zeros(len(ids), np.int32),
            )
        )
    found = {}
    for packing, budget in (("tree", 512), ("rows", 40), ("single", 8)):
        config = LearnerConfig(loss=SFTLoss(), packing=packing, token_budget=budget)
        learner = Learner(world / "model", config, temperature=1.0)
        scores = [learner.score(sample.token_ids.tolist())[9:] for sample in samples]
        expected = -float(np.concatenate(scores).mean())
        rows = make_rows(samples, config)
        found[packing] = (len(rows), sum(len(row.token_ids) for row in rows))
        assert learner.update(rows).loss == pytest.approx(expected, rel=1e-5)
    assert found["tree"] == (1, 10 + 3 + 9 + 20)
    assert found["single"][0] == 3


def test_nothing_to_learn_from_and_strange_tokens_are_refused(world: Path, tmp_path: Path):
    with pytest.raises(ConfigurationError, match=r"nothing to learn from \(12 x longer"):
        run_of(world, tmp_path, longest=3)
    with recording(tmp_path / "demo") as (recorder, _):
        recorder.rollout("a", ["cat amber"])
    from engine_parts import build

    build(tmp_path / "small", "qwen3", 1, vocab_size=22, hidden_size=32, intermediate_size=64, num_hidden_layers=1)
    export([tmp_path / "demo"], tmp_path / "tokens", ExportConfig(format="tokens"))
    config = convert(SftConfig, {"data": ["tokens"]}, "test")
    with pytest.raises(ConfigurationError, match="token 25, the model only 22"):
        SftRun(config, tmp_path / "out", data=[str(tmp_path / "tokens")], model_directory=tmp_path / "small", tell=print)
