"""What a controller process is told, whichever way it launches attempts."""

from __future__ import annotations

from whippletree.configuration import Config
from whippletree.control.config import ControlConfig, HarnessBinding
from whippletree.sandboxes.config import SandboxConfig


class ControllerSpec(Config):
    """Everything that a controller process needs to know."""

    directory: str
    """The run directory: attempts' output, hosts' logs and the controller's lock go there."""
    store: str
    """Directory of the run's store."""
    secret: str
    """File with the run's signing secret, from which the attempts' keys and the control key are derived."""
    gateway_url: str
    """Where the gateway listens, for example http://127.0.0.1:8100."""
    gateway_ports: tuple[int, ...] = ()
    """The own ports of the gateway's workers, where it has several."""
    model: str = "policy"
    """The model name that harnesses are told."""
    worker: str = "local"
    """Name of this controller in the store; a controller takes over what an earlier one of its name left."""
    ready_file: str = ""
    """Written (JSON) once rollouts are being taken; "" for none."""
    harnesses: tuple[HarnessBinding, ...] = ()
    """Which adapter runs what rollouts name, with its settings per source."""
    sandbox: SandboxConfig = SandboxConfig()
    """The attempts' sandboxes."""
    control: ControlConfig = ControlConfig()
    """Concurrency, launch mode and limits."""
