"""A whole small training run whose reward is a rubric's alone: every process real, the judge a real HTTP server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import demo_parts as parts
import pytest
from control_world import write_task
from threaded_chat import ThreadedChat, judged, question_of, threaded_chat

from whippletree.configuration import dump
from whippletree.control.config import ControlConfig
from whippletree.control.rubrics.config import Criterion, RubricConfig
from whippletree.engines.config import HostedConfig
from whippletree.engines.embedded.config import EmbeddedConfig
from whippletree.learner.config import LearnerConfig
from whippletree.loop.config import HarnessSection, LoopSection, RunConfig, SamplingSection, SourceSection
from whippletree.loop.layout import Layout
from whippletree.loop.metrics import Log
from whippletree.loop.models import DirectoryModel
from whippletree.loop.sources import DirectoryTasks
from whippletree.rendering import RenderingConfig
from whippletree.sandboxes import SandboxConfig
from whippletree.store import open_store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STEPS = 3
SAID = re.compile(r"^Attempt ([A-Z]):\n<<<(\w{16}) last message>>>\n(.*?)\n<<<end \2>>>", re.M | re.S)


def says(question: str) -> dict[str, dict[str, int]]:
    """As many points for an attempt as its last message has letters, counted from 0 again after 4."""
    return {name: {"even": len(text) % 5} for name, _, text in SAID.findall(question)}


def model(directory: Path) -> Path:
    import torch
    from recorded_run import write_tokenizer
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(1)
    config = Qwen3Config(
        vocab_size=300, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, tie_word_embeddings=True, max_position_embeddings=256,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(directory)
    return write_tokenizer(directory)


def run_file(directory: Path, judge: ThreadedChat, boxes: str) -> Path:
    for name in ("train/t0", "train/t1", "heldout/h0"):
        write_task(directory / name)
    rubric = RubricConfig(
        name="manner",
        judge=HostedConfig(base_url=judge.url, model="judge-1"),
        criteria=(Criterion(name="even", text="it has a good length", points=4),),
        sees=("answer",),
        group_wise=True,
        explain=False,
    )
    config = RunConfig(
        sources=[
            SourceSection(
                name="s",
                tasks=DirectoryTasks(train=str(directory / "train"), heldout=str(directory / "heldout")),
                harness=HarnessSection(name="harness_parts:HttpHarness", settings={"command": "touch done"}),
            )
        ],
        model=DirectoryModel(path=str(model(directory / "model"))),
        sampling=SamplingSection(max_tokens=6),
        loop=LoopSection(kind="collocated", steps=STEPS, groups_per_step=2, group_size=4, groups_in_flight=3, eval_every=0),
        learner=LearnerConfig(token_budget=256, warmup_steps=1),
        engine=EmbeddedConfig(context=128, slots=8),
        rendering=RenderingConfig(template="tiny"),
        control=ControlConfig(concurrency=4, reward="0.5 * reward + 0.5 * manner", rubrics=(rubric,)),
        sandbox=SandboxConfig(kind="process", root=boxes),
    )
    path = directory / "run.toml"
    path.write_text(dump(config))
    return path


def train(directory: Path, *what: str) -> subprocess.Popen[str]:
    folders = [str(parts.ROOT / "tests" / name) for name in ("control", "ui")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(parts.ROOT), *folders]), "OMP_NUM_THREADS": "1"}
    with directory.with_suffix(".out").open("a") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "whippletree.cli", "train", "--plain", *what],
            stdout=output, stderr=output, text=True, start_new_session=True, env=environment, cwd=parts.ROOT,
        )  # fmt: skip


def test_a_run_trains_on_what_a_judge_says_and_a_killed_one_asks_nothing_twice(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    with threaded_chat(judged(says)) as judge, tempfile.TemporaryDirectory(prefix="wt-") as boxes:
        process = train(directory, str(run_file(tmp_path, judge, boxes)), "--run-dir", str(directory))
        parts.wait_for(lambda: parts.updates(directory) >= 1, process, directory, 200)
        (controller,) = parts.pids("whippletree.cli controller", directory)
        os.kill(controller, signal.SIGKILL)  # the supervisor starts it again
        summary = parts.finish(process, directory, 300)
    assert summary["complete"]
    parts.assert_trained_once(directory, STEPS)
    lines = Log(directory).steps()
    assert sum(line.tokens_trained for line in lines) > 0  # groups had different scores
    with open_store(Layout(directory).store) as store:
        trained = [store.rollout(name) for record in store.steps() for name in record.rollout_ids]
        assert len(trained) == STEPS * 8
        for rollout in trained:
            result = store.attempts(rollout.spec.rollout_id)[-1].result
            assert result is not None and rollout.reward == 0.5 * result.scores["reward"] + 0.5 * result.scores["manner"]
            assert rollout.reward == 0.5 + 0.5 * result.rubrics[0].score
    assert len(judge.asked) == len(set(map(question_of, judge.asked)))
    for line in lines:
        rubric = line.rubrics["manner"]
        assert (rubric.scored, rubric.failed) == (8, 0)
        assert rubric.mean is not None and line.reward_mean == pytest.approx(0.5 + 0.5 * rubric.mean)
