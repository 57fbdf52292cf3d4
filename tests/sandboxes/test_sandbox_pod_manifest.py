"""Pods and their network policies as they are created, and who holds one."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

import msgspec
import pytest

from whippletree import sandboxes
from whippletree.configuration import convert, dump
from whippletree.errors import ConfigurationError, SandboxError
from whippletree.kubernetes.config import EgressRule
from whippletree.protocols import Limits, NetworkPolicy, PodAddress, Sandbox, SandboxHandle, SandboxSpec
from whippletree.sandboxes.config import KubernetesSandboxConfig, SandboxConfig
from whippletree.sandboxes.pods import cluster as pod_cluster
from whippletree.sandboxes.pods import manifest as pod_manifest
from whippletree.sandboxes.pods import scripts as pod_scripts

CONFIG = KubernetesSandboxConfig(image="python:3.12", dns=())
SPEC = SandboxSpec(sandbox_id="Wt_1.a", environment={"KEY": "secret-value"}, limits=Limits(memory_mb=300))
HERE = ("10.0.0.1", 8100)
WILD = """
apiVersion: v1
kind: Pod
metadata:
  name: theirs
  namespace: kube-system
  labels: {team: a, whippletree/sandbox: other}
spec:
  automountServiceAccountToken: true
  restartPolicy: Always
  activeDeadlineSeconds: 1
  terminationGracePeriodSeconds: 900
  runtimeClassName: gvisor
  volumes: [{name: data, emptyDir: {}}]
  containers:
    - name: agent
      image: {{ image | quote }}
      command: [sleep, "1"]
      resources: {limits: {cpu: "2", memory: 9Gi}, requests: {cpu: "1"}}
      securityContext: {allowPrivilegeEscalation: true, runAsUser: 1000}
    - {name: sidecar, image: proxy}
