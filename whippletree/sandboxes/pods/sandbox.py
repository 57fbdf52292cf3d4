"""A sandbox that is a pod of a Kubernetes cluster.

    controller ── API server ──► pod (ours: labels, lease, deadline)      commands, copies: one websocket each
        └── renews the lease                └── network policy, owned by the pod

Nothing of ours runs in the pod but a shell that waits. What the cluster does on its own: it ends the pod at its deadline, and
takes the network policy with it.

Invariants (tests/kubernetes/test_pod_sandbox.py):
- it does what every backend does (the suite), but for what docs/sandboxes.md lists;
- no command runs before its network policy exists;
- a start that fails or is cancelled leaves no pod; `stop` returns once the pod is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from whippletree.errors import ClusterError, SandboxError, WhippletreeError
from whippletree.kubernetes.client import PODS, POLICIES, Cluster
from whippletree.kubernetes.objects import Manifest, Named
from whippletree.protocols import (
    ExecResult,
    Fetched,
    NetworkPolicy,
    NetworkRefusal,
    PodAddress,
    SandboxHandle,
    SandboxSpec,
    Snapshot,
)
from whippletree.sandboxes.backends import check_names
from whippletree.sandboxes.client import OUTPUT_LIMIT
from whippletree.sandboxes.config import SandboxConfig
from whippletree.sandboxes.files import parts_of
from whippletree.sandboxes.pods import cluster as pod_cluster
from whippletree.sandboxes.pods import files as pod_files
from whippletree.sandboxes.pods import manifest as manifests
from whippletree.sandboxes.pods import scripts
from whippletree.sandboxes.pods import snapshots as pod_snapshots
from whippletree.sandboxes.pods import usage as pod_usage
from whippletree.sandboxes.pods.commands import PodExec, container_of, read_by_shell, shell
from whippletree.sandboxes.pods.snapshots import COPY_SECONDS, Scripts
from whippletree.types import Usage

log = logging.getLogger(__name__)

_LATE_SECONDS = 1.0  # for a create whose answer was not waited for
_REPLACING = 5  # tries against another writer of the network policy
_CHUNK = 1 << 20


class PodSandbox:
    """One pod. Make it with `sandboxes.create`; use it on one event loop."""

    def __init__(
        self, config: SandboxConfig, spec: SandboxSpec, isolation: str, gateway: tuple[str, int], restored: Snapshot | None
    ) -> None:
        """Raises SandboxError for a spec that no pod can be, ConfigurationError for settings that cannot be."""
        check_names(spec)
        if spec.rootfs:
            raise SandboxError("a pod has the root file system of its image", "set sandbox.kubernetes.image")
        settings = config.kubernetes
        self.isolation = isolation
        self.handle: SandboxHandle | None = None
        self.gateway = (settings.gateway_host or gateway[0], settings.gateway_port or gateway[1])
        self._config, self._settings, self._spec, self._restored = config, settings, spec, restored
        self._name = manifests.name_of(spec.sandbox_id)
        self._what = f"sandbox {spec.sandbox_id}"
        if settings.network_policies:
            manifests.policy(settings, spec.sandbox_id, (self._name, ""), spec.network, self.gateway)  # raises
        self._cluster: Cluster | None = None
        self._scripts = Scripts(self._what)
        self._commands: PodExec | None = None
        self._booting: asyncio.Task[SandboxHandle] | None = None
        self._lease: asyncio.Task[None] | None = None
        self._token = self._uid = ""
        self._home = "/"

    @property
    def proxy_environment(self) -> dict[str, str]:
        """{}: a pod has no proxy of ours."""
        return {}

    @property
    def refusals(self) -> Sequence[NetworkRefusal]:
        """(): what a network policy drops, nobody is told of."""
        return ()

    @property
    def refused(self) -> int:
        """0: it is not counted."""
        return 0

    # --- its life ------------------------------------------------------------------------------------------------------

    async def start(self) -> SandboxHandle:
        """Create the pod and wait until commands can run in it. Raises SandboxError with the cluster's words."""
        if self._cluster is not None:
            raise SandboxError(f"{self._what} was started already", "create another")
        self._cluster = pod_cluster.connect(self._config)
        self._booting = asyncio.create_task(self._boot(self._cluster))
        try:
            await asyncio.wait([self._booting])
            if self._booting.cancelled():
                raise SandboxError("it was stopped meanwhile", "create another")
            self.handle = self._booting.result()
        except (ClusterError, SandboxError) as error:
            await self.stop()
            raise SandboxError(f"{self._what} did not start: {error.cause}", error.next_step) from error
        except BaseException:
            await self.stop()
            raise
        return self.handle

    async def _boot(self, cluster: Cluster) -> SandboxHandle:
        inside = await self._create(cluster)
        self._lease = asyncio.create_task(pod_cluster.keep_leased(cluster, self._name, self._settings.lease_seconds))
        if self._settings.network_policies:
            await self._apply(cluster, self._policy(self._spec.network))
        await pod_cluster.wait_for(cluster, self._spec.sandbox_id, self._uid, inside, self._settings.pending_seconds)
        settings = self._settings
        address = PodAddress(
            namespace=settings.namespace,
            pod=self._name,
            uid=self._uid,
            container=inside,
            kubeconfig=settings.kubeconfig and str(Path(settings.kubeconfig).absolute()),
            context=settings.context,
            request_seconds=settings.request_seconds,
            ping_seconds=settings.ping_seconds,
            lost_seconds=settings.lost_seconds,
        )
        self._scripts.container = container = container_of(address, cluster.access)
        workdir = "/" + self._spec.workdir.strip("/")
        said = await self._scripts.ask(read_by_shell(scripts.probe((workdir, "/tmp", "/logs"))))
        user, name, self._home = said.decode("utf-8", "replace").split("\n")[:3]
        environment = {"LANG": "C.UTF-8", "HOME": self._home, "USER": name} | self._spec.environment
        handle = SandboxHandle(
            backend="kubernetes",
            sandbox_id=self._spec.sandbox_id,
            pid=0,
            root="",
            workdir=workdir,
            environment=environment,
            limits=self._spec.limits,
            pod=msgspec.structs.replace(address, user=int(user), user_name=name),
        )
        self._commands = PodExec(container, handle)
        if self._restored is not None:
            await pod_snapshots.unpack(self._scripts, Path(self._restored.directory))
        for source, target in (*self._spec.read_only, *self._spec.files):
            await self._put(Path(source), target)
        return handle

    async def _create(self, cluster: Cluster) -> str:
        """Create the pod; the name of its container."""
        self._token = uuid.uuid4().hex
        notes = {manifests.TOKEN: self._token, **pod_cluster.lease(self._settings.lease_seconds)}
        manifest, container = manifests.pod(self._settings, self._spec, notes)
        try:
            made = await cluster.create(PODS, manifest)
        except ClusterError as error:
            if error.reason != "AlreadyExists":
                raise
            found = await self._find(cluster)  # ours, if the answer to the first try was lost
            if found is None:
                raise SandboxError(
                    f"File exists: pod {self._name}", "a sandbox of that name lives, or `clean` removes it"
                ) from error
            made = found
        self._uid = made.metadata.uid
        return container

    async def _find(self, cluster: Cluster) -> Named | None:
        """The pod that this very object asked for."""
        try:
            found = await cluster.read(PODS, self._name, Named)
        except ClusterError as error:
            if error.status == 404:
                return None
            raise
        return found if (found.metadata.annotations or {}).get(manifests.TOKEN) == self._token else None

    async def stop(self) -> None:
        """Remove the pod and wait until it is gone. Never raises; may be called again, and before `start`."""
        cluster, self._cluster = self._cluster, None
        if cluster is None:
            return
        work = asyncio.create_task(self._stop(cluster))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait([work])
            raise

    async def _stop(self, cluster: Cluster) -> None:
        try:
            if self._booting is not None:
                self._booting.cancel()
                await asyncio.wait([self._booting])
            if self._lease is not None:
                self._lease.cancel()
                await asyncio.wait([self._lease])
            if self._scripts.container is not None:
                await self._scripts.container.close()
            for pause in (0.0, _LATE_SECONDS) if self._token and not self._uid else ():
                await asyncio.sleep(pause)
                if (made := await self._find(cluster)) is not None:
                    self._uid = made.metadata.uid  # it was cancelled while it was created
                    break
            if self._uid and not await pod_cluster.remove(cluster, self._name, self._uid, self._config.stop_seconds):
                log.error("%s: its pod %s is still there; `clean` removes it", self._what, self._name)
        except WhippletreeError as error:
            log.error("%s: its pod %s was not removed; `clean` removes it: %s", self._what, self._name, error)
        finally:
            await cluster.close()

    def _started(self) -> tuple[PodExec, Cluster]:
        if self._commands is None or self._cluster is None or self.handle is None:
            raise SandboxError(f"{self._what} does not run", "start it first; a stopped one cannot be used")
        return self._commands, self._cluster

    # --- commands ------------------------------------------------------------------------------------------------------

    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        environment: Mapping[str, str] | None = None,
        cwd: str = "",
        output_limit: int = OUTPUT_LIMIT,
        user: str = "",
        on_output: Callable[[bytes], None] | None = None,
    ) -> ExecResult:
        """Run a command to its end and that of its output; at `timeout` seconds it and its children are killed.

        A code of 128 and a signal's number is that signal, as shells say it. Raises SandboxError where the pod has no such
        user, cannot be reached, or where what became of the command cannot be found out.
        """
        commands, _ = self._started()
        return await commands.exec(
            argv,
            timeout=timeout,
            environment=environment,
            cwd=cwd,
            output_limit=output_limit,
            user=user,
            on_output=on_output,
        )

    async def kill_all(self) -> None:
        """End every process that was started inside; the pod and its files stay."""
        self._started()
        await self._scripts.ask((shell(scripts.KILL_ALL), None))

    async def usage(self) -> Usage:
        """What it uses now, and has used, by the files of its cgroup where the container sees them."""
        self._started()
        return pod_usage.parse(await self._scripts.ask((shell(scripts.USAGE, *self._places()), None)))

    def _places(self) -> tuple[str, ...]:
        """Directories that are a sandbox's own."""
        workdir = "/" + self._spec.workdir.strip("/")
        home = () if self._home == "/" else (self._home,)
        return tuple(dict.fromkeys((workdir, "/tmp", "/logs", *home)))

    # --- files ---------------------------------------------------------------------------------------------------------

    async def put(self, source: Path, target: str) -> None:
        """Copy a host file or directory inside. A directory is merged into an existing one; no file is ever replaced."""
        self._started()
        await self._put(source, target)

    async def _put(self, source: Path, target: str) -> None:
        packed = await asyncio.to_thread(pod_files.pack, source, target)
        with contextlib.closing(packed):
            await self._scripts.ask(read_by_shell(scripts.prepare(target, packed.directories, packed.files)))
            data = iter(lambda: packed.archive.read(_CHUNK), b"")
            await self._scripts.ask((shell(scripts.PUT, str(packed.size)), data), seconds=COPY_SECONDS)

    async def read(self, path: str, limit: int = 1_000_000) -> bytes | None:
        """At most `limit` bytes of a regular file; no component may be a symbolic link. None when it does not exist."""
        self._started()
        self._parts(path)
        try:
            return await self._scripts.ask((shell(scripts.READ, path, str(limit)), None))
        except SandboxError as error:
            if error.cause == scripts.NONE:
                return None
            raise

    async def get(self, source: str, target: Path, limit: int = 100_000_000) -> Fetched:
        """Copy a file or directory out to `target`, which must not exist; its files are this user's. Links and other special
        files are skipped and named. Raises SandboxError beyond `limit` bytes; nothing is left of a copy that failed."""
        self._started()
        *above, name = self._parts(source) or [""]
        if not name:
            raise SandboxError(f"{source}: give a file or directory below it")
        try:
            aside = Path(tempfile.mkdtemp(prefix=".whippletree-", dir=target.parent))
        except OSError as error:
            raise SandboxError(
                f"{target.parent}: {error.strerror}", "give a path in a directory that can be written"
            ) from error
        try:
            with pod_files.Incoming(source, limit) as incoming:
                command = shell(scripts.GET, "/" + "/".join(above), name)
                await self._scripts.ask((command, None), seconds=COPY_SECONDS, take=incoming.take, fine=(0, 1))
                found = await asyncio.to_thread(incoming.unpack, aside)
            if os.path.lexists(target):
                raise SandboxError(f"{target}: File exists", "give a path that does not exist")
            (aside / name).rename(target)
        finally:
            await asyncio.to_thread(shutil.rmtree, aside, ignore_errors=True)
        return Fetched(files=found.files, bytes=found.bytes, skipped=tuple(found.skipped))

    def _parts(self, path: str) -> list[str]:
        try:
            return parts_of(path)
        except ValueError as error:
            raise SandboxError(str(error), "give an absolute path without ..") from error

    # --- network -------------------------------------------------------------------------------------------------------

    def _policy(self, wanted: NetworkPolicy) -> Manifest:
        return manifests.policy(self._settings, self._spec.sandbox_id, (self._name, self._uid), wanted, self.gateway)

    async def set_network(self, policy: NetworkPolicy) -> None:
        """Change what may be reached while it runs, as fast as the cluster's network plug-in is. Raises SandboxError for a
        destination that a network policy cannot name, and where there are none."""
        _, cluster = self._started()
        if not self._settings.network_policies:
            raise SandboxError(
                "the pods' network is the cluster's: nothing holds it", "set sandbox.kubernetes.network_policies"
            )
        try:
            await self._apply(cluster, self._policy(policy))
        except ClusterError as error:
            raise SandboxError(f"{self._what}: its network did not change: {error.cause}", error.next_step) from error

    async def _apply(self, cluster: Cluster, manifest: Manifest) -> None:
        """Create the policy, or bring the one that is there to what it should be. Raises ClusterError."""
        for left in reversed(range(_REPLACING)):
            try:
                found = await cluster.read(POLICIES, self._name, Named)
                version = {"resourceVersion": found.metadata.resource_version}
                await cluster.replace(POLICIES, self._name, {**manifest, "metadata": {**manifest["metadata"], **version}})
            except ClusterError as error:
                if error.status == 404:
                    await cluster.create(POLICIES, manifest)
                elif error.reason != "Conflict" or not left:
                    raise
                else:
                    continue
            return

    # --- snapshots -----------------------------------------------------------------------------------------------------

    async def snapshot(self, directory: Path) -> Snapshot:
        """Write the files of its work directory, /tmp, /logs and home into `directory`, which must not exist. It stands still
        meanwhile, and goes on. Raises SandboxError, with nothing left of the snapshot."""
        self._started()
        assert self.handle is not None
        return await pod_snapshots.save(self._scripts, self._spec, self.handle, self._places(), directory)
