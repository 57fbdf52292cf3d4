"""Pods as sandboxes, on a real API server: the suite of all backends, and what is a pod's own."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from pod_world import PodSite
from sandbox_suite import Make, Suite, processes_with, sh, spec_of, until
from sandbox_suite_out import OutSuite

from whippletree import sandboxes
from whippletree.errors import ConfigurationError, SandboxError
from whippletree.protocols import Limits, NetworkPolicy, SandboxHandle, SandboxSpec
from whippletree.sandboxes.pods import manifest as pod_manifest

pytestmark = pytest.mark.kube

CONTROLLER = """
import asyncio, sys, msgspec
from whippletree import sandboxes
from whippletree.protocols import SandboxSpec

async def main():
    config = msgspec.json.decode(sys.argv[1], type=sandboxes.SandboxConfig)
    box = sandboxes.create(config, SandboxSpec(sandbox_id=sys.argv[2]), gateway=("127.0.0.1", 9))
    await box.start()
    print("started", flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


class TestPod(Suite, OutSuite):
    kind = "kubernetes"

    async def test_address_space_is_limited_only_where_no_cgroup_holds_the_memory(self, make: Make) -> None:
        """The cluster holds the memory."""
        box = await make(self.kind, limits=Limits(memory_mb=700, processes=200))
        assert (await sh(box, "ulimit -v")).output == "unlimited\n"

    async def test_the_environment_is_the_sandboxs_the_specs_and_the_commands(self, make: Make, monkeypatch) -> None:
        """The image's too; and its user is the image's."""
        monkeypatch.setenv("SECRET_OF_THE_HOST", "x")
        box = await make(self.kind, environment={"FROM_SPEC": "1", "BOTH": "spec"})
        environment = {"FROM_EXEC": "2", "BOTH": "exec", "NOT-A-NAME": "it's 'quoted'"}
        done = await box.exec(("env",), timeout=20, environment=environment)
        lines = done.output.splitlines()
        assert {"FROM_SPEC=1", "FROM_EXEC=2", "BOTH=exec", "USER=root", "HOSTNAME=pod", "NOT-A-NAME=it's 'quoted'"} <= set(
            lines
        )
        assert "SECRET_OF_THE_HOST" not in done.output

    async def test_the_death_of_the_keeper_ends_everything_and_clean_removes_the_rest(
        self, make: Make, sandbox_root: Path, site: PodSite
    ) -> None:
        """A pod has no keeper: its controller is killed."""
        for name in ("orphan", "orphan-2"):
            command = (sys.executable, "-c", CONTROLLER, msgspec.json.encode(site.config()).decode(), name)
            process = await asyncio.to_thread(subprocess.Popen, command, stdout=subprocess.PIPE)
            assert process.stdout is not None
            assert await asyncio.to_thread(process.stdout.readline) == b"started\n"
            process.send_signal(signal.SIGKILL)
            await asyncio.to_thread(process.wait)
            process.stdout.close()
        alive = await make(self.kind, sandbox_id="orphan-no")
        cleaned = await asyncio.to_thread(sandboxes.clean, site.config(), "orphan")
        assert (cleaned.removed, cleaned.alive) == (("orphan", "orphan-2"), ("orphan-no",))
        assert [pod["metadata"]["annotations"][pod_manifest.SANDBOX] for pod in await site.pods()] == ["orphan-no"]
        assert (await sh(alive, "echo on")).output == "on\n"

    async def test_clean_leaves_the_living_alone(self, make: Make, sandbox_root: Path, site: PodSite) -> None:
        box = await make(self.kind, sandbox_id="alive")
        await make(self.kind, sandbox_id="other")
        cleaned = await asyncio.to_thread(sandboxes.clean, site.config(), "al")
        assert (cleaned.removed, cleaned.alive) == ((), ("alive",))
        assert (await sh(box, "echo on")).output == "on\n"


async def test_a_lease_of_another_machine_is_believed_until_it_has_run_out(make: Make, site: PodSite) -> None:
    await make("kubernetes", sandbox_id="far")
    path = f"/api/v1/namespaces/{site.namespace}/pods/{pod_manifest.name_of('far')}"
    far = {pod_manifest.HOLDER: "another-boot/4026531836/1/2", pod_manifest.LEASE: f"{time.time() + 100:.0f}"}
    content = "application/merge-patch+json"
    await site.request("PATCH", path, {"metadata": {"annotations": far}}, content)
    assert (await asyncio.to_thread(sandboxes.clean, site.config(), "")).alive == ("far",)
    await site.request("PATCH", path, {"metadata": {"annotations": {pod_manifest.LEASE: "1"}}}, content)
    assert (await asyncio.to_thread(sandboxes.clean, site.config(), "")).removed == ("far",)
    assert await site.pods() == [] and await site.policies() == []


async def test_a_lease_is_renewed(make: Make, site: PodSite) -> None:
    await make("kubernetes", config={"lease_seconds": 3.0})
    seen = set()
    while len(seen) < 2:
        (pod,) = await site.pods()
        seen.add(pod["metadata"]["annotations"][pod_manifest.LEASE])
        await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    ("image", "words"),
    [("unscheduled", "Unschedulable: 0/3 nodes"), ("nopull", "ImagePullBackOff"), ("dies", "exec: no such file")],
)
async def test_a_pod_that_does_not_start_says_what_the_cluster_says(make: Make, site: PodSite, image: str, words: str) -> None:
    with pytest.raises(SandboxError, match=words):
        await make("kubernetes", config={"image": image, "pending_seconds": 2.0})
    assert await site.pods() == [] and await site.policies() == []


