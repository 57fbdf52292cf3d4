"""A kubelet of the tests that runs pods for real: each container is a bubblewrap root with processes of its own, in a cgroup
with the manifest's memory limit. It serves the exec endpoint that a real API server passes websockets on to.

Images decide what becomes of a pod: "nopull" and "unscheduled" never start, "dies" ends at once, "busybox" has
nothing but that; any other is this machine's /usr.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from aiohttp import web
from kube_kubelet import PATCH, container_status, serve, stamp

from whippletree.sandboxes import SandboxConfig, cgroups
from whippletree.sandboxes.support import find_bwrap

PROTOCOL = "v4.channel.k8s.io"
CPUACCT = Path("/sys/fs/cgroup/cpuacct")
BWRAP = find_bwrap(SandboxConfig())
ETC = (
    "passwd",
    "group",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "alternatives",
    "localtime",
    "python3",
    "python3.11",
    "python3.12",
)


def missing() -> str:
    """Why pods cannot be run here; "" where they can."""
    if os.geteuid() != 0:
        return "pods of the tests take root"
    lacking = [tool for tool in (BWRAP or "bwrap", "nsenter", "setpriv", "openssl") if shutil.which(tool) is None]
    return f"missing: {', '.join(lacking)}" if lacking else ""


@dataclass
class Running:
    """A container that was started. `pid` is that of its first process, seen from outside."""

    process: asyncio.subprocess.Process
    pid: int
    groups: tuple[str, ...]
    capabilities: list[str]
    commands: set[asyncio.subprocess.Process] = field(default_factory=set)


class PodKubelet:
    """Runs the pods of one namespace. `url` and `token` are the API server's."""

    def __init__(self, url: str, namespace: str, token: str) -> None:
        self.node = f"node-{secrets.token_hex(4)}"
        self.commands = 0  # that were asked for
        self._root, self._namespace = url, namespace
        self._url = f"{url}/api/v1/namespaces/{namespace}/pods"
        self._headers = {"Authorization": f"Bearer {token}"}
        self._running: dict[str, Running] = {}
        self._seen: dict[str, asyncio.Task] = {}
        self._loop: asyncio.Task | None = None

    async def start(self, directory: Path) -> None:
        self._directory = directory
        self._session = aiohttp.ClientSession(headers=self._headers, connector=aiohttp.TCPConnector(ssl=False))
        self._runner, port = await serve(directory, "/exec/{namespace}/{pod}/{container}", self._exec)
        await self._ask("POST", f"{self._root}/api/v1/nodes", {"metadata": {"name": self.node}})
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }
        await self._ask("PATCH", f"{self._root}/api/v1/nodes/{self.node}/status", {"status": status})
        self._loop = asyncio.create_task(self._work())

    async def stop(self) -> None:
        tasks = [task for task in (self._loop, *self._seen.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for uid in list(self._running):
            await self._end(uid)
        with contextlib.suppress(aiohttp.ClientError):
            await self._ask("DELETE", f"{self._root}/api/v1/nodes/{self.node}", {})
        await self._runner.cleanup()
        await self._session.close()

    async def _ask(self, method: str, url: str, body: dict) -> dict:
        headers = PATCH if method == "PATCH" else {"Content-Type": "application/json"}
        async with self._session.request(method, url, data=json.dumps(body), headers=headers) as reply:
            return await reply.json()

    # --- pods ----------------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            with contextlib.suppress(aiohttp.ClientError, KeyError):  # the namespace is going away
                await self._look()
            await asyncio.sleep(0.05)

    async def _look(self) -> None:
        async with self._session.get(self._url) as reply:
            pods = (await reply.json())["items"] or []
        for pod in pods:
            uid = pod["metadata"]["uid"]
            if pod["metadata"].get("deletionTimestamp"):
                await self._end(uid)
                await self._ask("DELETE", f"{self._url}/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})
            elif uid not in self._seen:
                self._seen[uid] = asyncio.create_task(self._begin(pod))
        for uid in set(self._running) - {pod["metadata"]["uid"] for pod in pods}:
            await self._end(uid)

    async def status(self, name: str, status: dict) -> None:
        await self._ask("PATCH", f"{self._url}/{name}/status", {"status": status})

    async def _begin(self, pod: dict) -> None:
        name, container = pod["metadata"]["name"], pod["spec"]["containers"][0]
        if container["image"] == "unscheduled":
            said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}
            await self.status(name, {"conditions": [said]})
            return
        target = {"apiVersion": "v1", "kind": "Node", "name": self.node}
        await self._ask("POST", f"{self._url}/{name}/binding", {"metadata": {"name": name}, "target": target})
        if container["image"] == "nopull":
            waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling image nopull"}
            await self.status(name, {"containerStatuses": [container_status(container, {"waiting": waiting})]})
            return
        if container["image"] == "dies":
            terminated = {"exitCode": 127, "reason": "ContainerCannotRun", "message": "exec: no such file"}
            await self.status(
                name, {"phase": "Failed", "containerStatuses": [container_status(container, {"terminated": terminated})]}
            )
            return
        uid = pod["metadata"]["uid"]
        starting = asyncio.create_task(self._run(name, container))
        try:
            self._running[uid] = await asyncio.shield(starting)
        except asyncio.CancelledError:
            self._running[uid] = await starting  # it is ended with the others
            raise
        running = container_status(container, {"running": {"startedAt": stamp()}}, ready=True)
        await self.status(name, {"phase": "Running", "containerStatuses": [running]})

    async def _run(self, name: str, container: dict) -> Running:
        limit = container.get("resources", {}).get("limits", {}).get("memory", "")
        megabytes = int(limit.removesuffix("Mi")) if limit else 0
        groups = cgroups.create(f"whippletree-kubelet-{name}-{secrets.token_hex(3)}", "", memory_mb=megabytes, processes=0)
        binds: list[str] = []
        if groups:
            binds += ["--ro-bind", groups[0], "/sys/fs/cgroup/memory"]
        if CPUACCT.is_dir():
            counted = CPUACCT / f"whippletree-kubelet-{name}-{secrets.token_hex(3)}"
            counted.mkdir()
            groups = (*groups, str(counted))
            binds += ["--ro-bind", str(counted), "/sys/fs/cgroup/cpuacct"]
        busybox = container["image"] == "busybox"
        if busybox:
            folder = self._applets()
            binds += ["--ro-bind-try", "/usr/lib", "/usr/lib", "--ro-bind-try", "/usr/lib64", "/usr/lib64"]
            binds += ["--ro-bind", str(folder), "/bin", "--symlink", "/bin", "/usr/bin"]
        else:
            binds += ["--ro-bind", "/usr", "/usr", "--tmpfs", "/usr/local/bin", "--symlink", "usr/bin", "/bin"]
            binds += ["--symlink", "usr/sbin", "/sbin", "--perms", "0755", "--dir", "/etc"]
            binds += [word for entry in ETC for word in ("--ro-bind-try", f"/etc/{entry}", f"/etc/{entry}")]
        for mount in container["volumeMounts"]:
            binds += ["--tmpfs", mount["mountPath"]]
        reading, writing = os.pipe()
        process = await asyncio.create_subprocess_exec(
            *(BWRAP, "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--as-pid-1", "--info-fd", str(writing)),
            *("--proc", "/proc", "--dev", "/dev", "--perms", "1777", "--tmpfs", "/tmp", "--tmpfs", "/root"),
            *("--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"),
            *binds,
            *("--", *container["command"], *container.get("args", ())),
            pass_fds=(writing,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={"PATH": os.defpath},
            preexec_fn=lambda: cgroups.join(groups),
        )
        os.close(writing)
        with os.fdopen(reading) as file:
            pid = json.loads(await asyncio.to_thread(file.read))["child-pid"]
        first = container["command"][0].encode()
        while not Path(f"/proc/{pid}/cmdline").read_bytes().startswith(first):  # until then its root is not in place
            await asyncio.sleep(0.002)
        wanted = [] if busybox else container["securityContext"]["capabilities"]["add"]
        return Running(process, pid, groups, [name.lower() for name in wanted])

    def _applets(self) -> Path:
        """A folder with BusyBox under the names of all that it can do."""
        folder = self._directory / "busybox"
        if not folder.exists():
            folder.mkdir()
            shutil.copy(shutil.which("busybox") or "busybox", folder / "busybox")
            subprocess.run((folder / "busybox", "--install", "-s", folder), check=True)
            for link in folder.iterdir():
                if link.is_symlink():
                    link.unlink()
                    link.symlink_to("busybox")
        return folder

    async def _end(self, uid: str) -> None:
        running = self._running.get(uid)
        if running is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(running.pid, signal.SIGKILL)
        await running.process.wait()
        for process in list(running.commands):
            await process.wait()
        await asyncio.to_thread(cgroups.remove, running.groups, seconds=5.0)
        self._running.pop(uid, None)

    # --- commands ------------------------------------------------------------------------------------------------------

    async def _exec(self, request: web.Request) -> web.WebSocketResponse:
        """What a kubelet does with `kubectl exec`, as far as websockets go."""
        self.commands += 1
        socket = web.WebSocketResponse(protocols=(PROTOCOL,))
        await socket.prepare(request)
        for channel in (0, 1, 2):
            await socket.send_bytes(bytes((channel,)))
        running = await self._find(request.match_info["pod"])
        if running is None:
            status = {"status": "Failure", "reason": "InternalError", "message": "container not found"}
        else:
            status = await self._command(running, request.query.getall("command"), socket, request.query.get("input") == "1")
        with contextlib.suppress(ConnectionError):
            await socket.send_bytes(b"\x03" + json.dumps({"metadata": {}, **status}).encode())
        with contextlib.suppress(TimeoutError, ConnectionError):
            await asyncio.wait_for(socket.close(), 2)
        return socket

    async def _find(self, name: str) -> Running | None:
        async with self._session.get(f"{self._url}/{name}") as reply:
            found = await reply.json()
        return self._running.get(found["metadata"]["uid"]) if reply.status == 200 else None

    async def _command(self, running: Running, argv: list[str], socket: web.WebSocketResponse, stdin: bool) -> dict:
        bounds = ",".join(("-all", *(f"+{name}" for name in running.capabilities)))
        process = await asyncio.create_subprocess_exec(
            *("nsenter", "--target", str(running.pid), "--mount", "--pid", "--ipc", "--uts", "--"),
            *(("setpriv", "--bounding-set", bounds, "--inh-caps=-all", "--no-new-privs", "--") if running.capabilities else ()),
            *argv,
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/root", "HOSTNAME": "pod"},
            preexec_fn=lambda: cgroups.join(running.groups),
        )
        running.commands.add(process)
        pumps = [asyncio.create_task(_pump(stream, socket, channel)) for channel, stream in _streams(process)]
        feeding = asyncio.create_task(_feed(process, socket))
        await asyncio.gather(*pumps)
        code = await process.wait()
        running.commands.discard(process)
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
        if code == 0:
            return {"status": "Success"}
        code = 128 - code if code < 0 else code
        return {
            "status": "Failure",
            "reason": "NonZeroExitCode",
            "message": f"command terminated with non-zero exit code: {code}",
            "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
        }


def _streams(process: asyncio.subprocess.Process):
    return ((1, process.stdout), (2, process.stderr))


async def _pump(stream: asyncio.StreamReader | None, socket: web.WebSocketResponse, channel: int) -> None:
    """As container runtimes do: what cannot be delivered is read no further."""
    assert stream is not None
    while data := await stream.read(32 * 1024):
        try:
            await socket.send_bytes(bytes((channel,)) + data)
        except ConnectionError:
            stream._transport.close()  # type: ignore[attr-defined]  # the command gets EPIPE
            return


async def _feed(process: asyncio.subprocess.Process, socket: web.WebSocketResponse) -> None:
    """Input from the socket; also what keeps answering pings."""
    async for message in socket:
        if message.type is aiohttp.WSMsgType.BINARY and message.data[:1] == b"\x00" and process.stdin is not None:
            with contextlib.suppress(ConnectionError):
                process.stdin.write(message.data[1:])
                await process.stdin.drain()
    if process.stdin is not None:
        process.stdin.close()
