"""Templates, names and labels."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from kube_world import TEMPLATE

from whippletree.control.kubernetes.config import KubernetesConfig, PodNetworkConfig
from whippletree.control.kubernetes.decide import Owner
from whippletree.control.kubernetes.labels import attempt_labels, job_name, owner_labels, owner_of
from whippletree.control.kubernetes.template import JobLimits, JobTemplate, JobVariables, key_secret, own
from whippletree.errors import ConfigurationError
from whippletree.kubernetes.labels import label_value
from whippletree.kubernetes.template import quote

OWNER = Owner(run="3f9a1c20be", controller="local")
CONFIG = KubernetesConfig(pending_seconds=100, running_seconds=200, finished_ttl_seconds=30, namespace="rl")
TEXT = st.text(st.characters(exclude_categories=("Cs",)))  # any text that can be stored; lone surrogates cannot
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
MINIMAL = "apiVersion: batch/v1\nkind: Job\nspec: {template: {spec: {containers: [{name: a, image: x, args: [%s]}]}}}\n"


def variables(**changes: object) -> JobVariables:
    made = JobVariables(
        rollout_id="s0-m1",
        attempt=1,
        name="wt-3f9a1c20be-s0-m1-1",
        base_url="http://10.0.0.1:8100/v1",
        gateway_url="http://10.0.0.1:8100",
        model="policy",
        source="trail",
        harness="mini",
        task_id="t",
        task_path="/tasks/t",
        instruction="fix it",
        image="python:3.12",
        workdir="/app",
        limits=JobLimits(agent_seconds=300.0, verify_seconds=120.0, running_seconds=200.0),
        settings={"command": ["run"]},
    )
    return msgspec.structs.replace(made, **changes)


def args(expression: str, **changes: object) -> list:
    """What the expression makes of a Job's arguments."""
    job = JobTemplate(MINIMAL % expression, "job.yaml").render(variables(**changes))
    return job["spec"]["template"]["spec"]["containers"][0]["args"]


# --- rendering -------------------------------------------------------------------------------------------------------------


@given(JSON)
def test_quoted_values_read_back_as_the_very_same(value: object):
    text = quote(value)
    assert "\n" not in text and text.isascii()
    back = yaml.safe_load(f"[{text}]")[0]
    assert (back, repr(back)) == (value, repr(value))


@given(TEXT)
def test_no_text_changes_the_jobs_structure(text: str):
    assert args("{{ instruction | quote }}, {{ settings | tojson }}", instruction=text, settings={"s": text}) == [
        text,
        {"s": text},
    ]


@given(TEXT)
def test_an_unquoted_value_is_one_word_or_refused(text: str):
    try:
        found = args("a{{ instruction }}b", instruction=text)
    except ConfigurationError as error:
        assert "quote" in error.next_step
    else:
        assert found == [f"a{text}b"]


@pytest.mark.parametrize("text", ["x, y", "x]\nkind: Pod", 'x"', "a: b", "a #b", "", "*a", "&a", "!!x", "{", "-", "a:"])
def test_an_unquoted_injection_is_refused(text: str):
    with pytest.raises(ConfigurationError, match="no plain word"):
        args("{{ instruction }}", instruction=text)


def test_numbers_and_plain_words_need_no_quotes():
    assert args("{{ attempt }}, {{ image }}, {{ limits.agent_seconds }}, {{ workdir }}") == [1, "python:3.12", 300.0, "/app"]
    assert args("{{ limits.agent_seconds | int }}") == [300]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{{ nothing }}", "undefined"),
        ("{{ key }}", "key"),
        ("{% for %}", "line 1"),
        ("a: [", "not YAML"),
        ("", "0 documents"),
        (MINIMAL % "x" + "---\n" + MINIMAL % "x", "2 documents"),
        ("[1, 2]", "1 documents"),
        ("apiVersion: v1\nkind: Pod", "v1 Pod"),
        ("{{ instruction.__class__.__mro__ }}", "unsafe"),
        ("{{ settings.update({}) }}", "unsafe"),
        ("{{ 1 / 0 }}", "division"),
    ],
)
def test_a_wrong_template_is_a_configuration_error(text: str, says: str):
    with pytest.raises(ConfigurationError, match=r"job\.yaml") as caught:
        JobTemplate(text, "job.yaml").render(variables())
    assert says in str(caught.value)


def test_asking_for_the_key_is_answered_with_how_to_refer_to_it():
    with pytest.raises(ConfigurationError) as caught:
        JobTemplate(MINIMAL % "{{ key }}", "job.yaml").render(variables())
    assert "key_ref" in caught.value.next_step


def test_a_template_that_cannot_be_read_is_told(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="nowhere"):
        JobTemplate.load(tmp_path / "nowhere.yaml")


# --- what is ours ----------------------------------------------------------------------------------------------------------

GREEDY = """\
apiVersion: batch/v1
kind: Job
metadata: {name: mine, namespace: kube-system, generateName: x, finalizers: [a/b], labels: {whippletree/run: other, team: a}}
spec:
  suspend: true
  parallelism: 5
  completions: 5
  backoffLimit: 6
  activeDeadlineSeconds: 1
  ttlSecondsAfterFinished: 0
  manualSelector: true
  selector: {matchLabels: {a: b}}
  podFailurePolicy: {rules: []}
  template:
    metadata: {labels: {whippletree/phase: setup, app: mine}}
    spec:
      restartPolicy: OnFailure
      containers: [{name: a, image: x}]
"""


