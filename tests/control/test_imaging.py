"""Attempts on images: made once, ahead where there is time, within limits, and stopped with whoever waits for them."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from attempt_parts import failed, run_one
from control_world import REWARD, World, until, write_task
from image_parts import kept, needs_images, on_images, write_image_task

from whippletree.control.config import DeadlineConfig
from whippletree.control.imaging import Imaging, backing_of
from whippletree.errors import ConfigurationError, ImageError
from whippletree.sandboxes import SandboxConfig
from whippletree.tasks.images import Backing, BuiltImage
from whippletree.types import CauseClass

PHASES = ["image", "boot", "setup", "agent", "seal", "verify", "cleanup"]
LIMITS = DeadlineConfig(grace=2.0, seal=10.0)


@pytest.fixture
def images(world: World) -> Iterator[Path]:
    with on_images(world) as directory:
        yield directory


@needs_images
async def test_two_attempts_run_on_one_build(world: World, images: Path, tmp_path: Path) -> None:
    count = tmp_path / "podman"
    count.write_text(f'#!/bin/sh\necho "$@" >> {shlex.quote(str(tmp_path / "calls"))}\nexec podman "$@"\n')
    count.chmod(0o755)
    world.sandbox = msgspec.structs.replace(world.sandbox, podman=str(count))
    task = write_image_task(tmp_path / "t", "ENV COLOUR=red\nRUN echo built > /app/note; echo $COLOUR >> /app/note\n")
    names = world.add(2, task)
    settings = {"command": 'grep -q built note && [ "$COLOUR" = red ] && [ "$(id -u)" = 0 ] && touch done'}
    async with world.controlling(world.spec(settings=settings)):
        rollouts = await world.finished(names)
    assert [(rollout.state, rollout.reward, rollout.cause) for rollout in rollouts] == [("succeeded", 1.0, None)] * 2
    for name in names:
        (attempt,) = world.store.attempts(name)
        assert [phase.name for phase in attempt.phases] == PHASES and attempt.sandbox.startswith("runc:")
        assert attempt.phases[0].limit == LIMITS.image
    builds = [line for line in (tmp_path / "calls").read_text().splitlines() if " build " in line]
    assert len(builds) == 1 and len(kept(images)) == 1 and world.boxes() == []


@needs_images
async def test_a_build_that_fails_has_its_own_cause_and_the_builders_words(world: World, images: Path, tmp_path: Path) -> None:
    task = write_image_task(tmp_path / "t", "RUN echo no such package; exit 7\n")
    rollout, attempt = await run_one(world, task, max_attempts=2)
    message = failed(rollout, CauseClass.IMAGE, "image")
    assert "no such package" in message and "7" in message and "podman build" in message
    assert attempt.attempt == 2 and [phase.name for phase in attempt.phases] == ["image"] and kept(images) == []


@needs_images
@pytest.mark.parametrize(
    ("toml", "limit", "cause"),
    [("[environment]\nbuild_timeout_sec = 1.5\n", 60.0, CauseClass.IMAGE), ("", 1.5, CauseClass.DEADLINE)],
)
async def test_a_build_ends_at_the_tasks_limit_and_at_the_phases(
    world: World, images: Path, tmp_path: Path, toml: str, limit: float, cause: CauseClass
) -> None:
    mark = f"47{os.getpid()}"
    task = write_image_task(tmp_path / "t", f"RUN sleep {mark}\n", toml=toml)
    deadlines = msgspec.structs.replace(LIMITS, image=limit)
    rollout, attempt = await run_one(world, task, deadlines=deadlines)
    assert "1.5 s" in failed(rollout, cause, "image")
    assert [(phase.name, phase.overran) for phase in attempt.phases] == [("image", cause is CauseClass.DEADLINE)]
    assert not running(f"sleep {mark}")


@needs_images
async def test_an_attempt_that_is_cancelled_ends_its_build(world: World, images: Path, tmp_path: Path) -> None:
    mark = f"48{os.getpid()}"
    (name,) = world.add(1, write_image_task(tmp_path / "t", f"RUN sleep {mark}\n"))
    async with world.controlling(world.spec()):
        await until(lambda: bool(running(f"sleep {mark}")))
        world.store.cancel([name], "enough").result()
        await until(lambda: not running(f"sleep {mark}"))
        other = world.add(1, write_task(tmp_path / "plain"))
        assert [rollout.state for rollout in await world.finished(other)] == ["succeeded"]
    assert world.store.rollout(name).state == "failed" and kept(images) == []
    left = [path.name for path in (images / "podman" / "left").iterdir()] if (images / "podman" / "left").exists() else []
    assert left == [] and not list(images.glob(".making-*"))


@needs_images
async def test_stopping_the_controller_during_a_build_puts_the_rollout_back(world: World, images: Path, tmp_path: Path) -> None:
    mark = f"49{os.getpid()}"
    (name,) = world.add(1, write_image_task(tmp_path / "t", f"RUN sleep {mark}\n"), max_attempts=1)
    async with world.controlling(world.spec()):
        await until(lambda: bool(running(f"sleep {mark}")))
    assert world.store.rollout(name).state == "queuing" and not running(f"sleep {mark}")


@needs_images
async def test_images_of_queuing_rollouts_are_made_ahead(
    world: World, images: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "whippletree.control.ahead")
    first = world.add(1, write_task(tmp_path / "first"))
    later = world.add(2, write_image_task(tmp_path / "later"))
    broken = world.add(2, write_image_task(tmp_path / "broken", "RUN exit 3\n"), max_attempts=1)
    go = tmp_path / "go"
    settings = {"wait_for": str(go), "command": "touch done"}
    async with world.controlling(world.spec(concurrency=1, settings=settings)):
        await until(lambda: bool(kept(images)) and bool(told(caplog, "ahead")))
        assert {world.store.rollout(name).state for name in (*later, *broken)} == {"queuing"}
        go.touch()
        await world.finished([*first, *later, *broken])
    assert [len(world.store.attempts(name)) for name in (*first, *later, *broken)] == [1] * 5
    assert {world.store.rollout(name).state for name in (*first, *later)} == {"succeeded"}
    for name in broken:
        failed(world.store.rollout(name), CauseClass.IMAGE, "image")
    assert len(told(caplog, "ahead")) == 1 and str(tmp_path / "broken") in told(caplog, "ahead")[0]


@needs_images
async def test_nothing_is_made_ahead_for_sandboxes_without_images(world: World, images: Path, tmp_path: Path) -> None:
    world.sandbox = msgspec.structs.replace(world.sandbox, kind="process")
    names = world.add(1, write_image_task(tmp_path / "t"), max_attempts=2)
    async with world.controlling(world.spec()):
        (rollout,) = await world.finished(names)
    message = failed(rollout, CauseClass.TASK, "boot")
    assert "Dockerfile:4: RUN is not supported" in message and rollout.cause is not None
    assert 'set sandbox.kind = "runc"' in rollout.cause.next_step and not (images / "podman").exists()


@needs_images
async def test_a_separate_verifier_and_limits_of_its_own(world: World, images: Path, tmp_path: Path) -> None:
    test = f"#!/bin/sh\n[ -e /app/out ] && [ -e /judge ] && [ ! -e /app/busy ] && echo 1 {REWARD} || echo 0 {REWARD}\n"
    toml = "artifacts = ['out']\n[environment]\ncpus = 0.5\nstorage_mb = 7\n[verifier]\nenvironment_mode = 'separate'\n"
    task = write_image_task(tmp_path / "t", test=test, toml=toml)
    write_image_task(tmp_path / "judge", "RUN touch /judge\n")
    for name in ("Dockerfile", "busybox"):
        (tmp_path / "judge" / "environment" / name).rename(task / "tests" / name)
    settings = {"command": "touch busy; df -m / | tail -n 1 | tr -s ' ' | cut -d ' ' -f 2 > out"}
    rollout, attempt = await run_one(world, task, settings=settings)
    assert (rollout.state, rollout.reward, rollout.cause) == ("succeeded", 1.0, None)
    out = next((world.directory / "attempts").rglob("artifacts/app/out"))
    assert out.read_text() == "7\n" and len(kept(images)) == 2
    assert [phase.name for phase in attempt.phases] == [*PHASES[:5], "collect", *PHASES[5:]]


def running(mark: str) -> list[str]:
    """Command lines of processes that hold this text."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if mark in line:
            found.append(line)
    return found


