"""Settings of attempts that run as Kubernetes Jobs.

Invariants (tests/control/kubernetes/test_kubernetes_config.py): every default is valid; a rule without a destination, a port
out of range and a limit that is not positive are refused.
"""

from __future__ import annotations

from typing import Literal

from whippletree.configuration import Config, Count, Seconds
from whippletree.kubernetes.config import CLUSTER_DNS, EgressRule


class PodNetworkConfig(Config):
    """What the run's pods may reach. The cluster's network plug-in has to enforce network policies."""

    enabled: bool = True
    """Create the run's network policies; false leaves pods as open as the cluster makes them."""
    gateway: tuple[EgressRule, ...] = ()
    """How pods reach the gateway; may be left out when the gateway's URL for pods names an IP address."""
    dns: tuple[EgressRule, ...] = (CLUSTER_DNS,)
    """The cluster's name servers; an empty list closes DNS, too."""
    setup: tuple[EgressRule, ...] = ()
    """What pods may reach besides during the set-up phase, that is until `setup_container` has ended."""


class KubernetesConfig(Config):
    """Attempts as Jobs of a Kubernetes cluster; used with launch = "kubernetes"."""

    template: str = ""
    """File with the Job, as YAML with Jinja expressions; needed."""
    kubeconfig: str = ""
    """File with the cluster's address and credentials; "" means the service account of the pod that the controller runs in."""
    context: str = ""
    """Context of the kubeconfig; "" means its current one."""
    namespace: str = "default"
    """Namespace of the Jobs."""
    image: str = ""
    """What the template knows as `image`; "" means the image that the task's environment begins from."""
    gateway_url: str = ""
    """Root of the gateway as pods reach it, for example "http://gateway.training.svc:8100"; "" means the run's own."""
    jobs: Count = 64
    """Jobs under way at the same time; with it, `concurrency` is not used."""
    requests_at_once: Count = 16
    """Requests to the API server at the same time, besides the two watches."""
    pending_seconds: Seconds = 900.0
    """How long a Job may wait for a machine and its images until its first container starts."""
    running_seconds: Seconds = 3600.0
    """How long a Job's pod may run, from the start of its first container."""
    setup_container: str = ""
    """Init container whose end closes the set-up phase of the network; "" means that there is no such phase."""
    result_container: str = ""
    """Container whose termination message is the verifier's result; "" means the pod's only one."""
    finished_ttl_seconds: Count = 3600
    """The cluster removes a Job this long after its end, should the controller not have done so."""
    log_lines: Count = 2000
    """Lines kept of each container's output, counted from its end."""
    log_kb: Count = 256
    """Kilobytes kept of each container's output."""
    poll_seconds: Seconds = 0.5
    """Longest pause between two looks for queuing rollouts."""
    resync_seconds: Seconds = 60.0
    """Everything is listed again after this long, whatever the watches said."""
    stall_seconds: Seconds = 90.0
    """A watch that says nothing for this long is opened anew."""
    request_seconds: Seconds = 30.0
    """Limit of one request to the API server."""
    retry_seconds: Seconds = 120.0
    """How long a request is tried again while the API server is busy or does not answer."""
    on_stop: Literal["remove", "leave"] = "remove"
    """At the end of the controller: "remove" puts running attempts back into the queue and deletes the Jobs and policies;
    "leave" lets them go on for the next controller of this run to adopt."""
    network: PodNetworkConfig = PodNetworkConfig()
    """What the pods may reach."""
