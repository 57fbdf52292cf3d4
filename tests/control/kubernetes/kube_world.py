"""A cluster and a run, as the tests use them."""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from control_world import World, write_task
from kube_fake import GROUPS, FakeApi
from kube_kubelet import NODE, Kubelet
from kube_real import TOKEN, RealApi

from whippletree.control.config import ControlConfig, DeadlineConfig, HarnessBinding
from whippletree.control.kubernetes.config import KubernetesConfig
from whippletree.control.kubernetes.decide import Owner
from whippletree.control.kubernetes.labels import attempt_labels
from whippletree.control.rubrics.config import RubricConfig
from whippletree.control.spec import ControllerSpec
from whippletree.files import write_json
from whippletree.kubernetes.access import open_access
from whippletree.kubernetes.client import Cluster
from whippletree.kubernetes.objects import Manifest

TEMPLATE = """\
apiVersion: batch/v1
kind: Job
metadata:
  labels: {team: tests}
spec:
  backoffLimit: 6
  template:
    spec:
      containers:
        - name: agent
          image: {{ image | quote }}
          command: {{ settings.command | tojson }}
          env:
            - {name: BASE_URL, value: {{ base_url | quote }}}
            - {name: INSTRUCTION, value: {{ instruction | quote }}}
            - name: API_KEY
              valueFrom: {{ key_ref | tojson }}
"""
OWNER = Owner(run="r", controller="c")
COMMANDS = {
    "solve": ["solve", "1.0"],
    "half": ["solve", "0.5"],
    "lazy": ["lazy", "1.0"],
    "silent": ["say", ""],
    "garbage": ["say", "{reward: 1"],
    "crash": ["crash", "3"],
    **{word: [word] for word in ("hang", "oom", "evicted", "nostart", "nopull", "unscheduled")},
}


def manifest(name: str, command: str = "unscheduled") -> Manifest:
    """A Job of OWNER's, as no template made it."""
    labels = attempt_labels(OWNER, name, 1)
    pod = {"restartPolicy": "Never", "containers": [{"name": "a", "image": "x", "command": [command]}]}
    annotations = {"whippletree/rollout": name}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": pod}},
    }


@dataclass
class Site:
    """One namespace of a cluster."""

    api: FakeApi | RealApi
    url: str
    namespace: str
    kubelet: Kubelet
    kubeconfig: Path

    @property
    def real(self) -> bool:
        return isinstance(self.api, RealApi)

    def config(self, **changes: object) -> KubernetesConfig:
        base = KubernetesConfig(
            kubeconfig=str(self.kubeconfig),
            namespace=self.namespace,
            image="test-image",
            poll_seconds=0.05,
            request_seconds=10.0,
            retry_seconds=20.0,
        )
        return msgspec.structs.replace(base, **changes)

    def cluster(self, **changes: object) -> Cluster:
        config = self.config(**changes)
        return Cluster(open_access(config), config)

    async def ask(self, method: str, path: str, body: dict | None = None) -> dict:
        """Any request, past the code under test."""
        assert self.kubelet.session is not None
        content = "application/merge-patch+json" if method == "PATCH" else "application/json"
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": content}
        async with self.kubelet.session.request(method, f"{self.url}{path}", data=data, headers=headers) as reply:
            found = await reply.json()
            assert reply.status < 300, found
            return found

    def path(self, plural: str, name: str = "") -> str:
        return f"/{GROUPS[plural]}/namespaces/{self.namespace}/{plural}{'/' if name else ''}{name}"

    async def objects(self, plural: str) -> list[dict]:
        return (await self.ask("GET", self.path(plural)))["items"] or []

    async def names(self, plural: str) -> list[str]:
        return [found["metadata"]["name"] for found in await self.objects(plural)]

    async def delete(self, plural: str, name: str) -> None:
        await self.ask("DELETE", self.path(plural, name), {"propagationPolicy": "Background", "gracePeriodSeconds": 0})


