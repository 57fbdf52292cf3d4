"""Tasks of images: what needs one, what is said where there is none, and what a task is once they are made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from whippletree.errors import TaskError
from whippletree.tasks import Task, load_task, read_task
from whippletree.tasks.images import HOSTS, Backing, BuiltImage, MadeImage, NamedImage
from whippletree.tasks.task import Artifact

RUNC = Backing(kind="runc", images="needed")
PROCESS = Backing(kind="process", why_not="a process sandbox has none", next_step='set sandbox.kind = "runc"', sized=False)
MADE = MadeImage(rootfs="/i/rootfs", environment={"LANG": "C", "COLOUR": "blue"}, workdir="srv/app/", user="node")


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def made(dockerfile: str | None, toml: str = "", **files: str) -> Path:
        texts = {"task.toml": toml, "instruction.md": "x", "tests/test.sh": "x", "environment/a": "a", **files}
        if dockerfile is not None:
            texts["environment/Dockerfile"] = dockerfile
        for name, text in texts.items():
            (tmp_path / "t" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "t" / name).write_text(text)
        return tmp_path / "t"

    return made


@pytest.mark.parametrize(
    "lines",
    [
        "RUN make",
        "USER node",
        "ADD a /a",
        "FROM y",
        "COPY --from=x /a /a",
        'COPY ["a", "/a"]',
        "WORKDIR $NOWHERE",
        "ENV A=${B:-c}",
        "WORKDIR a/../b",
        "ARG A=1",
    ],
)
def test_what_is_beyond_the_subset_is_built_where_images_are_taken_and_refused_elsewhere(
    write: Callable[..., Path], lines: str
) -> None:
    path = write(f"FROM x\n{lines}\n", "[environment]\nbuild_timeout_sec = 33.0\nenv = {LEVEL = '3'}\n")
    task = load_task(path, None, RUNC)
    image = BuiltImage(context=str(path / "environment"), seconds=33.0)
    assert task.images == (image,) and (task.place.files, task.place.environment) == ((), {"LEVEL": "3"})
    for backing in (HOSTS, PROCESS):
        (problem,) = read_task(path, None, backing).problems
        assert f"{path}/environment/Dockerfile:2: " in problem.cause and problem.next_step


def test_a_refusal_names_file_line_and_next_step_of_the_backend(write: Callable[..., Path]) -> None:
    path = write("FROM x\nRUN y\n", "[environment]\ndocker_image = 'a:1'\n[verifier.environment]\ndocker_image = 'b:2'\n")
    problems = [str(problem) for problem in read_task(path, None, PROCESS).problems]
    assert [problem.partition(": ")[2].partition(" ")[0] for problem in problems] == [
        "environment.docker_image",
        "verifier.environment.docker_image",
        "RUN",
    ]
    assert all('a process sandbox has none: set sandbox.kind = "runc"' in problem for problem in problems)
    assert "not available with this backend" in str(read_task(path).problems[0])


def test_the_subset_stays_without_an_image_unless_the_settings_ask(write: Callable[..., Path]) -> None:
    path = write("FROM x\nWORKDIR /app\nCOPY a /app/\nENV A=1\n")
    plain = load_task(path, None, RUNC)
    assert plain.images == () and plain.place.files and plain.place.environment == {"A": "1"} and plain.workdir == "/app"
    asked = load_task(path, None, Backing(kind="runc", images="always"))
    assert asked.images == (BuiltImage(context=str(path / "environment")),) and asked.place.files == ()


def test_an_error_of_the_subset_is_one_for_an_image_too(write: Callable[..., Path]) -> None:
    for dockerfile, said in (
        ("FROM x\nCOPY gone /a\n", "Dockerfile:2: COPY gone"),
        (None, "Dockerfile cannot be read: No such file"),
    ):
        (problem,) = read_task(write(dockerfile), None, RUNC).problems
        assert said in problem.cause
        (write(dockerfile) / "environment" / "Dockerfile").unlink(missing_ok=True)


def test_a_ready_image_comes_before_a_dockerfile_and_needs_none(write: Callable[..., Path]) -> None:
    path = write(None, "[environment]\ndocker_image = 'a/b:1'\n[verifier.environment]\ndocker_image = 'judge:2'\n")
    task = load_task(path, None, RUNC)
    assert task.images == (NamedImage(name="a/b:1"), NamedImage(name="judge:2"))
    assert task.place.base_image == "a/b:1"


def test_a_separate_verifiers_image_is_built_of_the_tests(write: Callable[..., Path]) -> None:
    path = write("FROM x\nRUN y\n", "[verifier]\nenvironment_mode = 'separate'\n", **{"tests/Dockerfile": "FROM x\nRUN z\n"})
    built = BuiltImage(context=str(path / "environment")), BuiltImage(context=str(path / "tests"))
    assert load_task(path, None, RUNC).images == built
    (path / "tests" / "Dockerfile").unlink()
    again = load_task(path, None, RUNC)
    assert again.images == built[:1] and again.steps[0].judging.separate == again.place


def _task(write: Callable[..., Path], toml: str = "") -> Task:
    return load_task(write("FROM x\nRUN y\n", toml), None, RUNC)


def test_on_its_image_a_task_is_what_docker_would_make_of_it(write: Callable[..., Path]) -> None:
    toml = "artifacts = ['out', '/etc/x', {source = 'sub/y', destination = 'z'}]\n[environment]\nenv = {COLOUR = 'red'}\n"
    task = _task(write, toml + "cpus = 1.5\nstorage_mb = 64\nmemory_mb = 99\n[verifier.environment]\n")
    ready = task.on(dict.fromkeys(task.images, MADE))
    spec = ready.sandbox_spec("s")
    assert (spec.rootfs, spec.workdir, spec.user, spec.files) == ("/i/rootfs", "/srv/app", "node", ())
    assert spec.environment == {"LANG": "C", "COLOUR": "red"}
    assert (spec.limits.cpus, spec.limits.space_mb, spec.limits.memory_mb) == (1.5, 64, 99)
    assert ready.steps[0].artifacts == (
        Artifact(source="/logs/artifacts", destination="logs/artifacts"),
        Artifact(source="/srv/app/out", destination="srv/app/out"),
        Artifact(source="/etc/x", destination="etc/x"),
        Artifact(source="/srv/app/sub/y", destination="z"),
    )
    separate = ready.steps[0].judging.separate
    assert separate is not None and (separate.workdir, separate.rootfs) == ("/srv/app", "")  # of the host's programs
    assert ready.place.on(MadeImage(rootfs="/r")).user == "root"


def test_the_tasks_work_directory_comes_first_and_one_there_must_be(write: Callable[..., Path]) -> None:
    task = _task(write, "[environment]\nworkdir = '/work'\n")
    assert task.on(dict.fromkeys(task.images, MADE)).workdir == "/work"
    for workdir in ("", "/"):
        with pytest.raises(TaskError, match="names no work directory"):
            none = _task(write)
            none.on(dict.fromkeys(none.images, MadeImage(rootfs="/r", workdir=workdir)))


def test_two_artifacts_that_an_image_puts_into_one_place_are_refused(write: Callable[..., Path]) -> None:
    task = _task(write, "artifacts = ['out', '/srv/app/out/deep']\n")
    with pytest.raises(TaskError, match="two artifacts would lie in"):
        task.on(dict.fromkeys(task.images, MADE))


def test_a_size_that_no_backend_applies_is_noted(write: Callable[..., Path]) -> None:
    toml = "[environment]\nstorage = '1G'\ncpus = 2\n[verifier.environment]\nstorage_mb = 5\n"
    path = write("FROM x\nWORKDIR /app\n", toml)
    assert load_task(path).notes == () and load_task(path).place.space_mb == 1024
    notes = load_task(path, None, PROCESS).notes
    assert [note.partition(":")[0] for note in notes] == ["environment.storage = 1G", "verifier.environment.storage_mb = 5"]
    for text, key in (("cpus = 0", "cpus"), ("storage_mb = 0", "storage_mb"), ("storage = 'x'", "storage")):
        (problem,) = read_task(write("FROM x\nWORKDIR /app\n", f"[environment]\n{text}\n")).problems
        assert f"environment.{key}" in problem.cause