async def test_a_start_that_is_cancelled_leaves_no_pod(make: Make, site: PodSite) -> None:
    starting = asyncio.create_task(make("kubernetes", config={"image": "unscheduled"}))
    while not await site.pods():
        await asyncio.sleep(0.02)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert await site.pods() == []


async def test_a_start_that_is_stopped_or_cancelled_at_any_moment_leaves_no_pod(site: PodSite) -> None:
    for number, pause in enumerate((0.0, 0.01, 0.05, 0.2)):
        box = sandboxes.create(site.config(), spec_of(sandbox_id=f"early-{number}"), gateway=("127.0.0.1", 9))
        starting = asyncio.create_task(box.start())
        await asyncio.sleep(pause)
        if number % 2:
            starting.cancel()
        else:
            await box.stop()
        ended = (await asyncio.gather(starting, return_exceptions=True))[0]
        await box.stop()
        assert isinstance(ended, (asyncio.CancelledError, SandboxError, SandboxHandle)), ended
    assert await site.pods() == [] and await site.policies() == []


async def test_a_policy_that_an_earlier_pod_left_is_taken_over(make: Make, site: PodSite) -> None:
    left = pod_manifest.policy(site.config().kubernetes, "s", ("gone", "no-such-uid"), NetworkPolicy(), ("127.0.0.1", 9))
    left["metadata"] |= {"name": pod_manifest.name_of("s"), "ownerReferences": []}
    await site.request("POST", f"/apis/networking.k8s.io/v1/namespaces/{site.namespace}/networkpolicies", left)
    await make("kubernetes", sandbox_id="s")
    (pod,), (policy,) = await site.pods(), await site.policies()
    assert policy["metadata"]["ownerReferences"][0]["uid"] == pod["metadata"]["uid"]


@pytest.mark.skipif(shutil.which("busybox") is None, reason="no busybox here")
async def test_an_image_of_busybox_will_do(make: Make, tmp_path: Path) -> None:
    box = await make("kubernetes", config={"image": "busybox"}, workdir="/work")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "it's").write_text("x\n")
    await box.put(tmp_path / "in", "/work/d")
    assert (await sh(box, 'cat "d/it\'s"; exit 4')).output == "x\n"
    assert await box.read("/work/d/it's") == b"x\n" and await box.read("/work/none") is None
    fetched = await box.get("/work/d", tmp_path / "out")
    assert (fetched.files, (tmp_path / "out" / "it's").read_text()) == (1, "x\n")
    with pytest.raises(SandboxError, match="File exists"):
        await box.put(tmp_path / "in", "/work/d")
    mark = f"71{os.getpid()}"
    late = await sh(box, f"(setsid sleep {mark}1 &); echo on; sleep {mark}2", timeout=1)
    assert (late.timed_out, late.output, processes_with(f"sleep\0{mark}")) == (True, "on\n", [])
    await sh(box, f"setsid sleep {mark} >/dev/null 2>&1 &")
    await until(lambda: len(processes_with(f"sleep\0{mark}")) == 1, "the process")
    assert (await box.usage()).processes == 1
    snapshot = await box.snapshot(tmp_path / "s")
    assert snapshot.files_bytes > 0
    await box.kill_all()
    assert processes_with(f"sleep\0{mark}") == []
    with pytest.raises(SandboxError, match="neither setpriv nor chroot"):
        await sh(box, "true", user="4321")


