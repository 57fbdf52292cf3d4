"""The Kubernetes reconciler in the controller's process: `python -m whippletree.control SPEC.json` with launch = "kubernetes".

Invariants (tests/control/kubernetes/test_kubernetes_serve.py): it ends cleanly with the request to stop; one controller works
on a run directory at a time; a template or credential that cannot be used ends it before anything is claimed.
"""

from __future__ import annotations

import asyncio
import functools
import os
import secrets
from pathlib import Path

from whippletree.control.controller import LOCK, only_one
from whippletree.control.grading import Grader
from whippletree.control.kubernetes.attempts import ClusterParts
from whippletree.control.kubernetes.decide import Owner
from whippletree.control.kubernetes.reconciler import Reconciler
from whippletree.control.kubernetes.template import JobTemplate
from whippletree.control.place import attempt_directory
from whippletree.control.rubrics.scoring import Record
from whippletree.control.seal import GatewaySealer
from whippletree.control.spec import ControllerSpec
from whippletree.errors import ConfigurationError
from whippletree.files import write_json
from whippletree.gateway.keys import control_key, load_secret
from whippletree.kubernetes.access import open_access
from whippletree.kubernetes.client import Cluster
from whippletree.kubernetes.labels import label_value
from whippletree.protocols import Store
from whippletree.store import StoreConfig, open_store
from whippletree.tasks import Task, load_task
from whippletree.types import Struct

RUN_ID = "kubernetes_run"  # key in the store's metadata


class ReconcilerReady(Struct):
    """What the ready file holds. Example: ReconcilerReady(pid=4711, jobs=64, run="3f9a1c20be")"""

    pid: int
    jobs: int
    run: str


async def serve(spec: ControllerSpec, stop: asyncio.Event) -> None:
    """Take and run rollouts until `stop` is set. Raises WhippletreeError when it cannot start or the store fails."""
    config = spec.control.kubernetes
    directory = Path(spec.directory)
    if not config.template:
        raise ConfigurationError('launch = "kubernetes" needs a Job', "set control.kubernetes.template to a file")
    template = JobTemplate.load(Path(config.template))
    access = open_access(config)
    secret = load_secret(Path(spec.secret))
    with (
        only_one(directory / LOCK),
        open_store(Path(spec.store), config=StoreConfig(durability="power"), instance="controller") as store,
    ):
        owner = Owner(run=run_id(store), controller=label_value(spec.worker))
        sealer = GatewaySealer(spec.gateway_url, control_key(secret), store)
        try:
            async with Cluster(access, config) as cluster:
                parts = ClusterParts(
                    store=store,
                    sealer=sealer,
                    cluster=cluster,
                    owner=owner,
                    template=template,
                    bindings=spec.harnesses,
                    control=spec.control,
                    secret=secret,
                    gateway_url=(config.gateway_url or spec.gateway_url).rstrip("/"),
                    model=spec.model,
                    directory=directory,
                )
                grader = Grader(_record(parts), spec.control.rubrics, directory, worker=spec.worker)
                await _run(Reconciler(parts, spec.worker, spec.control.stop_seconds, grader), spec, stop)
        finally:
            sealer.close()


def _record(parts: ClusterParts) -> Record:
    """Where attempts are on record, for their rubrics. What an attempt left in its pod is not."""

    async def read(path: Path) -> Task:
        return await asyncio.to_thread(load_task, path, parts.control.variables)

    return Record(store=parts.store, read=read, place=functools.partial(attempt_directory, parts.directory))


def run_id(store: Store) -> str:
    """The run's id in the cluster, drawn once and kept in its store: a path would be the same on two machines."""
    known = store.meta(RUN_ID)
    if known is None:
        known = secrets.token_hex(5)
        store.set_meta(RUN_ID, known).result()
    return known


async def _run(reconciler: Reconciler, spec: ControllerSpec, stop: asyncio.Event) -> None:
    work = asyncio.create_task(reconciler.run())
    stopped = asyncio.create_task(stop.wait())
    started = asyncio.create_task(reconciler.started.wait())
    try:
        await asyncio.wait({work, started, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if started.done() and spec.ready_file:
            ready = ReconcilerReady(pid=os.getpid(), jobs=reconciler.config.jobs, run=reconciler.parts.owner.run)
            write_json(Path(spec.ready_file), ready)
        await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        reconciler.stop()
        stopped.cancel()
        started.cancel()
        await work