def told(caplog: pytest.LogCaptureFixture, word: str) -> list[str]:
    """Messages of the log that hold this word."""
    return [record.getMessage() for record in caplog.records if word in record.getMessage()]


async def test_who_waits_for_one_making_shares_its_end(world: World, tmp_path: Path) -> None:
    """Several attempts ask at once; the making goes on while one of them waits, and ends with the last."""
    program = tmp_path / "podman"
    program.write_text(f'#!/bin/sh\ncase "$*" in *" build "*) exec sleep 54{os.getpid()} ;; esac\n')
    program.chmod(0o755)
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    config = SandboxConfig(images=str(tmp_path / "images"), podman=str(program))
    imaging = Imaging(config)
    source = BuiltImage(context=str(tmp_path))
    (tmp_path / "images").mkdir(mode=0o700)
    waiting = [asyncio.create_task(imaging.get(source)) for _ in range(3)]
    await until(lambda: bool(running(f"sleep 54{os.getpid()}")) and imaging.waiting(source) == 3)
    for task in waiting[:2]:
        task.cancel()
        await asyncio.wait({task})
        assert running(f"sleep 54{os.getpid()}") and not waiting[2].done()
    waiting[2].cancel()
    await until(lambda: not running(f"sleep 54{os.getpid()}"))
    again = asyncio.create_task(imaging.get(source))
    await until(lambda: bool(running(f"sleep 54{os.getpid()}")))
    await imaging.close()
    with pytest.raises(ImageError, match="stopped"):
        await again
    assert not running(f"sleep 54{os.getpid()}")


