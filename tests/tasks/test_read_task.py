"""Loading a Harbor task directory."""

from pathlib import Path

import pytest

from whippletree.errors import TaskError
from whippletree.tasks import load_task


@pytest.fixture
def directory(tmp_path) -> Path:
    files = {
        "task.toml": '[metadata]\nanything = "goes"\ndepth = 2\ntags = ["a"]\n'
        "[agent]\ntimeout_sec = 30\n[verifier]\ntimeout_sec = 5\n",
        "instruction.md": "\nDo it.\n\n",
        "environment/Dockerfile": "FROM debian:12\nWORKDIR /app\nENV A=1\nCOPY files/ /app/\n",
        "environment/files/one": "1",
        "tests/test.sh": "#!/bin/sh\n",
        "solution/solve.sh": "#!/bin/sh\n",
    }
    for name, text in files.items():
        target = tmp_path / "some-task" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return tmp_path / "some-task"


def test_a_task_has_what_a_run_needs(directory):
    task = load_task(directory)
    assert task.task_id == "some-task"
    (step,) = task.steps
    assert (step.name, step.instruction) == ("", "Do it.")
    assert task.workdir == "/app"
    assert task.place.files == ((str(directory / "environment/files"), "/app"),)
    assert task.place.environment == {"A": "1"}
    assert (step.agent_timeout, step.judging.timeout) == (30.0, 5.0)
    assert task.place.base_image == "debian:12"
    assert step.judging.tests == (str(directory / "tests"),) and step.judging.separate is None
    assert Path(step.solution_dir, "solve.sh").is_file()
    assert task.labels == {"anything": "goes", "depth": "2"}
    spec = task.sandbox_spec("s-1", gateway_port=8000)
    assert (spec.workdir, spec.files, spec.environment, spec.gateway_port) == ("/app", task.place.files, {"A": "1"}, 8000)


def test_the_oracle_is_optional(directory):
    (directory / "solution/solve.sh").unlink()
    assert load_task(directory).steps[0].solution_dir == ""


@pytest.mark.parametrize("name", ["task.toml", "instruction.md", "environment/Dockerfile", "tests/test.sh"])
def test_a_missing_file_is_named(directory, name):
    (directory / name).unlink()
    with pytest.raises(TaskError, match=name):
        load_task(directory)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[agent]\ntimeout_secs = 3", r"task\.toml: unknown key agent\.timeout_secs \(did you mean agent\.timeout_sec\?"),
        ("[steps]", r"steps = .*Expected"),
        ("[agent]\ntimeout_sec = 'x'", r"task\.toml.*float"),
        ("[agent]\ntimeout_sec = 0", r"agent\.timeout_sec = 0"),
        ("[verifier]\ntimeout_sec = nan", r"verifier\.timeout_sec = nan"),
        ("[environment]\ndocker_image = 'a/b'", r"environment\.docker_image.*image build"),
        ("[environment]\ngpus = 1", r"environment\.gpus"),
        ("[environment]\nmemory = 'much'", r"environment\.memory"),
        ("[environment.env]\nKEY = '${SECRET}'", r"environment\.env\.KEY"),
        ("schema_version = '2.0'", r"schema_version 2\.0"),
        ("[agent", r"task\.toml: not valid TOML"),
    ],
)
def test_a_bad_key_is_named_with_its_file(directory, text, says):
    (directory / "task.toml").write_text(text)
    with pytest.raises(TaskError, match=says):
        load_task(directory)


def test_older_spellings_are_read(directory):
    (directory / "task.toml").write_text('version = "1.0"\n[environment]\nmemory = "2G"\nstorage = "10G"\n[metadata]\nx = 1\n')
    task = load_task(directory)
    assert task.place.memory_mb == 2048
    assert task.sandbox_spec("s").limits.memory_mb == 2048


def test_variables_of_task_toml_come_after_those_of_the_dockerfile(directory):
    (directory / "task.toml").write_text('[environment.env]\nA = "2"\n[verifier.env]\nB = "3"\n[solution.env]\nC = "4"\n')
    task = load_task(directory)
    assert (task.place.environment, task.steps[0].judging.environment) == ({"A": "2"}, {"B": "3"})
    assert task.solution_environment == {"C": "4"}


def test_an_empty_instruction_and_several_services_are_refused(directory):
    (directory / "environment/docker-compose.yaml").write_text("services: {}")
    with pytest.raises(TaskError, match="several services"):
        load_task(directory)
    (directory / "environment/docker-compose.yaml").unlink()
    (directory / "instruction.md").write_text("  \n")
    with pytest.raises(TaskError, match=r"instruction\.md is empty"):
        load_task(directory)


def test_a_path_that_is_no_directory(tmp_path):
    with pytest.raises(TaskError, match="not a directory"):
        load_task(tmp_path / "nowhere")