def owned(text: str, config: KubernetesConfig = CONFIG) -> dict:
    job = JobTemplate(text, "job.yaml").render(variables())
    return own(job, config, OWNER, rollout_id="s0/m1", attempt=2, origin="job.yaml")


def test_what_is_ours_is_ours_whatever_the_template_says():
    job = owned(GREEDY)
    labels = attempt_labels(OWNER, "s0/m1", 2)
    assert job["metadata"] == {
        "name": job_name(OWNER.run, "s0/m1", 2),
        "namespace": "rl",
        "labels": {"team": "a", **labels},
        "annotations": {"whippletree/rollout": "s0/m1", "whippletree/attempt": "2"},
    }
    template = job["spec"].pop("template")
    assert job["spec"] == {
        "completions": 1,
        "parallelism": 1,
        "backoffLimit": 0,
        "ttlSecondsAfterFinished": 30,
        "activeDeadlineSeconds": 420,
    }
    assert template["metadata"]["labels"] == {"app": "mine", **labels, "whippletree/phase": "agent"}
    assert template["spec"]["restartPolicy"] == "Never"
    assert template["spec"]["automountServiceAccountToken"] is False


def test_pods_begin_in_the_set_up_phase_where_there_is_one():
    job = owned(TEMPLATE, msgspec.structs.replace(CONFIG, setup_container="setup"))
    assert job["spec"]["template"]["metadata"]["labels"]["whippletree/phase"] == "setup"


@pytest.mark.parametrize("missing", ["spec: {template: {spec: {}}}", "spec: {}", "spec: 1", "spec: {template: {spec: []}}"])
def test_a_job_without_containers_is_refused(missing: str):
    with pytest.raises(ConfigurationError, match=r"job\.yaml"):
        owned(f"apiVersion: batch/v1\nkind: Job\n{missing}")


def test_the_hosts_network_is_refused_unless_policies_are_off():
    text = GREEDY.replace("restartPolicy: OnFailure", "hostNetwork: true")
    with pytest.raises(ConfigurationError, match="hostNetwork"):
        owned(text)
    off = msgspec.structs.replace(CONFIG, network=PodNetworkConfig(enabled=False))
    assert owned(text, off)["spec"]["template"]["spec"]["hostNetwork"] is True


def test_the_key_is_in_the_secret_which_the_job_owns():
    job = owned(TEMPLATE)
    secret = key_secret(job, "uid-1", "wt-key")
    assert secret["metadata"]["ownerReferences"][0]["uid"] == "uid-1"
    assert secret["stringData"] == {"key": "wt-key"}
    environment = job["spec"]["template"]["spec"]["containers"][0]["env"]
    assert environment[-1]["valueFrom"] == {"secretKeyRef": {"name": variables().name, "key": "key"}}
    assert "wt-key" not in json.dumps(job)


# --- names and labels ------------------------------------------------------------------------------------------------------

LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


@given(st.text(), st.text(), st.integers(1, 9999))
def test_names_and_labels_are_valid_and_differ(one: str, other: str, attempt: int):
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", job_name("3f9a1c20be", one, attempt))
    assert all(LABEL.fullmatch(value) for value in attempt_labels(Owner(run=one, controller=other), one, attempt).values())
    if one != other:
        assert job_name("r", one, 1) != job_name("r", other, 1)
        assert label_value(one) != label_value(other)
    assert label_value(label_value(one)) == label_value(one)
    assert job_name("r", one, attempt) != job_name("r", one, attempt + 1)


def test_an_object_without_every_label_of_an_owner_is_nobodys():
    labels = owner_labels(OWNER)
    assert owner_of(labels) == OWNER
    for name in labels:
        assert owner_of({key: value for key, value in labels.items() if key != name}) is None
    assert owner_of({**labels, "app.kubernetes.io/managed-by": "Helm"}) is None


def test_the_example_is_a_job_of_ours():
    example = Path(__file__).parents[3] / "examples" / "kubernetes-job.yaml"
    job = JobTemplate.load(example).render(variables(instruction='say "hi"\n- x: {{ y }}', task_id="a b"))
    config = msgspec.structs.replace(CONFIG, setup_container="setup", result_container="verifier")
    pod = own(job, config, OWNER, rollout_id="r", attempt=1, origin="x")["spec"]["template"]["spec"]
    assert [container["name"] for container in (*pod["initContainers"], *pod["containers"])] == ["setup", "agent", "verifier"]
    environment = {entry["name"]: entry for entry in pod["initContainers"][1]["env"]}
    assert environment["INSTRUCTION"]["value"] == 'say "hi"\n- x: {{ y }}'
    assert environment["OPENAI_API_KEY"]["valueFrom"]["secretKeyRef"]["key"] == "key"
    assert pod["initContainers"][1]["resources"]["limits"]["memory"] == "2048Mi"
    assert "timeout 300 my-agent" in pod["initContainers"][1]["command"][2]
