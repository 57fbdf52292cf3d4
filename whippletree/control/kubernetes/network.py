"""The run's network policies: pods reach the gateway and name servers, and during set-up a list of their own.

Policies add up: the first one selects every pod of the run and closes everything else, in both directions; the second one
opens the set-up list for pods that carry the label of that phase.
Invariants (tests/control/kubernetes/test_kubernetes_network.py): no policy selects a pod of another run; a setting that changed
is taken over by the next start, also against a writer at the same time (Conflict); what was created is removed.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from whippletree.control.kubernetes.config import PodNetworkConfig
from whippletree.control.kubernetes.decide import Owner
from whippletree.control.kubernetes.labels import PHASE, owner_labels, owner_of
from whippletree.errors import ClusterError, ConfigurationError
from whippletree.kubernetes.client import POLICIES, Cluster
from whippletree.kubernetes.config import EgressRule
from whippletree.kubernetes.network import egress
from whippletree.kubernetes.objects import Manifest, Named

TRIES = 5  # replacing against another writer


def policies(config: PodNetworkConfig, owner: Owner, gateway_url: str) -> list[Manifest]:
    """The run's policies; none when they are switched off. Raises ConfigurationError when the gateway cannot be told."""
    if not config.enabled:
        return []
    always = [*(config.gateway or [_gateway(gateway_url)]), *config.dns]
    made = [_policy("agent", owner, {}, always, closes=True)]
    if config.setup:
        made.append(_policy("setup", owner, {PHASE: "setup"}, config.setup, closes=False))
    return made


def _gateway(url: str) -> EgressRule:
    parts = urlsplit(url)
    try:
        address = ipaddress.ip_address(parts.hostname or "")
    except ValueError as error:
        raise ConfigurationError(
            f"network policies know addresses and labels, and {url} names neither",
            "set control.kubernetes.network.gateway to the gateway's pods or address range",
        ) from error
    return EgressRule(cidr=f"{address}/{address.max_prefixlen}", ports=(parts.port or 80,))


def _policy(phase: str, owner: Owner, more: dict[str, str], rules: Sequence[EgressRule], *, closes: bool) -> Manifest:
    spec: Manifest = {
        "podSelector": {"matchLabels": {**owner_labels(owner), **more}},
        "policyTypes": ["Ingress", "Egress"] if closes else ["Egress"],
        "egress": [egress(rule) for rule in rules],
    }
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": policy_name(owner, phase), "labels": owner_labels(owner)},
        "spec": spec,
    }


def policy_name(owner: Owner, phase: str) -> str:
    """One name per run, controller and phase."""
    return f"wt-{owner.run}-{owner.controller.lower().replace('_', '-').replace('.', '-')}-{phase}"


async def apply(cluster: Cluster, manifests: Sequence[Manifest]) -> None:
    """Create them, or bring those that are there to what they should be. Raises ClusterError."""
    for manifest in manifests:
        try:
            await cluster.create(POLICIES, manifest)
        except ClusterError as error:
            if error.reason != "AlreadyExists":
                raise
            await _take_over(cluster, manifest)


async def _take_over(cluster: Cluster, manifest: Manifest) -> None:
    name = manifest["metadata"]["name"]
    for last in (False,) * (TRIES - 1) + (True,):
        found = await cluster.read(POLICIES, name, Named)
        if owner_of(found.metadata.labels or {}) != owner_of(manifest["metadata"]["labels"]):
            raise ConfigurationError(f"network policy {name} is somebody else's", "remove it, or use another namespace")
        version = {"resourceVersion": found.metadata.resource_version}
        try:
            await cluster.replace(POLICIES, name, {**manifest, "metadata": {**manifest["metadata"], **version}})
        except ClusterError as error:
            if error.reason != "Conflict" or last:
                raise
        else:
            return


async def remove(cluster: Cluster, owner: Owner) -> None:
    """Delete the owner's policies, whatever the settings say now."""
    for phase in ("setup", "agent"):
        await cluster.delete(POLICIES, policy_name(owner, phase))
