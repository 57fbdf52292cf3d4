"""A user's template, made into one Job of ours.

Invariants (tests/control/kubernetes/test_kubernetes_template.py):
- name, namespace, labels, owner, retries, deadline and time to live are ours whatever the template says;
- the attempt's key is not known here: a template can only refer to its Secret.
"""

from __future__ import annotations

from whippletree.control.kubernetes.config import KubernetesConfig
from whippletree.control.kubernetes.decide import Owner
from whippletree.control.kubernetes.labels import ATTEMPT, KEY, PHASE, ROLLOUT, attempt_labels, job_name
from whippletree.errors import ConfigurationError
from whippletree.kubernetes.objects import Manifest
from whippletree.kubernetes.template import Template, marked, table
from whippletree.types import Struct

SHAPE = "a Job has spec.template.spec.containers"
SLACK_SECONDS = 120  # beyond both limits, before the cluster itself ends a Job: for a controller that is not there
OURS = ("ttlSecondsAfterFinished", "backoffLimit", "activeDeadlineSeconds", "completions", "parallelism")
DROPPED = (
    "suspend",
    "selector",
    "manualSelector",
    "completionMode",
    "podFailurePolicy",
    "backoffLimitPerIndex",
    "maxFailedIndexes",
    "successPolicy",
)


class JobLimits(Struct):
    """Limits that a template may pass on. Seconds and megabytes; memory 0 means that the task names none.

    Example: JobLimits(agent_seconds=300.0, verify_seconds=120.0, running_seconds=3600.0, memory_mb=2048)
    """

    agent_seconds: float
    verify_seconds: float
    running_seconds: float
    memory_mb: int = 0


class JobVariables(Struct):
    """What a template knows. `key_ref` is a `valueFrom` that refers to the attempt's key in its Secret, `key_secret` its name.

    Example: JobVariables(rollout_id="s0-m1", attempt=1, name="wt-3f9a1c20be-s0-m1-1b2c3d4e-1", base_url="http://gw:8100/v1",
                          gateway_url="http://gw:8100", model="policy", source="trail", harness="mini-swe-agent", task_id="t",
                          task_path="/tasks/t", instruction="fix", image="python:3.12", workdir="/app", limits=JobLimits(...))
    """

    rollout_id: str
    attempt: int
    name: str
    base_url: str
    gateway_url: str
    model: str
    source: str
    harness: str
    task_id: str
    task_path: str
    instruction: str
    image: str
    workdir: str
    limits: JobLimits
    settings: dict[str, object] = {}
    labels: dict[str, str] = {}
    environment: dict[str, str] = {}

    @property
    def key_secret(self) -> str:
        """Name of the Secret that holds the attempt's key under "key"."""
        return self.name

    @property
    def key_ref(self) -> dict[str, dict[str, str]]:
        """The value of an environment variable's `valueFrom`."""
        return {"secretKeyRef": {"name": self.name, "key": KEY}}


class JobTemplate(Template):
    """A template of a Job that was read and compiled once."""

    def render(self, variables: JobVariables) -> Manifest:
        """The one Job that the template describes, as its author wrote it. Raises ConfigurationError."""
        names = {name: getattr(variables, name) for name in (*variables.__struct_fields__, "key_ref", "key_secret")}
        hints = {"key": "the key itself is not for templates: write valueFrom: {{ key_ref | tojson }}"}
        return self.render_as("batch/v1", "Job", names, hints)


def own(job: Manifest, config: KubernetesConfig, owner: Owner, *, rollout_id: str, attempt: int, origin: str) -> Manifest:
    """The Job with everything in place that is not its author's to decide. Raises ConfigurationError."""
    spec = table(job, "spec", origin, SHAPE)
    template = table(spec, "template", origin, SHAPE)
    pod = table(template, "spec", origin, SHAPE)
    if not pod.get("containers"):
        raise ConfigurationError(f"{origin}: spec.template.spec.containers is missing", "name the agent's container")
    if config.network.enabled and pod.get("hostNetwork"):
        raise ConfigurationError(f"{origin}: hostNetwork is outside of every network policy", "remove it from the template")
    labels = attempt_labels(owner, rollout_id, attempt)
    annotations = {ROLLOUT: rollout_id, ATTEMPT: str(attempt)}
    phase = {PHASE: "setup" if config.setup_container else "agent"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            **marked(job, labels, annotations),
            "name": job_name(owner.run, rollout_id, attempt),
            "namespace": config.namespace,
        },
        "spec": {
            **{name: value for name, value in spec.items() if name not in (*OURS, *DROPPED)},
            "completions": 1,
            "parallelism": 1,
            "backoffLimit": 0,
            "ttlSecondsAfterFinished": config.finished_ttl_seconds,
            "activeDeadlineSeconds": int(config.pending_seconds + config.running_seconds) + SLACK_SECONDS,
            "template": {
                "metadata": marked(template, {**labels, **phase}, annotations),
                "spec": {"automountServiceAccountToken": False, **pod, "restartPolicy": "Never"},
            },
        },
    }


def key_secret(job: Manifest, uid: str, key: str) -> Manifest:
    """The Secret with an attempt's key. The Job owns it: it goes when the Job goes."""
    meta = job["metadata"]
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": uid}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": meta["name"], "labels": meta["labels"], "ownerReferences": [reference]},
        "type": "Opaque",
        "immutable": True,
        "stringData": {KEY: key},
    }
