"""The reconciler in the controller's process."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from kube_fake import FakeApi, refusal
from kube_world import KubeWorld

from whippletree.control.kubernetes.serve import run_id
from whippletree.control.process import run
from whippletree.control.spec import ControllerSpec
from whippletree.errors import ClusterError, ConfigurationError
from whippletree.store import open_store


def with_kubernetes(spec: ControllerSpec, **changes: object) -> ControllerSpec:
    kubernetes = msgspec.structs.replace(spec.control.kubernetes, **changes)
    return msgspec.structs.replace(spec, control=msgspec.structs.replace(spec.control, kubernetes=kubernetes))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"template": ""}, "template"),
        ({"template": "/nowhere/job.yaml"}, "/nowhere"),
        ({"kubeconfig": "/nowhere/kubeconfig"}, "/nowhere"),
        ({"context": "other"}, "other"),
        ({"gateway_url": "http://gateway.svc:8100"}, "network.gateway"),
    ],
)
async def test_what_cannot_be_used_ends_it_before_anything_is_claimed(fake_kube: KubeWorld, changes: dict, says: str):
    (name,) = fake_kube.want("solve")
    with pytest.raises(ConfigurationError) as caught:
        await run(with_kubernetes(fake_kube.kube_spec(), **changes), asyncio.Event())
    assert says in str(caught.value)
    assert fake_kube.store.rollout(name).state == "queuing"


async def test_an_account_without_rights_ends_it(fake_kube: KubeWorld):
    api = fake_kube.site.api
    assert isinstance(api, FakeApi)
    api.fail("GET", "pods", refusal(403, "Forbidden"), times=10_000)
    with pytest.raises(ClusterError, match="403"):
        await run(fake_kube.kube_spec(), asyncio.Event())


async def test_one_controller_per_run_directory(kube: KubeWorld):
    async with kube.reconciling():
        with pytest.raises(ConfigurationError, match="another controller"):
            await run(kube.kube_spec(), asyncio.Event())


async def test_a_run_keeps_its_id_and_has_it_alone(fake_kube: KubeWorld, tmp_path: Path):
    assert run_id(fake_kube.store) == run_id(fake_kube.store)
    with open_store(tmp_path / "other") as other:
        assert run_id(other) != run_id(fake_kube.store)


async def test_it_says_when_it_is_ready(kube: KubeWorld):
    async with kube.reconciling(jobs=7):
        ready = json.loads((kube.directory / "ready.json").read_text())
    assert ready["jobs"] == 7 and len(ready["run"]) == 10


async def test_a_stop_before_the_cluster_answers_is_obeyed(fake_kube: KubeWorld):
    api = fake_kube.site.api
    assert isinstance(api, FakeApi)
    api.fail("GET", "jobs", refusal(503, "ServiceUnavailable"), times=10_000)
    stop = asyncio.Event()
    task = asyncio.create_task(run(fake_kube.kube_spec(), stop))
    await asyncio.sleep(0.3)
    stop.set()
    await asyncio.wait_for(task, 20)


def test_without_its_extra_it_says_what_to_install(tmp_path: Path):
    """The core has no YAML; only launch = "kubernetes" needs it."""
    spec = {
        "directory": str(tmp_path),
        "store": str(tmp_path / "store"),
        "secret": str(tmp_path / "secret"),
        "gateway_url": "http://127.0.0.1:1",
        "control": {"launch": "kubernetes", "kubernetes": {"template": "job.yaml"}},
    }
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    script = (
        "import sys; sys.modules['yaml'] = None; from whippletree.control.process import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "spec.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "whippletree[kubernetes]" in done.stderr) == (1, True), done.stderr
