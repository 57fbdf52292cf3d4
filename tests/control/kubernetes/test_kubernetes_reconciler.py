"""The reconciler end to end: real gateway, store and Jobs, against both clusters."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest
from control_world import until
from kube_fake import FakeApi, refusal
from kube_world import KubeWorld, until_async

from whippletree.control.kubernetes import reconciler as module
from whippletree.control.kubernetes import serve
from whippletree.control.kubernetes.decide import Owner
from whippletree.control.kubernetes.labels import owner_labels
from whippletree.control.kubernetes.serve import run_id
from whippletree.gateway.keys import mint
from whippletree.protocols import AttemptOutcome
from whippletree.types import Cause, CauseClass


async def test_a_rollout_becomes_a_job_and_its_result_the_reward(kube: KubeWorld):
    names = [*kube.want("solve", 3), *kube.want("half")]
    async with kube.controlling(kube.kube_spec()):
        rollouts = await kube.finished(names)
        assert [rollout.reward for rollout in rollouts] == [1.0, 1.0, 1.0, 0.5]
        await until_async(lambda: kube.site.names("jobs"), [])
    attempt = kube.last(names[0])
    assert attempt.sandbox.startswith(f"kubernetes:{kube.site.namespace}/wt-")
    assert [phase.name for phase in attempt.phases] == ["pending", "agent"]
    assert [event.data["name"] for event in kube.store.events(names[0])] == ["pending", "agent"]
    assert kube.store.calls(names[0], 1)[0].sampled_tokens > 0
    assert sorted(kube.site.kubelet.ran) == sorted(names)


async def test_each_way_to_fail_has_its_own_cause(kube: KubeWorld):
    expected = {
        "crash": (CauseClass.HARNESS, "agent"),
        "oom": (CauseClass.SANDBOX, "agent"),
        "nostart": (CauseClass.SANDBOX, "boot"),
        "evicted": (CauseClass.HOST_LOST, "agent"),
        "silent": (CauseClass.VERIFIER, "verify"),
        "garbage": (CauseClass.VERIFIER, "verify"),
        "lazy": (CauseClass.NO_CALLS, "agent"),
    }
    names = {harness: kube.want(harness)[0] for harness in expected}
    async with kube.controlling(kube.kube_spec()):
        await kube.finished(list(names.values()))
    for harness, name in names.items():
        rollout = kube.store.rollout(name)
        assert rollout.reward is None and rollout.cause is not None, harness
        assert (rollout.cause.cause, rollout.cause.phase) == expected[harness], rollout.cause


async def test_a_failed_attempt_is_tried_again_as_another_job(kube: KubeWorld):
    (name,) = kube.want("crash", max_attempts=2)
    async with kube.controlling(kube.kube_spec()):
        await kube.finished([name])
    first, second = kube.store.attempts(name)
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.sandbox != second.sandbox
    assert kube.site.kubelet.ran == [name, name]


async def test_pending_and_running_have_deadlines_of_their_own(kube: KubeWorld):
    names = [kube.want(harness)[0] for harness in ("unscheduled", "nopull")]
    async with kube.controlling(kube.kube_spec(pending_seconds=2.0)):
        unscheduled, nopull = await kube.finished(names)
        assert (unscheduled.cause.cause, unscheduled.cause.phase) == (CauseClass.DEADLINE, "pending")
        assert "Unschedulable: 0/3 nodes" in unscheduled.cause.message
        assert (nopull.cause.cause, nopull.cause.phase) == (CauseClass.SANDBOX, "image")
        assert "ImagePullBackOff" in nopull.cause.message
        await until_async(lambda: kube.site.names("pods"), [])


async def test_a_pod_that_runs_too_long_is_ended(kube: KubeWorld):
    (name,) = kube.want("hang")
    async with kube.controlling(kube.kube_spec(running_seconds=2.0)):
        (rollout,) = await kube.finished([name])
        assert (rollout.cause.cause, rollout.cause.phase) == (CauseClass.DEADLINE, "agent")
        await until_async(lambda: kube.site.names("pods"), [])


async def test_waiting_for_a_machine_does_not_count_as_running(kube: KubeWorld):
    (name,) = kube.want("solve")
    kube.site.kubelet.paused = True
    async with kube.controlling(kube.kube_spec(running_seconds=3.0)):
        await until_async(lambda: kube.site.objects("pods"), lambda found: len(found) == 1)
        await asyncio.sleep(3.5)
        kube.site.kubelet.paused = False
        (rollout,) = await kube.finished([name])
    assert rollout.reward == 1.0
    pending = kube.last(name).phases[0]
    assert pending.name == "pending" and pending.seconds >= 2.0  # Kubernetes writes whole seconds


async def test_the_key_is_in_the_secret_alone_and_output_is_captured(kube: KubeWorld, caplog: pytest.LogCaptureFixture):
    (crashed,) = kube.want("crash")
    (hanging,) = kube.want("hang")
    keys = [mint(kube.secret, name, 1) for name in (crashed, hanging)]
    with caplog.at_level("DEBUG"):
        async with kube.controlling(kube.kube_spec()):
            await kube.finished([crashed])
            await until_async(lambda: kube.site.names("secrets"), lambda found: sum(n.startswith("wt-") for n in found) == 1)
            jobs = json.dumps(await kube.site.objects("jobs")) + json.dumps(await kube.site.objects("pods"))
    records = msgspec.json.encode([kube.last(crashed), kube.store.rollout(crashed)]).decode()
    kept = "".join(path.read_text() for path in (kube.directory / "attempts").rglob("*.log"))
    for key in keys:
        assert all(key not in text for text in (jobs, records, kept, caplog.text))
    assert "broken: [key]" in records
    assert "begin crash with [key]" in kept
    assert not [name for name in await kube.site.names("secrets") if name.startswith("wt-")]


async def test_what_is_not_ours_is_left_alone_and_orphans_of_ours_go(kube: KubeWorld):
    spec = kube.kube_spec()
    ours = await owner_labels_of(kube)
    others = {
        "of-a-user": {},
        "of-another-run": {**ours, "whippletree/run": "another"},
        "of-another-controller": {**ours, "whippletree/controller": "another"},
    }
    for name, labels in {**others, "orphan": ours}.items():
        await kube.site.ask("POST", kube.site.path("jobs"), plain_job(name, labels))
    (name,) = kube.want("solve")
    async with kube.controlling(spec):
        await kube.finished([name])
        await until_async(lambda: kube.site.names("jobs"), sorted(others))
    assert await kube.site.names("jobs") == sorted(others)


def plain_job(name: str, labels: dict[str, str]) -> dict:
    pod = {"restartPolicy": "Never", "containers": [{"name": "a", "image": "x", "command": ["unscheduled"]}]}
    annotations = {"whippletree/rollout": name}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": pod}},
    }


async def owner_labels_of(kube: KubeWorld) -> dict[str, str]:
    return owner_labels(Owner(run=await asyncio.to_thread(run_id, kube.store), controller="local"))


async def test_two_runs_share_a_namespace(kube: KubeWorld, tmp_path: Path):
    second = KubeWorld(tmp_path / "second", kube.site)
    async with second.serving():
        kept = kube.want("hang")
        names = second.want("solve", 2)
        async with kube.controlling(kube.kube_spec()):
            await until(lambda: len(kube.site.kubelet.ran) == 1)
            async with second.controlling(second.kube_spec()):
                assert [rollout.reward for rollout in await second.finished(names)] == [1.0, 1.0]
            assert len(await kube.site.names("jobs")) == 1  # the first run's is still there
            kube.site.kubelet.release.set()
            assert (await kube.finished(kept))[0].reward == 1.0
    second.close()


async def test_an_attempt_that_the_store_gave_up_loses_its_job(kube: KubeWorld, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "REVIEW_SECONDS", 0.2)
    (name,) = kube.want("hang")
    async with kube.controlling(kube.kube_spec()):
        await until(lambda: kube.site.kubelet.ran == [name])
        cause = Cause(cause=CauseClass.CONFIGURATION, phase="agent", message="cancelled by its user")
        ended = msgspec.structs.replace(kube.last(name), cause=cause)
        assert await asyncio.wrap_future(kube.store.finish(AttemptOutcome(attempt=ended)))
        await until_async(lambda: kube.site.names("jobs"), [])
    assert kube.store.rollout(name).cause == cause


async def test_a_job_that_somebody_deletes_is_lost_and_tried_again(kube: KubeWorld):
    (name,) = kube.want("hang", max_attempts=2)
    async with kube.controlling(kube.kube_spec()):
        await until(lambda: kube.site.kubelet.ran == [name])
        await kube.site.delete("jobs", (await kube.site.names("jobs"))[0])
        await until(lambda: kube.site.kubelet.ran == [name, name])
        kube.site.kubelet.release.set()
        (rollout,) = await kube.finished([name])
    assert (rollout.reward, rollout.attempt) == (1.0, 2)
    assert kube.store.attempts(name)[0].cause.cause is CauseClass.HOST_LOST


async def test_a_pod_that_is_replaced_ends_its_attempt(kube: KubeWorld, monkeypatch: pytest.MonkeyPatch):
    made: list[module.Reconciler] = []

    class Shown(module.Reconciler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(serve, "Reconciler", Shown)
    (name,) = kube.want("hang")
    async with kube.controlling(kube.kube_spec()):
        await until(lambda: made and [bool(wanted.pod) for wanted in made[0].wanted.values()] == [True])
        kube.site.kubelet.paused = True
        await kube.site.delete("pods", (await kube.site.names("pods"))[0])
        (rollout,) = await kube.finished([name])
    assert rollout.cause.cause is CauseClass.HOST_LOST


async def test_no_more_jobs_than_the_limit(kube: KubeWorld):
    names = kube.want("hang", 5)
    async with kube.controlling(kube.kube_spec(jobs=2)):
        await until(lambda: len(kube.site.kubelet.ran) == 2)
        await asyncio.sleep(0.5)
        assert len(await kube.site.names("jobs")) == 2
        kube.site.kubelet.release.set()
        await kube.finished(names)
    assert sorted(kube.site.kubelet.ran) == sorted(names)


async def test_the_end_leaves_nothing_or_everything(kube: KubeWorld):
    (name,) = kube.want("hang", max_attempts=1)
    for on_stop, jobs in (("leave", 1), ("remove", 0)):
        async with kube.reconciling(on_stop=on_stop):
            await until(lambda: kube.site.kubelet.ran == [name])
            await until_async(lambda: kube.site.names("secrets"), lambda found: any(n.startswith("wt-") for n in found))
        assert len(await kube.site.names("jobs")) == jobs
        assert len(await kube.site.names("networkpolicies")) == jobs
        assert sum(n.startswith("wt-") for n in await kube.site.names("secrets")) == jobs
    rollout = kube.store.rollout(name)
    assert (rollout.state, kube.last(name).cause.cause) == ("queuing", CauseClass.CANCELLED)


async def test_a_job_that_the_cluster_refuses_is_a_configuration_error(kube: KubeWorld):
    kube.template.write_text(kube.template.read_text().replace("{{ image | quote }}", '""'))
    names = kube.want("solve", max_attempts=3)
    async with kube.controlling(kube.kube_spec()):
        (rollout,) = await kube.finished(names)
    assert (rollout.cause.cause, rollout.attempt) == (CauseClass.CONFIGURATION, 1)
    assert "image" in rollout.cause.message


async def test_a_task_that_cannot_be_read_is_its_own_fault(kube: KubeWorld, tmp_path: Path):
    names = kube.add(1, tmp_path / "nowhere", harness="solve", source="tests")
    async with kube.controlling(kube.kube_spec()):
        (rollout,) = await kube.finished(names)
    assert (rollout.cause.cause, rollout.attempt) == (CauseClass.TASK, 1)


async def test_the_set_up_label_is_taken_when_set_up_is_over(kube: KubeWorld):
    init = '      initContainers:\n        - {name: setup, image: x, command: ["true"]}\n      containers:\n'
    kube.template.write_text(kube.template.read_text().replace("      containers:\n", init))
    (name,) = kube.want("hang")
    seen: list[str] = []

    async def phases() -> list[str]:
        found = [pod["metadata"]["labels"]["whippletree/phase"] for pod in await kube.site.objects("pods")]
        seen.extend(found)
        return found

    kube.site.kubelet.paused = True
    async with kube.controlling(kube.kube_spec(setup_container="setup")):
        await until_async(phases, ["setup"])
        kube.site.kubelet.paused = False
        await until_async(phases, ["agent"])
        assert kube.store.rollout(name).state == "running"


# --- an API server that fails on demand ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [refusal(403, "Forbidden", 'jobs "x" is forbidden: exceeded quota: jobs'), refusal(503, "ServiceUnavailable"), None],
    ids=["quota", "busy", "away"],
)
async def test_what_passes_costs_no_try(fake_kube: KubeWorld, answer: object):
    api = fake_kube.site.api
    assert isinstance(api, FakeApi)
    api.fail("POST", "jobs", answer, times=4)
    (name,) = fake_kube.want("solve", max_attempts=1)
    async with fake_kube.controlling(fake_kube.kube_spec(retry_seconds=0.1)):
        (rollout,) = await fake_kube.finished([name])
    assert (rollout.reward, rollout.attempt) == (1.0, 1)


async def test_a_quota_that_stays_full_is_a_deadline(fake_kube: KubeWorld):
    api = fake_kube.site.api
    assert isinstance(api, FakeApi)
    api.fail("POST", "jobs", refusal(403, "Forbidden", "exceeded quota: jobs"), times=1000)
    (name,) = fake_kube.want("solve")
    async with fake_kube.controlling(fake_kube.kube_spec(pending_seconds=3.0)):
        (rollout,) = await fake_kube.finished([name])
    assert (rollout.cause.cause, "quota" in rollout.cause.message) == (CauseClass.DEADLINE, True)


async def test_output_that_cannot_be_had_costs_no_reward(fake_kube: KubeWorld):
    api = fake_kube.site.api
    assert isinstance(api, FakeApi)

    async def nothing(namespace: str, pod: str, container: str) -> None:
        return None

    api.logs = nothing
    (name,) = fake_kube.want("solve")
    async with fake_kube.controlling(fake_kube.kube_spec()):
        (rollout,) = await fake_kube.finished([name])
    assert rollout.reward == 1.0
    assert list((fake_kube.directory / "attempts").rglob("*.log")) == []


async def test_output_is_cut_to_its_end(kube: KubeWorld):
    (name,) = kube.want("crash")
    write = kube.site.kubelet.log

    async def long(namespace: str, pod: str, container: str) -> bytes | None:
        text = await write(namespace, pod, container)
        return None if text is None else b"x" * 3_000_000 + text

    kube.site.kubelet.log = long
    if isinstance(kube.site.api, FakeApi):
        kube.site.api.logs = long
    async with kube.controlling(kube.kube_spec(log_kb=1)):
        await kube.finished([name])
    (path,) = (kube.directory / "attempts").rglob("*.log")
    assert path.read_text().endswith("begin crash with [key]\n") and len(path.read_bytes()) <= 1024
    assert len(path.read_bytes()) > 500


@pytest.mark.parametrize("shift", [0, 1, 30, 60])
async def test_a_key_that_the_cut_goes_through_is_not_kept(fake_kube: KubeWorld, shift: int):
    (name,) = fake_kube.want("crash")
    key = mint(fake_kube.secret, name, 1).encode()
    api = fake_kube.site.api
    assert isinstance(api, FakeApi)

    async def long(namespace: str, pod: str, container: str) -> bytes:
        return b"a" * 5000 + key + key + b"z" * (1024 - 2 * len(key) + shift)

    api.logs = long
    async with fake_kube.controlling(fake_kube.kube_spec(log_kb=1)):
        await fake_kube.finished([name])
    (path,) = (fake_kube.directory / "attempts").rglob("*.log")
    kept = path.read_bytes()
    assert kept.endswith(b"z") and not any(key[at : at + 8] in kept for at in range(len(key) - 8))