"""


def template(tmp_path: Path, text: str = WILD) -> KubernetesSandboxConfig:
    path = tmp_path / "pod.yaml"
    path.write_text(text)
    return msgspec.structs.replace(CONFIG, template=str(path))


def test_a_plain_pod_has_little_and_is_ours() -> None:
    made, container = pod_manifest.pod(CONFIG, SPEC, {"whippletree/token": "t"})
    assert container == "sandbox" and "secret-value" not in msgspec.json.encode(made).decode()
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])", made["metadata"]["name"])
    assert made["metadata"]["annotations"] == {"whippletree/sandbox": "Wt_1.a", "whippletree/token": "t"}
    (first,) = made["spec"]["containers"]
    assert first["command"] == ["/bin/sh", "-c", pod_scripts.INIT] and first["resources"] == {"limits": {"memory": "300Mi"}}
    assert first["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": list(pod_manifest.CAPABILITIES)}


def test_a_template_keeps_what_is_its_authors(tmp_path: Path) -> None:
    made, container = pod_manifest.pod(template(tmp_path), SPEC, {})
    spec, first = made["spec"], made["spec"]["containers"][0]
    assert container == "agent" and spec["runtimeClassName"] == "gvisor" and made["metadata"]["labels"]["team"] == "a"
    assert first["resources"] == {"limits": {"cpu": "2", "memory": "300Mi"}, "requests": {"cpu": "1"}}
    assert first["securityContext"]["runAsUser"] == 1000 and first["securityContext"]["allowPrivilegeEscalation"] is False
    assert (made["metadata"]["name"], made["metadata"]["namespace"]) == (pod_manifest.name_of("Wt_1.a"), "default")
    assert made["metadata"]["labels"].items() >= pod_manifest.labels_of("Wt_1.a").items()
    assert spec["automountServiceAccountToken"] is False and spec["restartPolicy"] == "Never"
    assert (spec["activeDeadlineSeconds"], spec["terminationGracePeriodSeconds"]) == (14400, 1)
    assert [volume["name"] for volume in spec["volumes"]] == ["data", "whippletree"]
    assert first["command"] == ["/bin/sh", "-c", pod_scripts.INIT] and spec["containers"][1]["name"] == "sidecar"


@pytest.mark.parametrize("line", ["hostNetwork: true", "hostPID: true", "hostIPC: true", "shareProcessNamespace: true"])
def test_a_template_may_not_share_the_node_or_the_processes(tmp_path: Path, line: str) -> None:
    config = template(tmp_path, WILD.replace("  restartPolicy", f"  {line}\n  restartPolicy"))
    with pytest.raises(ConfigurationError, match=line.partition(":")[0]):
        pod_manifest.pod(config, SPEC, {})


def test_a_template_may_not_be_privileged_or_something_else(tmp_path: Path) -> None:
    for old, new in (
        ("runAsUser: 1000", "privileged: true"),
        ("kind: Pod", "kind: Job"),
        ("containers:", "others:"),
        ("image | quote", "nothing | quote"),
    ):
        with pytest.raises(ConfigurationError):
            pod_manifest.pod(template(tmp_path, WILD.replace(old, new)), SPEC, {})


def test_a_policy_opens_what_is_wanted_and_nothing_else() -> None:
    def cidrs(policy: NetworkPolicy, config: KubernetesSandboxConfig = CONFIG) -> list[str]:
        made = pod_manifest.policy(config, "s", ("pod", "uid"), policy, HERE)
        assert made["spec"]["policyTypes"] == ["Ingress", "Egress"] and "ingress" not in made["spec"]
        assert made["spec"]["podSelector"]["matchLabels"] == pod_manifest.labels_of("s")
        return [rule["to"][0]["ipBlock"]["cidr"] for rule in made["spec"]["egress"]]

    assert cidrs(NetworkPolicy()) == ["10.0.0.1/32"]
    assert cidrs(NetworkPolicy(gateway=False)) == []
    assert cidrs(NetworkPolicy(allow=("192.0.2.1:443", "[2001:db8::1]:22"))) == [
        "10.0.0.1/32",
        "192.0.2.1/32",
        "2001:db8::1/128",
    ]
    with pytest.raises(SandboxError, match="cannot name a host"):
        cidrs(NetworkPolicy(allow=("pypi.org:443",)))
    proxy = msgspec.structs.replace(CONFIG, setup=(EgressRule(cidr="10.0.0.9/32", ports=(3128,)),))
    assert cidrs(NetworkPolicy(allow=("pypi.org:443",)), proxy) == ["10.0.0.1/32", "10.0.0.9/32"]
    assert cidrs(NetworkPolicy(), proxy) == ["10.0.0.1/32"]
    with pytest.raises(ConfigurationError, match="neither"):
        pod_manifest.policy(CONFIG, "s", ("pod", "uid"), NetworkPolicy(), ("gateway.svc", 80))


def test_a_holder_is_looked_for_here_and_believed_elsewhere() -> None:
    assert pod_cluster.is_held(pod_cluster.lease(0.0))  # this very process, whatever its lease says
    process = subprocess.Popen(("sleep", "100"))
    machine = pod_cluster.holder().rpartition("/")[0].rpartition("/")[0]
    started = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19]
    notes = {pod_manifest.HOLDER: f"{machine}/{process.pid}/{started}", pod_manifest.LEASE: "9e12"}
    assert pod_cluster.is_held(notes)
    assert not pod_cluster.is_held(notes | {pod_manifest.HOLDER: f"{machine}/{os.getpid()}/1"})  # another of that number
    process.kill()
    process.wait()
    assert not pod_cluster.is_held(notes)
    elsewhere = {pod_manifest.HOLDER: "x/4026531836/1/1", pod_manifest.LEASE: f"{time.time() + 50}"}
    assert pod_cluster.is_held(elsewhere)
    assert not pod_cluster.is_held(elsewhere | {pod_manifest.LEASE: "soon"}) and not pod_cluster.is_held({})


def test_settings_make_a_pod_and_its_handle_travels(tmp_path: Path) -> None:
    data = {"kind": "kubernetes", "kubernetes": {"image": "i", "gateway_host": "10.0.0.7"}}
    config = convert(SandboxConfig, data, "test")
    assert 'kind = "kubernetes"' in dump(config)
    box = sandboxes.create(config, SandboxSpec(sandbox_id="s"), gateway=("127.0.0.1", 8000))
    assert isinstance(box, Sandbox) and box.gateway == ("10.0.0.7", 8000) and box.handle is None
    assert box.isolation.startswith("kubernetes:") and box.proxy_environment == {} and len(box.refusals) == 0
    address = PodAddress(namespace="n", pod="p", uid="u", container="c", kubeconfig=str(tmp_path / "none"))
    handle = SandboxHandle(backend="kubernetes", sandbox_id="s", pid=0, root="", workdir="/app", pod=address)
    assert msgspec.json.decode(msgspec.json.encode(handle), type=SandboxHandle) == handle
    with pytest.raises(ConfigurationError, match="cannot read"):
        sandboxes.attach(handle)


@pytest.mark.parametrize("fields", [{"sandbox_id": "../x"}, {"workdir": "app"}, {"workdir": "/usr"}, {"rootfs": "/x"}])
def test_specs_that_no_pod_can_be_are_refused(fields: dict[str, str]) -> None:
    config = SandboxConfig(kind="kubernetes", kubernetes=CONFIG)
    with pytest.raises(SandboxError):
        sandboxes.create(config, SandboxSpec(**{"sandbox_id": "s", **fields}), gateway=HERE)


async def test_stop_before_a_start_and_use_before_it(tmp_path: Path) -> None:
    box = sandboxes.create(SandboxConfig(kind="kubernetes", kubernetes=CONFIG), SandboxSpec(sandbox_id="s"), gateway=HERE)
    with pytest.raises(SandboxError, match="start it first"):
        await box.exec(("true",), timeout=1)
    with pytest.raises(SandboxError, match="start it first"):
        await box.get("/app/x", tmp_path / "x")
    await box.stop()


def test_a_cluster_that_is_not_there_is_a_reason() -> None:
    assert "no kubeconfig" in sandboxes.probe().kubernetes
