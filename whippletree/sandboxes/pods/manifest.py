"""A pod and its network policy, as they are created; pure functions of the settings and a sandbox's spec.

Invariants (tests/sandboxes/test_sandbox_pod_manifest.py):
- name, namespace, labels, deadline, the first process and the volume of commands are ours whatever the template says;
- no pod gets a service account's token, a privileged container, or a namespace of its node;
- no variable of a sandbox is in a manifest: whoever may read pods reads no secret;
- a destination that a network policy cannot name is refused, and never left out silently.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from pathlib import Path

from whippletree.errors import ConfigurationError, SandboxError
from whippletree.kubernetes.config import EgressRule
from whippletree.kubernetes.labels import MANAGED_BY, MANAGER, slug
from whippletree.kubernetes.network import egress
from whippletree.kubernetes.objects import Manifest
from whippletree.kubernetes.template import Template, marked, table
from whippletree.protocols import NetworkPolicy, SandboxSpec
from whippletree.sandboxes import egress_rules
from whippletree.sandboxes.config import KubernetesSandboxConfig
from whippletree.sandboxes.pods import scripts as pod_scripts
from whippletree.types import Struct

SANDBOX = "whippletree/sandbox"  # a slug as label, the whole id as annotation
TOKEN = "whippletree/token"  # of the very request that made it
HOLDER = "whippletree/holder"
LEASE = "whippletree/lease"  # seconds since 1970 until which its controller is thought to live
SELECTOR = f"{MANAGED_BY}={MANAGER},{SANDBOX}"
CONTAINER = "sandbox"
CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID")
_SHAPE = "a Pod has spec.containers"
_REFUSED = ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace")


class PodVariables(Struct):
    """What a template knows. `memory_mb` 0 means that the sandbox's spec names no limit.

    Example: PodVariables(sandbox_id="wt-s0-1", name="wt-box-wt-s0-1-1b2c3d4e", image="python:3.12", workdir="/app")
    """

    sandbox_id: str
    name: str
    image: str
    workdir: str
    memory_mb: int = 0


def name_of(sandbox_id: str) -> str:
    """The pod of a sandbox: one name, so that there is one only."""
    return f"wt-box-{slug(sandbox_id)}"


def labels_of(sandbox_id: str) -> dict[str, str]:
    """What a sandbox's objects are known by."""
    return {MANAGED_BY: MANAGER, SANDBOX: slug(sandbox_id)}


def selector(sandbox_id: str) -> str:
    """The label selector of a sandbox's objects."""
    return ",".join(f"{name}={value}" for name, value in labels_of(sandbox_id).items())


def pod(config: KubernetesSandboxConfig, spec: SandboxSpec, annotations: dict[str, str]) -> tuple[Manifest, str]:
    """The pod of a sandbox, and the name of its container. Reads the template. Raises ConfigurationError."""
    name = name_of(spec.sandbox_id)
    origin = config.template or "sandbox.kubernetes"
    made = _rendered(config, spec, name)
    body = table(made, "spec", origin, _SHAPE)
    for key in _REFUSED:
        if body.get(key):
            raise ConfigurationError(f"{origin}: {key} would share more than the sandbox", "remove it from the template")
    containers = body.get("containers")
    if not isinstance(containers, list) or not containers or not isinstance(containers[0], dict):
        raise ConfigurationError(f"{origin}: spec.containers is missing", _SHAPE)
    first = _container(containers[0], config, spec, origin)
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **marked(made, labels_of(spec.sandbox_id), {SANDBOX: spec.sandbox_id, **annotations}),
            "name": name,
            "namespace": config.namespace,
        },
        "spec": {
            "enableServiceLinks": False,
            **body,
            "containers": [first, *containers[1:]],
            "volumes": [*(body.get("volumes") or ()), {"name": "whippletree", "emptyDir": {}}],
            "automountServiceAccountToken": False,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "activeDeadlineSeconds": config.lifetime_seconds,
        },
    }
    return manifest, first["name"]


