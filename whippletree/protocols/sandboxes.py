"""The machine of an attempt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from whippletree.types import Struct, Usage


class Limits(Struct):
    """Limits of one sandbox. 0 means none. `cpus`: cores' worth of time. `space_mb`: size of what can be written to, 0: that
    of the settings.

    Example: Limits(memory_mb=512, processes=64, open_files=1024, file_mb=64, cpus=1.5, space_mb=1024)
    """

    memory_mb: int = 512
    processes: int = 64
    open_files: int = 1024
    file_mb: int = 64
    cpus: float = 0.0
    space_mb: int = 0


class NetworkPolicy(Struct):
    """What a sandbox may reach: the gateway or not, and by the proxy each "host:port" of `allow`, the names of each
    "*.name:port", and with "*:port" every public address. An address that is not public must be listed itself.

    Example: NetworkPolicy(allow=("pypi.org:443", "files.pythonhosted.org:443"))
    """

    gateway: bool = True
    allow: tuple[str, ...] = ()


class NetworkRefusal(Struct):
    """Something that a sandbox tried to reach and may not. `time` in seconds since 1970; `address`: what the name stands for,
    where it was looked up.

    Example: NetworkRefusal(time=1764450000.0, host="github.com", port=443, reason="not on the allow-list")
    """

    time: float
    host: str
    port: int
    reason: str
    address: str = ""


class SandboxSpec(Struct):
    """What a sandbox is made of. `files` are copied in ((host path, path inside)), `read_only` are bound ((host, inside)).
    `gateway_port` on 127.0.0.1 inside leads to the gateway, `proxy_port` to what `network` allows; there is no other way out. 0
    means that there is no such port. `rootfs`: directory with a root file system, where a backend takes one; `user`: whose
    the commands are that name no user, and the files that are copied in ("": the sandbox's own user).

    Example: SandboxSpec(sandbox_id="s0-1", workdir="/app", files=(("/tasks/t/environment/data", "/app"),))
    """

    sandbox_id: str
    workdir: str = "/app"
    files: tuple[tuple[str, str], ...] = ()
    read_only: tuple[tuple[str, str], ...] = ()
    environment: dict[str, str] = {}
    limits: Limits = Limits()
    gateway_port: int = 8000
    proxy_port: int = 0
    network: NetworkPolicy = NetworkPolicy()
    rootfs: str = ""
    user: str = ""


class PodAddress(Struct):
    """Where a sandbox is that is a pod, for whoever may read the same kubeconfig; it holds no secret. `user` is the number of
    its container's user. Times are in seconds: of one request, between pings, for finding a command again whose connection was
    lost.

    Example: PodAddress(namespace="rollouts", pod="wt-box-s0-1b2c3d4e", uid="9f...", container="sandbox", kubeconfig="/etc/k")
    """

    namespace: str
    pod: str
    uid: str
    container: str
    kubeconfig: str = ""
    context: str = ""
    user: int = 0
    user_name: str = "root"
    request_seconds: float = 30.0
    ping_seconds: float = 10.0
    lost_seconds: float = 60.0


class SandboxHandle(Struct):
    """Enough to enter a running sandbox from another process on this machine (`sandboxes.attach`). `pod`: where it is, if it is
    not on this machine.

    Example: SandboxHandle(backend="bubblewrap", sandbox_id="s0-1", pid=4711, root="/run/wt/s0-1", workdir="/app")
    """

    backend: str
    sandbox_id: str
    pid: int
    root: str
    workdir: str
    environment: dict[str, str] = {}
    cgroups: tuple[str, ...] = ()
    limits: Limits = Limits()
    pod: PodAddress | None = None


class ExecResult(Struct):
    """A command's end. `output` is stdout and stderr together; `timed_out`: it was killed at its limit; `left_running`: a
    process that it left in the background still held its output; it lives on, and what it writes now is dropped.

    Example: ExecResult(exit_code=0, output="ok\\n", seconds=0.01)
    """

    exit_code: int
    output: str
    seconds: float
    timed_out: bool = False
    truncated: bool = False
    left_running: bool = False


class Fetched(Struct):
    """What `get` copied to the host. `skipped` (at most 100): symbolic links, devices, pipes and sockets, by path.

    Example: Fetched(files=2, bytes=1024, skipped=("artifacts/latest",))
    """

    files: int
    bytes: int
    skipped: tuple[str, ...] = ()


class Snapshot(Struct):
    """A sandbox at one moment, in a directory of the host. `reason`: why it holds no processes. Sizes in bytes on disk;
    `frozen_seconds`: how long the sandbox stood still for it. `owner` is the number of the sandbox's own user. `environment`
    and `limits`, `rootfs` and `user`: of its spec; what is restored may be given others.

    Example: Snapshot(directory="/runs/a/snapshots/s0-1", backend="runc", holds="processes+files", sandbox_id="s0-1",
                      owner=200017, workdir="/app", files_bytes=81920, processes_bytes=10485760, frozen_seconds=0.41,
                      time=1764450000.0)
    """

    directory: str
    backend: str
    holds: Literal["processes+files", "files"]
    sandbox_id: str
    owner: int
    workdir: str
    files_bytes: int
    processes_bytes: int
    frozen_seconds: float
    time: float
    reason: str = ""
    rootfs: str = ""
    user: str = ""
    read_only: tuple[tuple[str, str], ...] = ()
    environment: dict[str, str] = {}
    limits: Limits = Limits()


@runtime_checkable
class Sandbox(Protocol):
    """The machine of one attempt. Raises SandboxError. `stop` never raises and leaves nothing behind."""

    isolation: str  # one sentence for people: what this backend does and does not isolate
    handle: SandboxHandle | None  # set by start
    gateway: tuple[str, int]  # (host, port) of the gateway as its commands reach it, once it has started

    @property
    def proxy_environment(self) -> dict[str, str]:
        """Variables that lead commands to the proxy; {} while it leads nowhere, and where there is none."""
        ...

    @property
    def refusals(self) -> Sequence[NetworkRefusal]:
        """What it tried to reach and may not: the latest, oldest first."""
        ...

    @property
    def refused(self) -> int:
        """How often it tried that, since it started."""
        ...

    async def start(self) -> SandboxHandle:
        """Boot it. Raises SandboxError with what the backend said."""
        ...

    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        environment: Mapping[str, str] | None = None,
        cwd: str = "",
        output_limit: int = 1_000_000,
        user: str = "",
        on_output: Callable[[bytes], None] | None = None,
    ) -> ExecResult:
        """Run a command to its end; at `timeout` seconds it and its children are killed. `user`: as whom, a name of its
        /etc/passwd or a number ("" for the sandbox's own user). `on_output` gets the output as it comes, in pieces, up to
        `output_limit` bytes. Raises SandboxError where the backend cannot."""
        ...

    async def put(self, source: Path, target: str) -> None:
        """Copy a host file or directory to a path that does not exist yet inside."""
        ...

    async def read(self, path: str, limit: int = 1_000_000) -> bytes | None:
        """A regular file's bytes (symbolic links are not followed); None when it does not exist."""
        ...

    async def get(self, source: str, target: Path, limit: int = 100_000_000) -> Fetched:
        """Copy a file or directory out to a host path that does not exist yet. Links are not followed, and not copied.
        Raises SandboxError when there is more than `limit` bytes; nothing is left of a copy that failed."""
        ...

    async def usage(self) -> Usage:
        """What it uses, and has used."""
        ...

    async def snapshot(self, directory: Path) -> Snapshot:
        """Write its files, and its processes where that works, into a directory that does not exist yet. It goes on."""
        ...

    async def set_network(self, policy: NetworkPolicy) -> None:
        """Change what may be reached while it runs; what is open and no longer allowed is cut."""
        ...

    async def kill_all(self) -> None:
        """End every process that was started inside; the sandbox and its files stay."""
        ...

    async def stop(self) -> None:
        """End everything in it and remove it."""
        ...
