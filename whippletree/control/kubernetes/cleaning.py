"""The removal of what a controller has in a cluster: Jobs, Secrets, and the policies that its pods ran under.

Invariant (tests/control/kubernetes/test_kubernetes_reconciler.py): policies go last, and only once nothing runs under them.
"""

from __future__ import annotations

import asyncio
import logging
import time

from whippletree.control.kubernetes import network
from whippletree.control.kubernetes.decide import Owner
from whippletree.control.kubernetes.labels import selector
from whippletree.errors import ClusterError
from whippletree.kubernetes.client import JOBS, PODS, SECRETS, Cluster
from whippletree.kubernetes.objects import Named, Pod

log = logging.getLogger(__name__)

GONE_SECONDS = 60.0  # how long pods may take to go, before policies are left in place for them
LOOK_SECONDS = 0.2


async def clean(cluster: Cluster, owner: Owner) -> None:
    """Delete everything of that controller. Raises nothing: what could not be deleted is left to the next one of the run."""
    chosen = selector(owner)
    try:
        for kind in (JOBS, SECRETS):
            for found in (await cluster.list_all(kind, Named, chosen))[0]:
                await cluster.delete(kind, found.metadata.name, found.metadata.uid)
        until = time.monotonic() + GONE_SECONDS
        while pods := (await cluster.list_all(PODS, Pod, chosen))[0]:
            if all(pod.status.phase in ("Succeeded", "Failed") for pod in pods):
                break
            if time.monotonic() > until:
                log.warning("%d pods have not gone: the run's network policies are left in place", len(pods))
                return
            await asyncio.sleep(LOOK_SECONDS)
        await network.remove(cluster, owner)
    except ClusterError as error:
        log.error("not everything was deleted; the next controller of this run does it: %s", error)
