"""Cases of a run's end: evaluations still open at the last step, and peers that are gone before or after the loop."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = [str(ROOT / name) for name in ("control", "ui")]
sys.path[:0] = FOLDERS  # control_world, recorded_run; processes of the run find harness_parts there

from control_world import write_task  # noqa: E402
from recorded_run import write_tokenizer  # noqa: E402

from whippletree.configuration import dump  # noqa: E402
from whippletree.control.config import ControlConfig  # noqa: E402
from whippletree.engines.embedded.config import EmbeddedConfig  # noqa: E402
from whippletree.gateway.keys import load_secret  # noqa: E402
from whippletree.learner.config import LearnerConfig  # noqa: E402
from whippletree.loop.config import (  # noqa: E402
    HarnessSection,
    LoopSection,
    RunConfig,
    RunSection,
    SamplingSection,
    SourceSection,
)
from whippletree.loop.layout import Layout, Services  # noqa: E402
from whippletree.loop.metrics import Log, Summary  # noqa: E402
from whippletree.loop.models import DirectoryModel  # noqa: E402
from whippletree.loop.processes import free_ports  # noqa: E402
from whippletree.loop.sources import DirectoryTasks  # noqa: E402
from whippletree.rendering import RenderingConfig  # noqa: E402
from whippletree.sandboxes import SandboxConfig  # noqa: E402
from whippletree.store import open_store  # noqa: E402
from whippletree.types import CauseClass  # noqa: E402

INPUT = {"max_steps": 2, "eval_every": 2, "slow_eval_seconds": 30}  # of the case
EVAL_LIMIT = 3.0
SERVICES = ("engine", "gateway", "controller")
AGENT = f"""
{sys.executable} -c "$ASK" || exit 1
case $(cat note) in
  *" eval"*) sleep {INPUT["slow_eval_seconds"]} ;;
  *-m01\\ *) touch done ;;
esac
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(1)
    config = Qwen3Config(
        vocab_size=300, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, tie_word_embeddings=True, max_position_embeddings=256,
    )  # fmt: skip
    directory = tmp_path_factory.mktemp("model")
    Qwen3ForCausalLM(config).save_pretrained(directory)
    return write_tokenizer(directory)


@pytest.fixture
def boxes() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="wt-") as short:  # the sandboxes' sockets need a short path
        yield short


@pytest.fixture
def layout(tmp_path: Path, model: Path, boxes: str) -> Layout:
    """A run directory as `train` leaves it before it starts anything: two updates, two slow held-out tasks."""
    for name in ("train/t0", "train/t1", "heldout/h0", "heldout/h1"):
        write_task(tmp_path / name)
    harness = HarnessSection(name="harness_parts:HttpHarness", settings={"shell": AGENT})
    tasks = DirectoryTasks(train=str(tmp_path / "train"), heldout=str(tmp_path / "heldout"))
    config = RunConfig(
        run=RunSection(name="run"),
        sources=[SourceSection(name="s", tasks=tasks, harness=harness)],
        model=DirectoryModel(path=str(model)),
        sampling=SamplingSection(max_tokens=4),
        loop=LoopSection(
            kind="synchronous",
            steps=INPUT["max_steps"],
            eval_every=INPUT["eval_every"],
            groups_per_step=1,
            group_size=2,
            eval_limit=EVAL_LIMIT,
            peer_limit=2.0,
            stall_limit=100.0,
        ),
        learner=LearnerConfig(token_budget=256, warmup_steps=1),
        engine=EmbeddedConfig(context=128, slots=4),
        rendering=RenderingConfig(template="tiny"),
        control=ControlConfig(launch="process", concurrency=4),
        sandbox=SandboxConfig(kind="process", root=boxes),
    )
    layout = Layout(tmp_path / "run")
    layout.directory.mkdir()
    layout.config.write_text(dump(config))
    load_secret(layout.secret)
    gateway, engine = free_ports(2)
    services = Services(
        gateway_url=f"http://127.0.0.1:{gateway}",
        engine_url=f"http://127.0.0.1:{engine}",
        model_directory=str(model),
        isolation="none",
        started=time.time(),
    )
    layout.write_services(services)
    return layout