async def test_the_pod_is_ours_and_closed(make: Make, site: PodSite) -> None:
    await make("kubernetes", sandbox_id="s", environment={"SECRET": "do-not-show"}, limits=Limits(memory_mb=300))
    (pod,) = await site.pods()
    spec, container = pod["spec"], pod["spec"]["containers"][0]
    assert spec["automountServiceAccountToken"] is False and spec["restartPolicy"] == "Never"
    assert spec["activeDeadlineSeconds"] == 14400
    assert container["resources"]["limits"] == {"memory": "300Mi"}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert "do-not-show" not in json.dumps(pod)
    (policy,) = await site.policies()
    assert policy["metadata"]["ownerReferences"][0]["uid"] == pod["metadata"]["uid"]
    selected = policy["spec"]["podSelector"]["matchLabels"]
    assert selected.items() <= pod["metadata"]["labels"].items()


async def test_a_template_decides_what_is_not_ours(make: Make, site: PodSite, tmp_path: Path) -> None:
    template = tmp_path / "pod.yaml"
    template.write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: theirs, labels: {team: tests}}\nspec:\n  nodeSelector: {}\n"
        "  restartPolicy: Always\n  containers:\n    - name: agent\n      image: {{ image | quote }}\n"
        "      env: [{name: FROM_TEMPLATE, value: {{ sandbox_id | quote }}}]\n"
    )
    box = await make("kubernetes", sandbox_id="s", config={"template": str(template)})
    (pod,) = await site.pods()
    assert pod["metadata"]["name"] == pod_manifest.name_of("s") and pod["metadata"]["labels"]["team"] == "tests"
    assert pod["spec"]["restartPolicy"] == "Never" and pod["spec"]["containers"][0]["name"] == "agent"
    assert (await sh(box, "echo yes")).output == "yes\n"


async def test_the_network_policy_follows_the_phase(make: Make, site: PodSite) -> None:
    box = await make(
        "kubernetes", gateway=("10.1.2.3", 8100), config={"dns": ()}, network=NetworkPolicy(allow=("10.9.9.9:443",))
    )

    async def egress() -> list[tuple[str, int]]:
        (policy,) = await site.policies()
        rules = policy["spec"].get("egress") or []
        return [(rule["to"][0]["ipBlock"]["cidr"], rule["ports"][0]["port"]) for rule in rules]

    assert await egress() == [("10.1.2.3/32", 8100), ("10.9.9.9/32", 443)]
    await box.set_network(NetworkPolicy())
    assert await egress() == [("10.1.2.3/32", 8100)]
    await box.set_network(NetworkPolicy(gateway=False))
    assert await egress() == []
    with pytest.raises(SandboxError, match="cannot name a host"):
        await box.set_network(NetworkPolicy(allow=("pypi.org:443",)))
    assert box.gateway == ("10.1.2.3", 8100)


async def test_commands_run_as_any_user_of_the_image(make: Make) -> None:
    box = await make("kubernetes")
    seen = await sh(box, "id -u; id -un; id -g; echo $HOME $USER", user="nobody", cwd="/tmp")
    assert seen.output.split() == ["65534", "nobody", "65534", "/", "nobody"]
    number = await sh(box, "id -u; id -g; touch /tmp/by-number; stat -c %u /tmp/by-number", user="4321")
    assert number.output.split() == ["4321"] * 3
    assert (await sh(box, "id -u; echo $HOME", user="root")).output.split() == ["0", "/root"]
    for user in ("no-such-user", "-1", "99999999999", "root:", "\u0663"):
        with pytest.raises(SandboxError, match="no user"):
            await sh(box, "true", user=user)


async def test_the_kill_of_a_users_command_takes_all_of_it(make: Make) -> None:
    box = await make("kubernetes")
    mark = f"73{os.getpid()}"
    command = f"setsid setpriv --reuid 77 --clear-groups sleep {mark}1 & setsid -f sleep {mark}2; sleep {mark}3"
    assert (await sh(box, command, timeout=0.6, user="root")).timed_out
    assert processes_with(f"sleep\0{mark}") == []