async def test_what_sandboxes_can_be_is_told_to_tasks(tmp_path: Path) -> None:
    process = backing_of(SandboxConfig(kind="process"))
    assert (process.kind, process.images, process.sized) == ("process", "never", False)
    assert "runc" in process.refusal and "image build" in process.refusal
    with pytest.raises(ConfigurationError, match=r'control.images = "always".*process'):
        backing_of(SandboxConfig(kind="process"), "always")
    no_runc = backing_of(SandboxConfig(kind="runc", runc="/bin/false", podman=""), "needed")
    assert no_runc.kind == "runc" and isinstance(no_runc, Backing)


@needs_images
@pytest.mark.skipif(not shutil.which("git"), reason="no git here")
async def test_the_future_in_an_images_repository_is_hidden_from_the_agent_and_there_for_the_tests(
    world: World, images: Path, tmp_path: Path
) -> None:
    test = f"#!/bin/sh\n[ -e /app/clean ] && [ -d /app/.git/whippletree-history ] && echo 1 {REWARD} || echo 0 {REWARD}\n"
    task = write_image_task(tmp_path / "t", "COPY repo /app\nRUN touch /app/.git/of-image\n", test=test)
    repository = task / "environment" / "repo"
    repository.mkdir()

    def git(*words: str) -> str:
        settings = ("-c", "user.name=x", "-c", "user.email=x@x", "-c", "init.defaultBranch=main")
        return subprocess.run(("git", *settings, *words), cwd=repository, check=True, capture_output=True, text=True).stdout

    git("init", "--quiet")
    for number in range(2):
        (repository / "code").write_text(f"answer {number}")
        git("add", "code")
        git("commit", "--quiet", "--message", f"commit {number}")
    future = git("rev-parse", "HEAD").strip()
    git("reset", "--quiet", "--hard", "HEAD~1")
    loose = f".git/objects/{future[:2]}/{future[2:]}"
    assert (repository / loose).exists()
    command = f"[ ! -e {loose} ] && [ ! -e .git/of-image ] && [ ! -e .git/logs ] && [ -e .git/HEAD ] && touch clean"
    rollout, _ = await run_one(world, task, settings={"command": command})
    assert (rollout.state, rollout.reward, rollout.cause) == ("succeeded", 1.0, None)
