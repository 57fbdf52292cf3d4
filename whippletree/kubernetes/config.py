"""What settings of a cluster have in common: where it is, how long it is asked, and destinations in its network.

Invariants (tests/control/kubernetes/test_kubernetes_config.py): a rule without a destination and a port out of range are
refused.
"""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal, Protocol

import msgspec

from whippletree.configuration import Config

Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]


class EgressRule(Config):
    """One destination that pods may reach: an address range, or pods by their labels."""

    cidr: str = ""
    """Address range, for example "10.0.3.7/32"; "" where pods are named by labels."""
    namespace: dict[str, str] = {}
    """Labels of the destination's namespace; empty means the run's own."""
    pods: dict[str, str] = {}
    """Labels of the destination's pods; empty means all of that namespace."""
    ports: tuple[Port, ...] = ()
    """Ports; none means every port."""
    protocols: tuple[Literal["TCP", "UDP"], ...] = ("TCP",)
    """Protocols of these ports."""

    def __post_init__(self) -> None:
        """Exactly one kind of destination."""
        if bool(self.cidr) == bool(self.namespace or self.pods):
            raise ValueError("a rule names either a cidr, or pods by labels of namespace or pods")
        if self.cidr:
            ipaddress.ip_network(self.cidr)  # raises ValueError


CLUSTER_DNS = EgressRule(
    namespace={"kubernetes.io/metadata.name": "kube-system"},
    pods={"k8s-app": "kube-dns"},
    ports=(53,),
    protocols=("UDP", "TCP"),
)


class ClusterSettings(Protocol):
    """What the client of an API server needs to know; settings of Jobs and of sandboxes both have it. Times are in seconds."""

    @property
    def kubeconfig(self) -> str:
        """File with address and credentials; "": the service account of the pod that this process runs in."""
        ...

    @property
    def context(self) -> str:
        """Context of the kubeconfig; "": its current one."""
        ...

    @property
    def namespace(self) -> str:
        """Namespace of all objects."""
        ...

    @property
    def requests_at_once(self) -> int:
        """Requests at the same time, besides watches and commands."""
        ...

    @property
    def request_seconds(self) -> float:
        """Limit of one request."""
        ...

    @property
    def retry_seconds(self) -> float:
        """How long a request is tried again."""
        ...

    @property
    def stall_seconds(self) -> float:
        """Longest silence of a watch."""
        ...