@asynccontextmanager
async def fake_site(directory: Path) -> AsyncIterator[Site]:
    api = FakeApi()
    await api.start()
    url = f"http://127.0.0.1:{api.port}"
    file = directory / "kubeconfig.yaml"
    file.write_text(
        json.dumps(
            {
                "current-context": "fake",
                "clusters": [{"name": "fake", "cluster": {"server": url}}],
                "contexts": [{"name": "fake", "context": {"cluster": "fake"}}],
            }
        )
    )
    kubelet = Kubelet(url, "tests")
    api.logs = kubelet.log
    await kubelet.start()
    try:
        yield Site(api, url, "tests", kubelet, file)
    finally:
        await kubelet.stop()
        await api.stop()


@asynccontextmanager
async def real_site(api: RealApi, directory: Path) -> AsyncIterator[Site]:
    namespace = f"t-{secrets.token_hex(4)}"
    kubelet = Kubelet(api.url, namespace, TOKEN)
    await kubelet.start()
    site = Site(api, api.url, namespace, kubelet, api.directory / "kubeconfig")
    try:
        await site.ask("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        await _register(site, await kubelet.serve_logs(directory))
        yield site
    finally:
        await kubelet.stop()


async def _register(site: Site, port: int) -> None:
    """The node whose kubelet the API server asks for output."""
    assert site.kubelet.session is not None
    async with site.kubelet.session.post(f"{site.url}/api/v1/nodes", json={"metadata": {"name": NODE}}) as reply:
        assert reply.status in (201, 409)
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }
    await site.ask("PATCH", f"/api/v1/nodes/{NODE}/status", {"status": status})


class KubeWorld(World):
    """A run whose attempts are Jobs."""

    def __init__(self, directory: Path, site: Site) -> None:
        super().__init__(directory)
        self.site = site
        self.template = directory / "job.yaml"
        self.template.write_text(TEMPLATE)
        self.task = write_task(directory / "task")

    def kube_spec(
        self, worker: str = "local", *, rubrics: tuple[RubricConfig, ...] = (), reward: str = "", **changes: object
    ) -> ControllerSpec:
        kubernetes = self.site.config(template=str(self.template), **changes)
        control = ControlConfig(
            launch="kubernetes",
            kubernetes=kubernetes,
            deadlines=DeadlineConfig(seal=5.0),
            stop_seconds=10.0,
            rubrics=rubrics,
            reward=reward,
        )
        return ControllerSpec(
            directory=str(self.directory),
            store=str(self.directory / "store"),
            secret=str(self.directory / "secret"),
            gateway_url=f"http://127.0.0.1:{self.port}",
            worker=worker,
            harnesses=tuple(HarnessBinding(harness=name, settings={"command": command}) for name, command in COMMANDS.items()),
            control=control,
        )

    @asynccontextmanager
    async def reconciling(self, **changes: object) -> AsyncIterator[asyncio.Task]:
        """A reconciler that has adopted what there was."""
        ready = self.directory / "ready.json"
        ready.unlink(missing_ok=True)
        spec = msgspec.structs.replace(self.kube_spec(**changes), ready_file=str(ready))
        async with self.controlling(spec) as task:
            while not ready.exists():
                if task.done():
                    task.result()
                await asyncio.sleep(0.01)
            yield task

    def want(self, harness: str, count: int = 1, max_attempts: int = 1) -> list[str]:
        return self.add(count, self.task, harness=harness, source=f"tests-{harness}", max_attempts=max_attempts)

    def last(self, rollout_id: str):
        return self.store.attempts(rollout_id)[-1]


@asynccontextmanager
async def process(spec: ControllerSpec, directory: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A controller as a process of its own, killed at the end if it still runs."""
    ready = directory / "ready.json"
    ready.unlink(missing_ok=True)
    path = directory / "spec.json"
    write_json(path, msgspec.structs.replace(spec, ready_file=str(ready)))
    with (directory / "controller.log").open("ab") as log:
        made = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "whippletree.control", str(path), stdout=log, stderr=log
        )
    try:
        yield made
    finally:
        if made.returncode is None:
            made.kill()
        await made.wait()


async def until_async(read, expected, seconds: float = 40.0) -> None:
    """Waits until what is read equals `expected`, or satisfies it."""
    limit = time.monotonic() + seconds
    while True:
        found = await read()
        if expected(found) if callable(expected) else found == expected:
            return
        assert time.monotonic() < limit, found
        await asyncio.sleep(0.05)