async def test_what_comes_after_a_kill_at_the_limit_runs(make: Make) -> None:
    """A kill that comes before its command began takes it too."""
    box = await make("kubernetes")
    mark = f"72{os.getpid()}"
    for timeout in (0.001, 0.02, 0.05, 0.1):
        assert (await sh(box, f"sleep {mark}", timeout=timeout)).timed_out
    assert processes_with(f"sleep\0{mark}") == []
    assert (await sh(box, "echo on")).output == "on\n"


async def test_files_are_kept_restored_and_forked(make: Make, site: PodSite, tmp_path: Path) -> None:
    box = await make("kubernetes", sandbox_id="first")
    await sh(box, "echo a > a; mkdir -p d; echo t > /tmp/t; ln -s a l; chmod 700 d; setsid sleep 600 >/dev/null 2>&1 &")
    snapshot = await box.snapshot(tmp_path / "s")
    assert (snapshot.holds, snapshot.backend, snapshot.processes_bytes) == ("files", "kubernetes", 0)
    assert snapshot.reason and snapshot.files_bytes > 0
    assert (await sh(box, "echo b > a; ps -o stat= -C sleep")).output.startswith("S")  # it goes on
    with pytest.raises(SandboxError, match="does not exist"):
        await box.snapshot(tmp_path / "s")
    specs = [SandboxSpec(sandbox_id=f"fork-{number}") for number in range(2)]
    found = sandboxes.load_snapshot(tmp_path / "s")
    forks = await sandboxes.fork(site.config(), found, specs, gateway=("127.0.0.1", 9))
    try:
        for fork in forks:
            assert (await sh(fork, "cat a /tmp/t l; stat -c %a d; echo own > a")).output == "a\nt\na\n700\n"
    finally:
        await asyncio.gather(*(fork.stop() for fork in forks))
    with pytest.raises(SandboxError, match="workdir"):
        sandboxes.restore(site.config(), found, SandboxSpec(sandbox_id="x", workdir="/other"), gateway=("127.0.0.1", 9))


async def test_output_beyond_what_is_kept_comes_over_the_living_connection(make: Make) -> None:
    box = await make("kubernetes")
    done = await sh(box, "head -c 900000 /dev/urandom | base64 | tee out | md5sum > sum; cat out", output_limit=2_000_000)
    assert len(done.output) > 1_000_000 and not done.truncated
    again = await sh(box, "md5sum < out; cat sum")
    assert again.output.splitlines()[0] == again.output.splitlines()[1]


async def test_what_no_pod_can_be_is_refused(make: Make, site: PodSite) -> None:
    with pytest.raises(SandboxError, match="image"):
        sandboxes.create(site.config(), spec_of(rootfs="/x"), gateway=("127.0.0.1", 9))
    with pytest.raises(ConfigurationError, match="neither"):
        sandboxes.create(site.config(gateway_host="gateway.svc"), spec_of(), gateway=("127.0.0.1", 9))
    with pytest.raises(ConfigurationError, match="no image"):
        await sandboxes.create(site.config(image=""), spec_of(), gateway=("127.0.0.1", 9)).start()


async def test_a_cluster_is_found_or_the_reason_is_told(site: PodSite, tmp_path: Path) -> None:
    from whippletree.sandboxes.pods import cluster as pod_cluster

    assert await pod_cluster.reason(site.config()) == ""
    assert "cannot read" in await pod_cluster.reason(site.config(kubeconfig=str(tmp_path / "none")))


async def test_a_pod_that_is_deleted_by_others_is_gone(make: Make, site: PodSite) -> None:
    box = await make("kubernetes", sandbox_id="victim")
    path = f"/api/v1/namespaces/{site.namespace}/pods/{pod_manifest.name_of('victim')}"
    running = asyncio.create_task(sh(box, "sleep 60", timeout=60))
    await until(lambda: site.kubelet.commands >= 2, "the command")
    await site.request("DELETE", path, {"gracePeriodSeconds": 0})
    while await site.pods():
        await asyncio.sleep(0.05)
    with pytest.raises(SandboxError, match="cannot be reached"):
        await sh(box, "true")
    ended = (await asyncio.gather(running, return_exceptions=True))[0]
    assert isinstance(ended, SandboxError) or ended.exit_code == -9
    with pytest.raises(SandboxError, match="cannot be reached"):
        await box.read("/app/x")
