"""A kubelet of the tests: pods become coroutines that do what their command says, against any API server.

| command | what becomes of the pod |
|---|---|
| solve REWARD | asks the model once with the attempt's key, then leaves a result |
| lazy REWARD | leaves a result without asking |
| say TEXT | asks, then leaves TEXT as its termination message |
| crash CODE | asks, then ends with CODE |
| hang | asks, then runs for ever |
| oom, evicted, nostart | killed for memory; evicted by its node; cannot be started |
| nopull, unscheduled | never starts, and says why |
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import json
import ssl
import subprocess
from pathlib import Path

import aiohttp
from aiohttp import web
from aiohttp.typedefs import Handler

NODE = "test-node"
AGENT = "test-kubelet"
PATCH = {"Content-Type": "application/merge-patch+json"}


def stamp(at: float | None = None) -> str:
    when = datetime.datetime.now(datetime.UTC) if at is None else datetime.datetime.fromtimestamp(at, datetime.UTC)
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


async def serve(directory: Path, path: str, handler: Handler) -> tuple[web.AppRunner, int]:
    """A kubelet's own HTTPS port, which a real API server asks at `path`; the key and certificate come into `directory`."""
    cert, key = directory / "kubelet.crt", directory / "kubelet.key"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=test", "-days", "2"]
    await asyncio.to_thread(subprocess.run, [*command, "-keyout", key, "-out", cert], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    app = web.Application()
    app.router.add_get(path, handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    return runner, runner.addresses[0][1]


def container_status(container: dict, state: dict, *, ready: bool = False) -> dict:
    return {
        "name": container["name"],
        "state": state,
        "ready": ready,
        "restartCount": 0,
        "image": container["image"],
        "imageID": "",
        "lastState": {},
    }


class Kubelet:
    """Runs the pods of one namespace."""

    def __init__(self, url: str, namespace: str, token: str = "") -> None:
        self.url = f"{url}/api/v1/namespaces/{namespace}/pods"
        self.root, self.namespace = url, namespace
        self.headers = {"User-Agent": AGENT, **({"Authorization": f"Bearer {token}"} if token else {})}
        self.ran: list[str] = []  # rollout ids, one entry per pod that was started
        self.attempts: list[tuple[str, str]] = []  # the same with the attempt
        self.output: dict[str, str] = {}  # by pod
        self.release = asyncio.Event()  # pods with the command `hang` go on to succeed once it is set
        self.paused = False  # takes no new pods
        self._tasks: dict[str, asyncio.Task] = {}
        self._loop: asyncio.Task | None = None
        self._runner: web.AppRunner | None = None
        self.session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        self.session = aiohttp.ClientSession(headers=self.headers, connector=aiohttp.TCPConnector(ssl=False))
        self._loop = asyncio.create_task(self._work())

    async def stop(self) -> None:
        for task in (self._loop, *self._tasks.values()):
            if task is not None:
                task.cancel()
        await asyncio.gather(*(task for task in (self._loop, *self._tasks.values()) if task), return_exceptions=True)
        if self._runner is not None:
            await self._runner.cleanup()
        if self.session is not None:
            await self.session.close()

    async def serve_logs(self, directory: Path) -> int:
        """The port that the real API server asks for a pod's output."""
        self._runner, port = await serve(directory, "/containerLogs/{namespace}/{pod}/{container}", self._log)
        return port

    async def _log(self, request: web.Request) -> web.Response:
        text = await self.log(request.match_info["namespace"], request.match_info["pod"], request.match_info["container"])
        return web.Response(status=404) if text is None else web.Response(body=text[: int(request.query["limitBytes"])])

    async def log(self, namespace: str, pod: str, container: str) -> bytes | None:
        text = self.output.get(pod)
        return None if text is None else text.encode()

    # --- pods ----------------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            with contextlib.suppress(aiohttp.ClientError, KeyError):  # the cluster is going away, or the namespace is
                await self._look()
            await asyncio.sleep(0.03)

    async def _look(self) -> None:
        assert self.session is not None
        async with self.session.get(self.url) as reply:
            pods = (await reply.json())["items"] or []
        there = set()
        for pod in pods:
            meta = pod["metadata"]
            there.add(meta["uid"])
            if meta.get("deletionTimestamp"):
                await self._end(meta["uid"])
                body = {"gracePeriodSeconds": 0}
                async with self.session.delete(f"{self.url}/{meta['name']}", json=body):
                    pass
            elif meta["uid"] not in self._tasks and pod["status"].get("phase") == "Pending" and not self.paused:
                self._tasks[meta["uid"]] = asyncio.create_task(self._run(pod))
        for uid in set(self._tasks) - there:
            await self._end(uid)

    async def _end(self, uid: str) -> None:
        task = self._tasks.get(uid)
        if task is not None and not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def status(self, name: str, status: dict) -> None:
        assert self.session is not None
        async with self.session.patch(f"{self.url}/{name}/status", data=json.dumps({"status": status}), headers=PATCH) as reply:
            if reply.status not in (200, 404):
                raise AssertionError(await reply.text())

    async def _run(self, pod: dict) -> None:
        name = pod["metadata"]["name"]
        self.ran.append(pod["metadata"]["annotations"]["whippletree/rollout"])
        self.attempts.append((self.ran[-1], pod["metadata"]["annotations"].get("whippletree/attempt", "")))
        word, *rest = pod["spec"]["containers"][0]["command"]
        containers = pod["spec"]["containers"]
        if word == "unscheduled":
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
            await self.status(name, {"conditions": [condition]})
            return
        assert self.session is not None
        target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
        async with self.session.post(f"{self.url}/{name}/binding", json={"metadata": {"name": name}, "target": target}):
            pass
        if word == "nopull":
            waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
            await self.status(name, {"containerStatuses": [container_status(containers[0], waiting)]})
            return
        init = [await self._init(name, container, pod) for container in pod["spec"].get("initContainers", ())]
        begun = stamp()
        running = [container_status(container, {"running": {"startedAt": begun}}, ready=True) for container in containers]
        await self.status(name, {"phase": "Running", "initContainerStatuses": init, "containerStatuses": running})
        end = await self._act(pod, word, rest)
        terminated = {"startedAt": begun, "finishedAt": stamp(), "exitCode": 0, **end}
        phase = "Failed" if terminated["exitCode"] else "Succeeded"
        status = {
            "phase": phase,
            "containerStatuses": [container_status(container, {"terminated": terminated}) for container in containers],
        }
        if word == "evicted":
            status = {"phase": "Failed", "reason": "Evicted", "message": "low on memory"}
        await self.status(name, status)

    async def _init(self, name: str, container: dict, pod: dict) -> dict:
        begun = stamp()
        running = container_status(container, {"running": {"startedAt": begun}})
        await self.status(name, {"initContainerStatuses": [running]})
        await asyncio.sleep(0.2)
        return container_status(container, {"terminated": {"startedAt": begun, "finishedAt": stamp(), "exitCode": 0}})

    async def _act(self, pod: dict, word: str, rest: list[str]) -> dict:
        """What its one container does, and how it ends."""
        name = pod["metadata"]["name"]
        environment = await self._environment(pod)
        self.output[name] = f"begin {word} with {environment['API_KEY']}\n"
        if word not in ("lazy", "oom", "evicted", "nostart"):
            await self._ask(environment)
        match word:
            case "solve" | "lazy":
                return {"message": json.dumps({"reward": float(rest[0])})}
            case "say":
                return {"message": rest[0]}
            case "crash":
                return {"exitCode": int(rest[0]), "message": f"broken: {environment['API_KEY']}"}
            case "oom":
                return {"exitCode": 137, "reason": "OOMKilled"}
            case "nostart":
                return {"exitCode": 128, "reason": "ContainerCannotRun", "message": "exec: no such file"}
            case "evicted":
                return {"exitCode": 137}
        await self.release.wait()
        return {"message": json.dumps({"reward": 1.0})}

    async def _environment(self, pod: dict) -> dict[str, str]:
        found = {}
        for entry in pod["spec"]["containers"][0].get("env", ()):
            if "value" in entry:
                found[entry["name"]] = entry["value"]
                continue
            ref = entry["valueFrom"]["secretKeyRef"]
            found[entry["name"]] = await self._secret(ref["name"], ref["key"])
        return found

    async def _secret(self, name: str, key: str) -> str:
        """Waits for the Secret, as a kubelet does."""
        assert self.session is not None
        while True:
            async with self.session.get(f"{self.root}/api/v1/namespaces/{self.namespace}/secrets/{name}") as reply:
                if reply.status == 200:
                    found = await reply.json()
                    return (found.get("stringData") or {}).get(key) or base64.b64decode(found["data"][key]).decode()
            await asyncio.sleep(0.05)

    async def _ask(self, environment: dict[str, str]) -> None:
        """One chat completion, as an agent would; what the gateway refuses is not the pod's business."""
        body = {"model": "policy", "messages": [{"role": "user", "content": "hi"}]}
        headers = {"Authorization": f"Bearer {environment['API_KEY']}"}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{environment['BASE_URL']}/chat/completions", json=body, headers=headers) as reply,
        ):
            await reply.read()
