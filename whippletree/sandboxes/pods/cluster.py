"""Pods of sandboxes as the cluster has them: waiting for one, removing one, and removing what killed controllers left.

A pod carries who holds it and a lease that its controller renews. A controller of the same machine is looked for among its
processes; of another one only the lease is known.

Invariants (tests/kubernetes/test_pod_sandbox.py): a pod whose controller lives is left alone; a pod that is removed is gone,
with its processes, when the removal returns, or the node is lost; waiting ends by its limit, with the cluster's words.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Mapping

import msgspec

from whippletree.errors import ClusterError, ConfigurationError, SandboxError, WhippletreeError
from whippletree.kubernetes.access import open_access
from whippletree.kubernetes.client import PODS, POLICIES, Cluster
from whippletree.kubernetes.objects import Named, Pod
from whippletree.sandboxes import kernel
from whippletree.sandboxes.config import SandboxConfig
from whippletree.sandboxes.pods import manifest as manifests

log = logging.getLogger(__name__)

_HOPELESS = (
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImagePullBackOff",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
)
_POLL_SECONDS = 0.2


def connect(config: SandboxConfig) -> Cluster:
    """The cluster of the settings. Raises ConfigurationError."""
    return Cluster(open_access(config.kubernetes), config.kubernetes)


def holder() -> str:
    """This process, as no other is called while the machine is up."""
    return f"{_machine()}/{os.getpid()}/{kernel.start_time(os.getpid())}"


def _machine() -> str:
    return f"{kernel.boot_id()}/{kernel.pid_namespace()}"


def lease(seconds: float) -> dict[str, str]:
    """Annotations of a pod that this process holds, for so long."""
    return {manifests.HOLDER: holder(), manifests.LEASE: f"{time.time() + seconds:.0f}"}


def is_held(annotations: Mapping[str, str]) -> bool:
    """Whether the controller of a pod is thought to live."""
    machine, _, process = annotations.get(manifests.HOLDER, "").partition("/")
    namespace, _, process = process.partition("/")
    pid, _, started = process.partition("/")
    if f"{machine}/{namespace}" == _machine() and pid.isdigit():
        return str(kernel.start_time(int(pid))) == started
    try:
        return float(annotations.get(manifests.LEASE, "0")) > time.time()
    except ValueError:
        return False


def ready(pod: Pod, container: str) -> bool:
    """Whether commands can run in it. Raises SandboxError when they never will."""
    words = pod.waiting
    if pod.status.phase in ("Failed", "Succeeded"):
        ends = (found.state.terminated for found in pod.containers if found.state.terminated)
        said = next((f"{end.reason} {end.exit_code} {end.message}" for end in ends), "")
        raise SandboxError(f"its pod has ended: {pod.status.reason} {pod.status.message} {said}".strip(), "look at its image")
    if words.startswith(_HOPELESS):
        raise SandboxError(words, "check the image, and the cluster's access to its registry")
    running = any(found.name == container and found.state.running for found in pod.containers)
    return pod.status.phase == "Running" and running


async def wait_for(cluster: Cluster, sandbox_id: str, uid: str, container: str, seconds: float) -> None:
    """Until commands can run in it. Raises SandboxError with the cluster's words."""
    words = ""
    until = time.monotonic() + seconds
    try:
        async with asyncio.timeout(seconds):
            while True:
                pods, version = await cluster.list_all(PODS, Pod, manifests.selector(sandbox_id))
                found = next((pod for pod in pods if pod.metadata.uid == uid), None)
                if found is None:
                    raise SandboxError("its pod is gone", "somebody has deleted it")
                words = found.waiting or words
                if ready(found, container):
                    return
                try:
                    left = max(1.0, until - time.monotonic())
                    async for event in cluster.watch(PODS, Pod, manifests.selector(sandbox_id), version, left):
                        if event.object.metadata.uid != uid or event.type == "BOOKMARK":
                            continue
                        if event.type == "DELETED":
                            raise SandboxError("its pod is gone", "somebody has deleted it")
                        words = event.object.waiting or words
                        if ready(event.object, container):
                            return
                except ClusterError:
                    await asyncio.sleep(_POLL_SECONDS)  # it is listed again
    except TimeoutError as error:
        raise SandboxError(
            f"after {seconds:g} s: {words or 'no machine has taken it'}",
            "raise sandbox.kubernetes.pending_seconds, or give the cluster room",
        ) from error


async def remove(cluster: Cluster, name: str, uid: str, seconds: float) -> bool:
    """Remove a pod and its policy, and wait until they are gone. A node that does not answer is given up after `seconds`.

    False if it is still there after twice that. Raises ClusterError.
    """
    await cluster.delete(PODS, name, uid, grace=1)  # the least that waits for the node to have ended it
    gone = await _gone(cluster, name, uid, seconds)
    if not gone:
        await cluster.delete(PODS, name, uid, grace=0)
        gone = await _gone(cluster, name, uid, seconds)
    await _remove_policy(cluster, name, uid)
    return gone


async def _remove_policy(cluster: Cluster, name: str, pod_uid: str) -> None:
    """The cluster would do so too, some time later."""
    try:
        found = await cluster.read(POLICIES, name, Named)
    except ClusterError as error:
        if error.status == 404:
            return
        raise
    if any(owner.uid == pod_uid for owner in found.metadata.owner_references or ()):
        await cluster.delete(POLICIES, name, found.metadata.uid)


async def _gone(cluster: Cluster, name: str, uid: str, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while True:
        try:
            if (await cluster.read(PODS, name, Pod)).metadata.uid != uid:
                return True
        except ClusterError as error:
            if error.status == 404:
                return True
            raise
        if time.monotonic() > until:
            return False
        await asyncio.sleep(_POLL_SECONDS)


async def clean(config: SandboxConfig, prefix: str) -> tuple[list[str], list[str]]:
    """(removed, alive): sandboxes whose id starts with `prefix`. Raises ClusterError, ConfigurationError."""
    removed: list[str] = []
    alive: list[str] = []

    async def look(pod: Pod) -> None:
        notes = pod.metadata.annotations or {}
        sandbox_id = notes.get(manifests.SANDBOX, "")
        if not sandbox_id.startswith(prefix):
            return
        orphan = not is_held(notes)
        if orphan:
            orphan = await remove(cluster, pod.metadata.name, pod.metadata.uid, config.stop_seconds)
        (removed if orphan else alive).append(sandbox_id)

    async with connect(config) as cluster:
        pods, _ = await cluster.list_all(PODS, Pod, manifests.SELECTOR)
        async with asyncio.TaskGroup() as group:
            for pod in pods:
                group.create_task(look(pod))
    return sorted(removed), sorted(alive)


async def reason(config: SandboxConfig) -> str:
    """Why no pods can be had; "" where the cluster answers."""
    changed = msgspec.structs.replace(config.kubernetes, retry_seconds=1.0, request_seconds=5.0)
    try:
        async with connect(msgspec.structs.replace(config, kubernetes=changed)) as cluster:
            await cluster.list_all(PODS, Pod, manifests.SELECTOR)
    except (ClusterError, ConfigurationError) as error:
        return error.cause
    return ""


async def keep_leased(cluster: Cluster, name: str, seconds: float) -> None:
    """Renew a pod's lease, for ever."""
    while True:
        await asyncio.sleep(seconds / 3)
        try:
            await cluster.annotate(PODS, name, lease(seconds))
        except WhippletreeError as error:
            log.warning("the lease of pod %s was not renewed: %s", name, error)
