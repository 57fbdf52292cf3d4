"""whippletree/cli/services.py: the processes of a run, each started as its command."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from recorded_run import configure, new_run, write_tokenizer

from whippletree.cli import services
from whippletree.configuration import load
from whippletree.engines.connect import connect
from whippletree.loop.config import RunConfig
from whippletree.loop.layout import Layout
from whippletree.loop.processes import free_ports, sampling_children

PROMPT = [1, 9, 4, 22, 7]


def write_model(directory: Path, seed: int) -> Path:
    """A very small random model with a tokenizer of bytes."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=300, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, initializer_range=0.3, tie_word_embeddings=True, max_position_embeddings=128,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(directory)
    return write_tokenizer(directory)


@pytest.fixture(scope="module")
def models_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    for seed in (1, 2):
        write_model(root / f"m{seed}", seed)
    return root


@pytest.fixture
def layout(tmp_path: Path, models_dir: Path) -> Layout:
    """A run directory as `train` leaves it before it starts anything, with free ports and a real model."""
    _, layout = new_run(tmp_path / "run")
    configure(
        layout,
        ('[rendering] template = ""', 'template = "tiny"'),
        ("context = 1024", "context = 64"),
        ('launch = "pool"', 'launch = "process"'),
    )
    gateway, engine = free_ports(2)
    known = msgspec.structs.replace(
        layout.read_services(),
        gateway_url=f"http://127.0.0.1:{gateway}",
        engine_url=f"http://127.0.0.1:{engine}",
        model_directory=str(models_dir / "m1"),
    )
    layout.write_services(known)
    return layout


@contextlib.contextmanager
def running(layout: Layout, name: str) -> Iterator[subprocess.Popen[str]]:
    """The command, once its ready file is there; ended by SIGTERM, with status 0."""
    layout.ready(name).unlink(missing_ok=True)
    argv = [
        sys.executable,
        "-m",
        "whippletree.cli",
        name,
        "--run-dir",
        str(layout.directory),
        "--exit-with-parent",
        str(os.getpid()),
    ]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            deadline = time.monotonic() + 60
            while not layout.ready(name).exists():
                assert process.poll() is None, process.stdout.read()
                assert time.monotonic() < deadline, f"{name} was not ready within a minute"
                time.sleep(0.02)
            yield process
        finally:
            process.terminate()
            process.wait(30)
    assert process.returncode == 0


def test_a_process_under_a_supervisor_leaves_its_end_to_it(layout: Layout) -> None:
    """By itself it would end while the learner still does, and be started again."""
    parser = argparse.ArgumentParser()
    services.add_commands(parser.add_subparsers(dest="command"))
    for spec in sampling_children(load(RunConfig, layout.config), layout):
        services._begin(parser.parse_args(spec.argv[3:]))
    assert "end-with-run" not in [thread.name for thread in threading.enumerate()]


async def served(layout: Layout) -> tuple[int, list[float]]:
    """Policy version and scores of a known prompt, from the engine of the run."""
    engine = connect("embedded", layout.read_services().engine_url)
    try:
        return (await engine.status()).policy_version, await engine.score(PROMPT)
    finally:
        await engine.close()


async def test_a_restarted_engine_serves_the_weights_that_were_published_last(layout: Layout, models_dir: Path):
    with running(layout, "engine"):
        first, before = await served(layout)
    for version, source in ((3, "m1"), (12, "m2")):
        shutil.copytree(models_dir / source, layout.weights / f"version-{version:06d}")
    with running(layout, "engine"):
        second, after = await served(layout)
    assert (first, second) == (0, 12)
    assert max(abs(a - b) for a, b in zip(before, after, strict=True)) > 0.01
    shutil.rmtree(layout.weights / "version-000012")
    with running(layout, "engine"):
        third, again = await served(layout)
    assert third == 3
    assert again == pytest.approx(before, abs=1e-5)


def asked(url: str) -> int:
    """HTTP status of a request without a key."""
    try:
        with urllib.request.urlopen(url, timeout=60) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("engine", lambda layout: f"{layout.read_services().engine_url}/v1/models"),
        ("gateway", lambda layout: f"{layout.read_services().gateway_url}/v1/models"),
    ],
)
def test_the_ready_file_is_there_only_once_requests_are_answered(layout: Layout, name: str, url: Callable[[Layout], str]):
    with running(layout, name):
        assert asked(url(layout)) in (200, 401)


def test_the_controller_takes_rollouts_once_it_is_ready_and_stops_cleanly(layout: Layout):
    with running(layout, "controller"):
        second = subprocess.run(
            [sys.executable, "-m", "whippletree.cli", "controller", "--run-dir", str(layout.directory)],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert second.returncode != 0  # one controller per run directory
        assert "Traceback" not in second.stderr


def set_engine(layout: Layout, kind: str) -> None:
    text = layout.config.read_text(encoding="utf-8")
    head, _, rest = text.partition("[engine]\n")
    tail = rest[rest.index("\n# ", rest.index("\n\n")) :]
    layout.config.write_text(f'{head}[engine]\nkind = "{kind}"\n{tail}', encoding="utf-8")


async def test_a_scripted_engine_is_served_like_the_embedded_one(layout: Layout):
    set_engine(layout, "scripted")
    with running(layout, "engine"):
        version, scores = await served(layout)
    assert (version, len(scores)) == (0, len(PROMPT) - 1)


def test_an_engine_that_runs_elsewhere_is_refused(layout: Layout):
    set_engine(layout, "vllm")
    done = subprocess.run(
        [sys.executable, "-m", "whippletree.cli", "engine", "--run-dir", str(layout.directory)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("whippletree engine: [engine] is VllmConfig")