def _rendered(config: KubernetesSandboxConfig, spec: SandboxSpec, name: str) -> Manifest:
    if not config.template:
        return {"spec": {"containers": [{"name": CONTAINER, "image": config.image}]}}
    variables = PodVariables(
        sandbox_id=spec.sandbox_id, name=name, image=config.image, workdir=spec.workdir, memory_mb=spec.limits.memory_mb
    )
    names = {field: getattr(variables, field) for field in variables.__struct_fields__}
    return Template.load(Path(config.template)).render_as("v1", "Pod", names, {})


def _container(given: Manifest, config: KubernetesSandboxConfig, spec: SandboxSpec, origin: str) -> Manifest:
    """The container of the commands. A memory limit of the spec goes over one of the template."""
    security = {
        "capabilities": {"drop": ["ALL"], "add": list(CAPABILITIES)},
        "seccompProfile": {"type": "RuntimeDefault"},
        **(given.get("securityContext") or {}),
        "allowPrivilegeEscalation": False,
    }
    if security.get("privileged"):
        raise ConfigurationError(f"{origin}: a privileged container is no sandbox", "remove it from the template")
    image = given.get("image") or config.image
    if not image:
        raise ConfigurationError("sandbox.kubernetes: no image", "set image, or name one in the template")
    made = {
        **given,
        "name": given.get("name") or CONTAINER,
        "image": image,
        "command": ["/bin/sh", "-c", pod_scripts.INIT],
        "args": [],
        "stdin": False,
        "tty": False,
        "securityContext": security,
        "volumeMounts": [*(given.get("volumeMounts") or ()), {"name": "whippletree", "mountPath": pod_scripts.PLACE}],
    }
    if spec.limits.memory_mb:
        resources = given.get("resources") or {}
        limits = {**(resources.get("limits") or {}), "memory": f"{spec.limits.memory_mb}Mi"}
        made["resources"] = {**resources, "limits": limits}
    return made


def policy(
    config: KubernetesSandboxConfig, sandbox_id: str, owner: tuple[str, str], wanted: NetworkPolicy, gateway: tuple[str, int]
) -> Manifest:
    """The network policy of a pod, which `owner` (its name and uid) is, so that it goes with it. Raises SandboxError,
    ConfigurationError."""
    rules = [*(_gateway(config, gateway) if wanted.gateway else ()), *config.dns, *_allowed(config, wanted.allow)]
    name, uid = owner
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": name,
            "labels": labels_of(sandbox_id),
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}],
        },
        "spec": {
            "podSelector": {"matchLabels": labels_of(sandbox_id)},
            "policyTypes": ["Ingress", "Egress"],
            "egress": [egress(rule) for rule in rules],
        },
    }


def _gateway(config: KubernetesSandboxConfig, gateway: tuple[str, int]) -> Sequence[EgressRule]:
    if config.gateway:
        return config.gateway
    host, port = gateway
    try:
        address = ipaddress.ip_address(host)
    except ValueError as error:
        raise ConfigurationError(
            f"network policies know addresses and labels, and the gateway's host {host!r} is neither",
            "set sandbox.kubernetes.gateway to the gateway's pods or address range",
        ) from error
    return (EgressRule(cidr=f"{address}/{address.max_prefixlen}", ports=(port,)),)


def _allowed(config: KubernetesSandboxConfig, allow: Sequence[str]) -> list[EgressRule]:
    """The allow-list, as far as addresses go; names are for what `setup` leads to."""
    rules: list[EgressRule] = []
    for entry in allow:
        host, port = egress_rules.parse(entry)
        try:
            address = ipaddress.ip_address(host)
        except ValueError as error:
            if not config.setup:
                raise SandboxError(
                    f"network.allow: {entry!r}: a network policy cannot name a host",
                    "list its address, or set sandbox.kubernetes.setup to a proxy that knows names",
                ) from error
        else:
            rules.append(EgressRule(cidr=f"{address}/{address.max_prefixlen}", ports=(port,)))
    return [*rules, *(config.setup if allow else ())]
