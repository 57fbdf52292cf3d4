"""Loading a Harbor task directory."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.configuration import Config, convert, field_docs
from whippletree.errors import ConfigurationError, TaskError
from whippletree.tasks import format as task_format
from whippletree.tasks import load_task, read_task
from whippletree.tasks.keys import table_problems
from whippletree.tasks.task import Healthcheck, Network


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
        ("schema_version = '1.5'", r"schema_version 1\.5.*1\.4"),
        ("[environment]\nos = 'windows'", r"environment\.os = windows"),
        ("[environment]\ngpu_types = ['H100']", r"environment\.gpu_types"),
        ("[environment.tpu]\ntype = 'v6e'\ntopology = '2x2'", r"environment\.tpu = v6e"),
        ("[[environment.mcp_servers]]\nname = 'm'", r"environment\.mcp_servers = m"),
        ("[environment]\nskills_dir = '/skills'", r"environment\.skills_dir"),
        ("[environment]\nworkdir = 'app'", r"environment\.workdir = app"),
        ("[environment]\nmemory = '1G'\nmemory_mb = 5", r"environment\.memory = 1G.*memory_mb = 5"),
        ("[environment]\nnetwork_mode = 'allowlist'", r"environment\.network_mode.*allowed_hosts"),
        ("[agent]\nallowed_hosts = ['a']", r"agent\.allowed_hosts.*allowlist"),
        ("[agent]\nnetwork_mode = 'open'", r"agent\.network_mode = 'open'.*no-network, public, allowlist"),
        ("[environment.healthcheck]\ninterval_sec = 1", r"environment\.healthcheck\.command is missing"),
        ("[environment.healthcheck]\ncommand = 'a'\nretries = 0", r"healthcheck\.retries = 0"),
        ("[environment.healthcheck]\ncommand = 'a'\ntimeout_sec = -1", r"healthcheck\.timeout_sec = -1"),
        ("[[verifier.collect]]\ncommand = 'a'\nservice = 'db'", r"verifier\.collect\.0\.service = db"),
        ("[verifier]\nenvironment_mode = 'shared'\n[verifier.environment]", r"verifier\.environment_mode = shared"),
        ("[verifier.environment]\ndocker_image = 'x'", r"verifier\.environment\.docker_image.*image build"),
        ("artifacts = ['../secret']", r"artifacts\.source = \.\./secret"),
        ("artifacts = [{source = 'a', destination = '../b'}]", r"artifacts\.destination = \.\./b"),
        ("artifacts = [{source = 'a', destination = 'b'}, {source = 'c', destination = 'b/d'}]", r"two artifacts"),
        ("artifacts = [{source = 'a', service = 'db'}]", r"artifacts\.0\.service = db"),
        ("artifacts = [{sauce = 'a'}]", r"unknown key artifacts\.0\.sauce \(did you mean artifacts\.0\.source"),
        ("multi_step_reward_strategy = 'mean'", r"multi_step_reward_strategy = mean.*no steps"),
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


def test_every_problem_is_seen_at_once(directory):
    (directory / "task.toml").write_text("sauce = 1\n[agent]\ntimeout_sec = 'x'\n[verifier]\nenf = 1\n")
    (directory / "instruction.md").unlink()
    (directory / "environment/Dockerfile").write_text("FROM x\nRUN make\n")
    (directory / "tests/test.sh").unlink()
    reading = read_task(directory)
    text = "\n".join(map(str, reading.problems))
    assert reading.task is None and len(reading.problems) == 6
    for part in ("sauce", "agent.timeout_sec", "verifier.enf", "instruction.md", "Dockerfile:2", "test.sh is missing"):
        assert part in text
    assert all(problem.next_step for problem in reading.problems)
    with pytest.raises(TaskError, match=r"5 more: see `whippletree tasks validate"):
        load_task(directory)


def test_variables_come_from_the_mapping_or_from_their_defaults_and_never_from_the_host(directory, monkeypatch):
    monkeypatch.setenv("LEVEL", "of the host")
    (directory / "task.toml").write_text(
        "[environment.env]\nA = 'x-${LEVEL}'\n[verifier.env]\nB = '${NOT_GIVEN:-y ${z}'\n[solution.env]\nC = '${EMPTY:-d}'\n"
    )
    with pytest.raises(TaskError, match=r"environment\.env\.A = .*the variable LEVEL is not given.*control\.variables"):
        load_task(directory)
    task = load_task(directory, {"LEVEL": "${B}", "EMPTY": ""})
    assert task.place.environment["A"] == "x-${B}"  # what is filled in is not expanded again
    assert task.steps[0].judging.environment == {"B": "y ${z"}
    assert task.solution_environment == {"C": "d"}
    (directory / "task.toml").write_text("[environment.env]\nA = '${9x}'\n")
    with pytest.raises(TaskError, match=r"neither \$\{NAME\} nor"):
        load_task(directory)


def test_users_networks_and_checks_are_kept_per_phase(directory):
    (directory / "task.toml").write_text(
        "artifacts = ['out', {source = '/etc/x', destination = 'x', exclude = ['*.pyc']}]\n"
        "[agent]\nuser = 1000\nnetwork_mode = 'no-network'\n"
        "[verifier]\nuser = 'root'\nnetwork_mode = 'allowlist'\nallowed_hosts = ['a.org']\n"
        "[[verifier.collect]]\ncommand = 'true'\nuser = 0\n"
        "[environment]\nworkdir = '/srv/'\ncpus = 2\n"
        "[environment.healthcheck]\ncommand = 'ok'\nretries = 7\n"
    )
    task = load_task(directory)
    (step,) = task.steps
    assert (step.agent_user, step.judging.user, step.judging.collect[0].user) == ("1000", "root", "0")
    assert step.agent_network == Network(mode="no-network", key="agent.network_mode")
    assert step.judging.network == Network(mode="allowlist", hosts=("a.org",), key="verifier.network_mode")
    assert task.place.network == Network(mode="public", key="")  # it says nothing of it
    assert task.workdir == "/srv" and task.place.healthcheck == Healthcheck(command="ok", retries=7)
    assert [(artifact.source, artifact.destination) for artifact in step.artifacts] == [
        ("/logs/artifacts", "logs/artifacts"),
        ("/srv/out", "srv/out"),
        ("/etc/x", "x"),
    ]
    assert task.notes == ()
    assert task.place.cpus == 2.0 and task.sandbox_spec("s").limits.cpus == 2.0


@pytest.mark.parametrize(
    ("text", "mode", "key"),
    [
        ("[environment]\nallow_internet = true\n", "public", "environment.allow_internet"),
        ("[environment]\nallow_internet = false\n", "no-network", "environment.allow_internet"),
        ("[environment]\nnetwork_mode = 'public'\nallow_internet = false\n", "public", "environment.network_mode"),
        ("", "public", ""),
    ],
)
def test_the_environments_network_is_that_of_phases_that_name_none(directory, text, mode, key):
    (directory / "task.toml").write_text(text)
    task = load_task(directory)
    assert {task.place.network, task.steps[0].agent_network, task.steps[0].judging.network} == {Network(mode=mode, key=key)}


def test_a_separate_verifiers_network_is_its_own(directory):
    head = "[environment]\nnetwork_mode = 'public'\n"
    (directory / "task.toml").write_text(head + "[verifier]\nenvironment_mode = 'separate'\n")
    assert load_task(directory).steps[0].judging.network.key == "environment.network_mode"  # a copy of the agent's
    (directory / "task.toml").write_text(head + "[verifier.environment]\ncpus = 1\n")
    assert load_task(directory).steps[0].judging.network == Network()
    (directory / "task.toml").write_text(head + "[verifier.environment]\nnetwork_mode = 'no-network'\n")
    found = load_task(directory).steps[0].judging.network
    assert found == Network(mode="no-network", key="verifier.environment.network_mode")
    (directory / "task.toml").write_text(head + "[verifier]\nnetwork_mode = 'public'\n[verifier.environment]\ncpus = 1\n")
    assert load_task(directory).steps[0].judging.network == Network(mode="public", key="verifier.network_mode")


@pytest.fixture
def stepped(directory) -> Path:
    (directory / "instruction.md").unlink()
    (directory / "task.toml").write_text(
        "schema_version = '1.4'\nmulti_step_reward_strategy = 'final'\nartifacts = ['/app/a']\n"
        "[environment]\nnetwork_mode = 'public'\n"
        "[agent]\ntimeout_sec = 9\nuser = 'coder'\n[verifier]\ntimeout_sec = 8\nenv = {A = '1', B = '1'}\n"
        "[[steps]]\nname = 'one'\nmin_reward = 0.5\nartifacts = ['/app/b']\n"
        "[steps.agent]\ntimeout_sec = 3\nnetwork_mode = 'no-network'\n[steps.verifier]\nenv = {B = '2'}\n"
        "[[steps]]\nname = 'two'\nmin_reward = {style = 0.1}\n"
    )
    for name, text in {
        "steps/one/instruction.md": "First.",
        "steps/one/tests/test.sh": "#!/bin/sh\n",
        "steps/one/workdir/given": "given",
        "steps/one/solution/solve.sh": "#!/bin/sh\n",
        "steps/two/instruction.md": "Second.",
    }.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return directory


def test_steps_are_read_in_order_with_what_they_inherit(stepped):
    task = load_task(stepped)
    one, two = task.steps
    assert task.strategy == "final"
    assert [(step.name, step.instruction, step.agent_timeout, step.agent_user) for step in task.steps] == [
        ("one", "First.", 3.0, "coder"),
        ("two", "Second.", 9.0, "coder"),
    ]
    assert [(step.agent_network.mode, step.agent_network.key) for step in task.steps] == [
        ("no-network", "steps.one.agent.network_mode"),
        ("public", "environment.network_mode"),
    ]
    assert one.judging.tests == (str(stepped / "tests"), str(stepped / "steps/one/tests"))
    assert two.judging.tests == (str(stepped / "tests"),)
    assert (one.judging.environment, one.judging.timeout) == ({"A": "1", "B": "2"}, 8.0)
    assert (one.min_scores, two.min_scores) == ({"reward": 0.5}, {"style": 0.1})
    assert one.files_dir == str(stepped / "steps/one/workdir") and one.solution_dir and not two.solution_dir
    assert [artifact.source for artifact in one.artifacts] == ["/logs/artifacts", "/app/a", "/app/b"]
    assert [artifact.source for artifact in two.artifacts] == ["/logs/artifacts", "/app/a"]


def test_steps_without_files_or_with_one_name_are_named(stepped):
    text = (stepped / "task.toml").read_text()
    (stepped / "task.toml").write_text(text + "[[steps]]\nname = 'two'\n[[steps]]\nname = '../x'\n[[steps]]\nname = 'three'\n")
    (stepped / "tests/test.sh").unlink()
    found = "\n".join(map(str, read_task(stepped).problems))
    for part in ("steps.2.name = 'two'", "steps.3.name = '../x'", "three/instruction.md", "steps/two/tests/test.sh is missing"):
        assert part in found, found
    assert "steps/one/tests/test.sh" not in found


def test_a_separate_verifier_has_a_place_of_its_own(directory):
    (directory / "task.toml").write_text("[verifier]\nenvironment_mode = 'separate'\n")
    task = load_task(directory)
    assert task.steps[0].judging.separate == task.place  # a fresh copy of the agent's
    (directory / "task.toml").write_text("[verifier.environment]\nmemory_mb = 64\n[verifier.environment.env]\nJ = '1'\n")
    place = load_task(directory).steps[0].judging.separate
    assert (place.files, place.environment, place.memory_mb, place.workdir) == ((), {"J": "1"}, 64, "/app")
    (directory / "tests/Dockerfile").write_text("FROM judge\nWORKDIR /judge\nCOPY . /tests/\nCOPY test.sh /opt/\n")
    place = load_task(directory).steps[0].judging.separate
    assert (place.base_image, place.workdir) == ("judge", "/judge")
    assert place.files == ((str(directory / "tests/test.sh"), "/opt/test.sh"),)  # /tests is filled when it judges


TABLES = [
    kind for kind in vars(task_format).values() if isinstance(kind, type) and issubclass(kind, Config) and kind is not Config
]


@pytest.mark.parametrize("table", TABLES, ids=lambda kind: kind.__name__)
def test_every_key_says_what_becomes_of_it_and_is_in_the_documentation(table):
    page = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text(encoding="utf-8")
    docs = field_docs(table)
    for name in table.__struct_fields__:
        assert any(word in docs[name] for word in ("Applied", "Recorded", "Refused", "refused")), (table, name)
        assert name in page, (table, name)


NAMES = sorted({name for table in TABLES for name in table.__struct_fields__})
plain = st.one_of(st.text(max_size=3), st.integers(-2, 2), st.floats(), st.booleans(), st.sampled_from(["public", "mean"]))
keys = st.sampled_from([*NAMES, "sauce"])
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(keys, inner, max_size=4), max_leaves=20
)


@given(data=st.dictionaries(st.sampled_from(list(task_format.TaskFile.__struct_fields__)), values, max_size=4))
def test_data_without_problems_converts_and_other_data_does_not(data):
    found = list(table_problems(task_format.TaskFile, data, "task.toml"))
    try:
        convert(task_format.TaskFile, data, "task.toml")
    except ConfigurationError:
        assert found
    else:
        assert not found