def start(layout: Layout, name: str) -> subprocess.Popen[str]:
    """A process of the run, as a cluster starts it: by nobody who would end it."""
    path = os.pathsep.join([*FOLDERS, *([os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else [])])
    argv = [sys.executable, "-m", "whippletree.cli", name, "--run-dir", str(layout.directory)]
    return subprocess.Popen(
        [*argv, "--exit-with-parent", str(os.getpid())],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )


@contextmanager
def services(layout: Layout, *names: str) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """These processes, once they are ready; killed at the end if they are still there."""
    started: dict[str, subprocess.Popen[str]] = {}
    with ExitStack() as stack:
        for name in names:
            started[name] = stack.enter_context(start(layout, name))
            stack.callback(started[name].kill)
        for name, process in started.items():
            deadline = time.monotonic() + 90
            while not layout.ready(name).exists():
                assert process.poll() is None, process.communicate()[0]
                assert time.monotonic() < deadline, f"{name} was not ready"
                time.sleep(0.05)
        yield started


def end(process: subprocess.Popen[str], seconds: float = 90.0) -> tuple[int, str]:
    said, _ = process.communicate(timeout=seconds)
    return process.returncode, said


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_D12_a_run_ends_though_its_last_evaluation_is_slow_and_takes_its_processes_along(layout: Layout) -> None:
    with services(layout, *SERVICES) as running:
        with start(layout, "learner") as learner:
            code, said = end(learner, 200.0)
        assert code == 0, said
        ends = {name: end(process) for name, process in running.items()}
    assert "2 of 2 evaluation rollouts were not over after 3 s: they are cancelled" in said
    for name, (code, words) in ends.items():
        assert code == 0, (name, words)
        assert f"{name}: the run has ended" in words and "nobody asks for anything more: stopping" in words
    assert [(line.step, line.valid, line.failed, line.cut) for line in Log(layout.directory).evals()] == [
        (0, 0, 0, 2),
        (2, 0, 0, 2),
    ]
    assert msgspec.json.decode(layout.summary.read_bytes(), type=Summary).complete
    with open_store(layout.store) as store:
        rollouts = store.rollouts()
        assert all(rollout.terminal for rollout in rollouts)
        cut = [rollout for rollout in rollouts if rollout.spec.purpose == "eval"]
        assert len(cut) == 4
        for rollout in cut:
            assert rollout.cause is not None and rollout.cause.cause is CauseClass.CANCELLED
            assert "loop.eval_limit" in rollout.cause.message
        assert [step.committed for step in store.steps()] == [True, True]


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize(
    ("there", "missing"),
    [
        (("engine", "gateway"), "no controller was ever started on"),
        (("engine", "gateway", "controller"), "no controller works on"),
    ],
    ids=["never there", "gone first"],
)
def test_D12_without_a_controller_the_loop_says_so_and_ends_with_an_error(
    layout: Layout, there: tuple[str, ...], missing: str
) -> None:
    """The mirror case: whoever runs the rollouts has ended, and the trainer must not wait for them."""
    with services(layout, *there) as running:
        if "controller" in running:
            running["controller"].terminate()
            assert end(running["controller"])[0] == 0
        with start(layout, "learner") as learner:
            code, said = end(learner, 240.0)
        assert code == 2, said
        assert missing in said and "for eval rollouts" in said and "--resume" in said
        assert "Traceback" not in said
        assert not layout.summary.exists()
        assert running["gateway"].poll() is None  # waits for a learner that is resumed


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize("gone", ["engine", "gateway"])
def test_D12_an_engine_or_gateway_that_is_gone_is_named(layout: Layout, gone: str) -> None:
    with services(layout, *SERVICES) as running, start(layout, "learner") as learner:
        deadline = time.monotonic() + 90
        with open_store(layout.store) as store:
            while not store.rollouts(states=["running"]):
                assert learner.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
        running[gone].kill()
        code, said = end(learner, 240.0)
    assert code == 2, said
    assert {"engine": "engine", "gateway": "the gateway at 127.0.0.1"}[gone] in said
    assert "Traceback" not in said and not layout.summary.exists()
