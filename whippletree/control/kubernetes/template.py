"""A user's template, made into one Job of ours.

The template is YAML with Jinja expressions, rendered in Jinja's immutable sandbox: it can call nothing and reach no file. A
value that is not a plain word has to pass through `quote` or `tojson`; one that does not is refused, so no text of a task can
become YAML.

Invariants (tests/control/kubernetes/test_kubernetes_template.py):
- whatever the values are, the Job has the structure that the template's author wrote, and `quote` gives back the very text;
- the rendered text is exactly one Job; an unknown variable, or anything else, is an error that names the template;
- name, namespace, labels, owner, retries, deadline and time to live are ours whatever the template says;
- the attempt's key is not known here: a template can only refer to its Secret.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jinja2
import msgspec
import yaml
from jinja2.sandbox import ImmutableSandboxedEnvironment

from whippletree.control.kubernetes.config import KubernetesConfig
from whippletree.control.kubernetes.decide import Owner
from whippletree.control.kubernetes.labels import ATTEMPT, KEY, PHASE, ROLLOUT, attempt_labels, job_name
from whippletree.control.kubernetes.objects import Manifest
from whippletree.errors import ConfigurationError
from whippletree.types import Struct

PLAIN = re.compile(r"[A-Za-z0-9/]([A-Za-z0-9._/@:+=-]*[A-Za-z0-9_/=-])?")  # cannot be anything but one YAML scalar
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


class Quoted(str):
    """Text that is one YAML value already."""

    __slots__ = ()


class _Unquoted(Exception):
    """A value that may not stand in YAML as it is."""


def quote(value: object) -> Quoted:
    """Any value as YAML on one line that reads back as the very same: a double-quoted string, a number, a list, a mapping."""
    return Quoted(_yaml(msgspec.to_builtins(value)))


def _yaml(value: object) -> str:
    """JSON, but for what YAML 1.1 reads otherwise: exponents without a point are text there, and characters beyond 16 bits."""
    match value:
        case dict():
            return "{" + ", ".join(f"{_yaml(str(name))}: {_yaml(item)}" for name, item in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(_yaml(item) for item in value) + "]"
        case float():
            mantissa, exponent, power = json.dumps(value, allow_nan=False).partition("e")
            return f"{mantissa}{'' if '.' in mantissa else '.0'}{exponent}{power}"
        case str():
            text = json.dumps(value, ensure_ascii=False)
            return "".join(char if " " <= char <= "~" else _escape(ord(char)) for char in text)
    return json.dumps(value)


def _escape(code: int) -> str:
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _finalize(value: Any) -> str:
    """What an expression may print: quoted text, plain words, numbers."""
    match value:
        case Quoted() | jinja2.Undefined():
            return str(value)  # an undefined one raises
        case bool() | int() | float() | None:
            return quote(value)
        case str() if PLAIN.fullmatch(value):
            return value
    raise _Unquoted(f"the value {str(value)[:60]!r} is no plain word")


class JobTemplate:
    """A template that was read and compiled once."""

    def __init__(self, text: str, origin: str) -> None:
        """`origin` names the template in errors. Raises ConfigurationError when it is no valid Jinja."""
        self.origin = origin
        environment = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined, finalize=_finalize, autoescape=False)
        environment.filters.update(quote=quote, tojson=quote)
        try:
            self._template = environment.from_string(text)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigurationError(f"{origin}: line {error.lineno}: {error.message}", "mend the template") from error

    @classmethod
    def load(cls, path: Path) -> JobTemplate:
        """From a file. Raises ConfigurationError."""
        try:
            return cls(path.read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"cannot read the Job's template {path}: {error}", "set control.kubernetes.template to a file"
            ) from error

    def render(self, variables: JobVariables) -> Manifest:
        """The one Job that the template describes, as its author wrote it. Raises ConfigurationError."""
        names = {name: getattr(variables, name) for name in (*variables.__struct_fields__, "key_ref", "key_secret")}
        try:
            text = self._template.render(names)
        except _Unquoted as error:
            raise self._wrong(str(error), "write {{ name | quote }}") from error
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError) as error:
            hint = "the key itself is not for templates: write valueFrom: {{ key_ref | tojson }}"
            raise self._wrong(str(error), hint if "'key'" in str(error) else "mend the template") from error
        try:
            documents = [document for document in yaml.safe_load_all(text) if document is not None]
        except yaml.YAMLError as error:
            raise self._wrong(f"not YAML once rendered: {error}", "look at the template's indentation and quotes") from error
        if len(documents) != 1 or not isinstance(documents[0], dict):
            raise self._wrong(f"{len(documents)} documents", "a template is exactly one Job")
        job: Manifest = documents[0]
        if (job.get("apiVersion"), job.get("kind")) != ("batch/v1", "Job"):
            raise self._wrong(f"{job.get('apiVersion')} {job.get('kind')}", "a template is one batch/v1 Job")
        return job

    def _wrong(self, cause: str, next_step: str) -> ConfigurationError:
        return ConfigurationError(f"{self.origin}: {cause}", next_step)


def own(job: Manifest, config: KubernetesConfig, owner: Owner, *, rollout_id: str, attempt: int, origin: str) -> Manifest:
    """The Job with everything in place that is not its author's to decide. Raises ConfigurationError."""
    spec = _table(job, "spec", origin)
    template = _table(spec, "template", origin)
    pod = _table(template, "spec", origin)
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
            **_marked(job, labels, annotations),
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
                "metadata": _marked(template, {**labels, **phase}, annotations),
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


def _table(holder: Manifest, name: str, origin: str) -> Manifest:
    value = holder.get(name)
    if not isinstance(value, dict):
        raise ConfigurationError(f"{origin}: {name} is missing or no mapping", "a Job has spec.template.spec.containers")
    return value


def _marked(holder: Manifest, labels: dict[str, str], annotations: dict[str, str]) -> Manifest:
    """Metadata with the author's labels and annotations, and ours over them."""
    meta = holder.get("metadata") or {}
    theirs = meta if isinstance(meta, dict) else {}
    return {
        "labels": {**(theirs.get("labels") or {}), **labels},
        "annotations": {**(theirs.get("annotations") or {}), **annotations},
    }
