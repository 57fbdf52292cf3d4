"""Destinations as network policies name them.

Invariants (tests/control/kubernetes/test_kubernetes_network.py): a rule without ports opens every port of its destination.
"""

from __future__ import annotations

from whippletree.kubernetes.config import EgressRule
from whippletree.kubernetes.objects import Manifest


def egress(rule: EgressRule) -> Manifest:
    """One entry of a network policy's `egress`."""
    peer: Manifest
    if rule.cidr:
        peer = {"ipBlock": {"cidr": rule.cidr}}
    else:
        peer = {"podSelector": {"matchLabels": rule.pods}}
        if rule.namespace:
            peer["namespaceSelector"] = {"matchLabels": rule.namespace}
    made: Manifest = {"to": [peer]}
    if rule.ports:
        made["ports"] = [{"protocol": protocol, "port": port} for port in rule.ports for protocol in rule.protocols]
    return made
