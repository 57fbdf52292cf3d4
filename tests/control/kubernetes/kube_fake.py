"""An API server in memory, for unit speed: versions, pages, watches, compaction, refusals, controllers for Jobs and garbage.

The tests of its behaviour also run against a real API server (marker `kube`), so it is right where it matters. What only it
can do: fail on demand (`faults`) and play a scripted watch (`scripts`).
"""

from __future__ import annotations

import asyncio
import copy
import datetime
import json
import uuid
from collections import deque
from collections.abc import Awaitable, Callable

from aiohttp import web

Answer = web.StreamResponse
Fault = Callable[[web.Request], "Answer | None"]
GROUPS = {"jobs": "apis/batch/v1", "pods": "api/v1", "secrets": "api/v1", "networkpolicies": "apis/networking.k8s.io/v1"}
SINGULAR = {"jobs": "Job", "pods": "Pod", "secrets": "Secret", "networkpolicies": "NetworkPolicy"}


def now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def refusal(status: int, reason: str, message: str = "", headers: dict[str, str] | None = None) -> web.Response:
    body = {"kind": "Status", "status": "Failure", "code": status, "reason": reason, "message": message or reason}
    return web.json_response(body, status=status, headers=headers)


class FakeApi:
    """Serves one cluster on a loopback port."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], dict] = {}
        self.revision = 0
        self.compacted = 0
        self.history: list[tuple[int, str, str, dict]] = []
        self.watchers: set[asyncio.Queue] = set()
        self.requests: list[tuple[str, str]] = []
        self.done: set[int] = set()  # requests that took effect
        self.silent = False  # watches say nothing and do not end
        self.faults: deque[Fault] = deque()  # each is asked for every request; it is spent once it answers
        self.scripts: deque[list[dict]] = deque()  # what the next watches of Jobs say, instead of the truth; then they end
        self.logs: Callable[[str, str, str], Awaitable[bytes | None]] | None = None
        self.port = 0
        self._runner: web.AppRunner | None = None
        self._timers: list[asyncio.TimerHandle] = []

    async def start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        for timer in self._timers:
            timer.cancel()
        for watcher in self.watchers:
            watcher.put_nowait(None)
        assert self._runner is not None
        await self._runner.cleanup()

    def compact(self) -> None:
        self.compacted = self.revision
        self.history.clear()

    def cut_watches(self) -> None:
        for watcher in list(self.watchers):
            watcher.put_nowait(None)

    def fail(self, method: str, plural: str, answer: web.Response | None, times: int = 1, *, after: bool = False) -> None:
        """The next requests of this kind are answered so; None cuts the connection. `after`: once they took effect."""
        for _ in range(times):

            def fault(request: web.Request) -> Answer | None:
                if request.method != method or f"/{plural}" not in request.path:
                    return None
                if after and id(request) not in self.done:
                    return None
                if answer is None:
                    assert request.transport is not None
                    request.transport.abort()
                    return web.Response()
                return web.Response(status=answer.status, body=answer.body, headers=answer.headers)

            self.faults.append(fault)

    def _fault(self, request: web.Request) -> Answer | None:
        for fault in list(self.faults):
            if (answer := fault(request)) is not None:
                self.faults.remove(fault)
                return answer
        return None

    # --- requests ------------------------------------------------------------------------------------------------------

    async def _serve(self, request: web.Request) -> Answer:
        self.requests.append((request.method, request.path))
        if (answer := self._fault(request)) is not None:
            return answer
        parts = request.path.strip("/").split("/namespaces/")
        namespace, plural, *rest = parts[1].split("/")
        if GROUPS.get(plural) != parts[0]:
            return refusal(404, "NotFound")
        answer = await self._route(request, namespace, plural, rest)
        self.done.add(id(request))
        try:
            return self._fault(request) or answer
        finally:
            self.done.discard(id(request))

    async def _route(self, request: web.Request, namespace: str, plural: str, rest: list[str]) -> Answer:
        if not rest and request.method == "POST":
            return self._create(namespace, plural, await request.json())
        if not rest and request.query.get("watch") == "true":
            return await self._watch(request, namespace, plural)
        if not rest:
            return self._list(request, namespace, plural)
        if rest[1:] == ["log"]:
            text = await self.logs(namespace, rest[0], request.query["container"]) if self.logs else None
            return refusal(404, "NotFound") if text is None else web.Response(body=text[: int(request.query["limitBytes"])])
        if rest[1:] == ["binding"]:
            return web.json_response({}, status=201)
        found = self.objects.get((plural, namespace, rest[0]))
        if found is None:
            return refusal(404, "NotFound", f"{plural} {rest[0]!r} not found")
        if request.method == "GET":
            return web.json_response(found)
        if request.method == "DELETE":
            return self._delete(found, plural, await request.json() if request.can_read_body else {})
        body = await request.json()
        if request.method == "PUT":
            wanted = body["metadata"].get("resourceVersion")
            if wanted and wanted != found["metadata"]["resourceVersion"]:
                return refusal(409, "Conflict", "the object has been modified")
            merged = {**found, **body, "metadata": {**found["metadata"], **body["metadata"]}}
        else:
            merged = _merge(found, body)
        self._write(plural, merged, "MODIFIED")
        return web.json_response(merged)

    def _create(self, namespace: str, plural: str, body: dict) -> Answer:
        name = body["metadata"].get("name", "")
        if (plural, namespace, name) in self.objects:
            return refusal(409, "AlreadyExists", f'{plural} "{name}" already exists')
        if plural == "jobs" and body["spec"]["template"]["spec"].get("restartPolicy") == "Always":
            return refusal(422, "Invalid")
        if plural == "jobs" and not all(c.get("image") for c in body["spec"]["template"]["spec"]["containers"]):
            return refusal(422, "Invalid", "image: Required value")
        meta = {**body["metadata"], "uid": str(uuid.uuid4()), "namespace": namespace, "creationTimestamp": now()}
        made = {**copy.deepcopy(body), "kind": SINGULAR[plural], "metadata": meta}
        if plural != "secrets":
            made.setdefault("status", {})
        self._write(plural, made, "ADDED")
        if plural == "jobs":
            self._make_pod(made)
            self._later(made["spec"].get("activeDeadlineSeconds"), lambda: self._overrun(namespace, name, meta["uid"]))
        return web.json_response(made, status=201)

    def _list(self, request: web.Request, namespace: str, plural: str) -> Answer:
        chosen = self._select(namespace, plural, request.query.get("labelSelector", ""))
        begin, version = 0, self.revision
        if token := request.query.get("continue"):
            begin, version = (int(part) for part in token.split("-"))
            if version < self.compacted:
                return refusal(410, "Expired", "The provided continue parameter is too old")
        limit = int(request.query.get("limit", 0)) or len(chosen) + 1
        meta = {"resourceVersion": str(version)}
        if len(chosen) > begin + limit:
            meta["continue"] = f"{begin + limit}-{version}"
        items = chosen[begin : begin + limit] or None  # null, as real servers write it for some kinds
        return web.json_response({"kind": f"{SINGULAR[plural]}List", "metadata": meta, "items": items})

    def _select(self, namespace: str, plural: str, selector: str) -> list[dict]:
        wanted = dict(pair.split("=", 1) for pair in selector.split(",") if pair)
        return [
            value
            for (kind, where, _), value in sorted(self.objects.items())
            if (kind, where) == (plural, namespace) and _matches(value, wanted)
        ]

    async def _watch(self, request: web.Request, namespace: str, plural: str) -> Answer:
        since = int(request.query.get("resourceVersion") or 0)
        wanted = dict(pair.split("=", 1) for pair in request.query.get("labelSelector", "").split(",") if pair)
        if plural == "jobs" and self.scripts:
            reply = web.StreamResponse()
            await reply.prepare(request)
            for event in self.scripts.popleft():
                await reply.write(json.dumps(event).encode() + b"\n")
            return reply
        if self.silent:
            reply = web.StreamResponse()
            await reply.prepare(request)
            await asyncio.sleep(3600)
        if since < self.compacted:
            return refusal(410, "Expired", f"too old resource version: {since} ({self.compacted})")
        reply = web.StreamResponse()
        await reply.prepare(request)
        queue: asyncio.Queue = asyncio.Queue()
        for entry in self.history:
            if entry[0] > since:
                queue.put_nowait(entry)
        self.watchers.add(queue)
        limit = float(request.query.get("timeoutSeconds", 60))
        try:
            async with asyncio.timeout(limit):
                while (entry := await queue.get()) is not None:
                    _, kind, event, value = entry
                    if kind == plural and value["metadata"]["namespace"] == namespace and _matches(value, wanted):
                        await reply.write(json.dumps({"type": event, "object": value}).encode() + b"\n")
        except (TimeoutError, ConnectionError):
            pass
        finally:
            self.watchers.discard(queue)
        return reply

    def _delete(self, found: dict, plural: str, options: dict) -> Answer:
        wanted = (options.get("preconditions") or {}).get("uid")
        if wanted and wanted != found["metadata"]["uid"]:
            return refusal(409, "Conflict", "the UID in the precondition does not match")
        self._remove(plural, found)
        return web.json_response({"kind": "Status", "status": "Success"})

    # --- state ---------------------------------------------------------------------------------------------------------

    def _write(self, plural: str, value: dict, event: str) -> None:
        self.revision += 1
        value["metadata"]["resourceVersion"] = str(self.revision)
        key = (plural, value["metadata"]["namespace"], value["metadata"]["name"])
        self.objects[key] = value
        self._tell(plural, event, value)
        if plural == "pods" and event == "MODIFIED":
            self._pod_changed(value)

    def _remove(self, plural: str, value: dict) -> None:
        key = (plural, value["metadata"]["namespace"], value["metadata"]["name"])
        if self.objects.pop(key, None) is None:
            return
        self.revision += 1
        gone = copy.deepcopy(value)
        gone["metadata"]["resourceVersion"] = str(self.revision)
        self._tell(plural, "DELETED", gone)
        for kind, _, _ in list(self.objects):
            for owned in self._owned(kind, value["metadata"]["uid"]):
                self._remove(kind, owned)
        if plural == "pods":
            job = self._owner(value)
            if job is not None and not job["status"].get("conditions"):
                self._make_pod(job)  # as the Job controller of that age does

    def _tell(self, plural: str, event: str, value: dict) -> None:
        entry = (self.revision, plural, event, copy.deepcopy(value))
        self.history.append(entry)
        for watcher in self.watchers:
            watcher.put_nowait(entry)

    def _owned(self, kind: str, uid: str) -> list[dict]:
        return [
            value
            for (plural, _, _), value in self.objects.items()
            if plural == kind and any(ref["uid"] == uid for ref in value["metadata"].get("ownerReferences", ()))
        ]

    # --- the Job controller --------------------------------------------------------------------------------------------

    def _owner(self, pod: dict) -> dict | None:
        uids = {ref["uid"] for ref in pod["metadata"].get("ownerReferences", ())}
        return next((v for (kind, _, _), v in self.objects.items() if kind == "jobs" and v["metadata"]["uid"] in uids), None)

    def _make_pod(self, job: dict) -> None:
        meta, template = job["metadata"], job["spec"]["template"]
        labels = {**template["metadata"].get("labels", {}), "job-name": meta["name"], "controller-uid": meta["uid"]}
        pod = {
            "metadata": {
                "name": f"{meta['name']}-{uuid.uuid4().hex[:5]}",
                "labels": labels,
                "annotations": template["metadata"].get("annotations", {}),
                "ownerReferences": [{"kind": "Job", "name": meta["name"], "uid": meta["uid"]}],
            },
            "spec": template["spec"],
            "status": {"phase": "Pending"},
        }
        self._create(meta["namespace"], "pods", pod)

    def _pod_changed(self, pod: dict) -> None:
        job = self._owner(pod)
        phase = pod["status"].get("phase")
        if job is None or job["status"].get("conditions") or phase not in ("Succeeded", "Failed"):
            return
        if phase == "Succeeded":
            self._finish(job, {"succeeded": 1}, {"type": "Complete", "status": "True"})
        else:
            self._finish(job, {"failed": 1}, {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"})

    def _finish(self, job: dict, counts: dict, condition: dict) -> None:
        job = {**job, "metadata": dict(job["metadata"]), "status": {**counts, "conditions": [condition]}}
        self._write("jobs", job, "MODIFIED")
        self._later(job["spec"].get("ttlSecondsAfterFinished"), lambda: self._remove("jobs", job))

    def _overrun(self, namespace: str, name: str, uid: str) -> None:
        job = self.objects.get(("jobs", namespace, name))
        if job is not None and job["metadata"]["uid"] == uid and not job["status"].get("conditions"):
            self._finish(job, {"failed": 1}, {"type": "Failed", "status": "True", "reason": "DeadlineExceeded"})
            for pod in self._owned("pods", uid):
                self._remove("pods", pod)

    def _later(self, seconds: int | None, work: Callable[[], None]) -> None:
        if seconds is not None:
            self._timers.append(asyncio.get_running_loop().call_later(seconds, work))


def _matches(value: dict, wanted: dict[str, str]) -> bool:
    labels = value["metadata"].get("labels") or {}
    return all(labels.get(name) == text for name, text in wanted.items())


def _merge(into: dict, patch: dict) -> dict:
    made = dict(into)
    for name, value in patch.items():
        made[name] = _merge(made.get(name) or {}, value) if isinstance(value, dict) else value
    return made
