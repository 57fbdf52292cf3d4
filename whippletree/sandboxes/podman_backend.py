"""The podman backend: an init in a container of podman, on an overlay of our own; commands enter it as in the runc backend.

    keeper ──podman run──► conmon ──runc──► init ◄──pipe── keeper (its end is the end of the init)
       └── a mount namespace with the layers, and with podman's whole state in a tmpfs: gone with the last of these processes

podman's storage, its database, its locks and the state of its runtime are this sandbox's alone, so that no sandbox waits for
another, nothing of a user's podman is touched, and nothing needs to be removed afterwards but cgroups. podman itself runs
outside the sandbox's limits.

Invariants (tests/sandboxes/test_sandbox_podman.py): no capability and no new privilege; nothing but 127.0.0.1 in the network;
nothing of the host but /usr (or an image) and what the spec binds; a killed keeper leaves no container, conmon, mount or
network namespace; podman has its own time limit, after which it and all that it started are killed.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path

from whippletree.sandboxes import cgroups, checkpoint, kernel, machine
from whippletree.sandboxes.layered import WAIT, LayeredMachine
from whippletree.sandboxes.layers import INIT
from whippletree.sandboxes.wire import BoxRequest, Frozen

_HOME = Path("/run")  # of podman: a tmpfs in the keeper's mount namespace
_SETTINGS = _HOME / "containers.conf"
_LIFELINE = 3
_SAID = 2000
_CONTAINERS = """\
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
log_driver = "none"
netns = "none"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
hooks_dir = []
lock_type = "file"
"""
_REASON = "podman sandboxes cannot be checkpointed"


class PodmanMachine(LayeredMachine):
    """One sandbox of podman, seen from its keeper."""

    def __init__(self, request: BoxRequest, directories: tuple[str, ...], cgroup: str) -> None:
        super().__init__(request, directories, cgroup)
        self._podman = (request.podman, *_STORAGE, "--runtime", request.runc, "--volumepath", str(self.folder / "volumes"))

    def boot(self) -> list[int]:
        """Make the files, and have podman start the init; then that belongs to the sandbox's cgroups."""
        self.make_layers()
        self._make_home()
        cgroups.leave(self.cgroups)
        try:
            self._start()
        finally:
            cgroups.join(self.cgroups)
        self._found(int((self.folder / "pid").read_text(encoding="ascii")))
        cgroups.move(self.pid, self.cgroups)
        return self.listen()

    def busy(self) -> bool:
        """Running commands stand still with all else."""
        return False

    def snapshot(self, directory: Path) -> Frozen:
        """Files only: podman dumps no processes of a root file system that is not an image's."""
        return checkpoint.of_layers(self, directory, _REASON)

    def _make_home(self) -> None:
        """Cover what podman writes to on the host."""
        if self.folder.is_relative_to(_HOME):
            raise ValueError(f"sandbox.root is below {_HOME}, where podman keeps its state: give another directory")
        for path in (str(_HOME), "/dev/shm"):
            if os.path.isdir(path):  # noqa: PTH112
                kernel.mount("tmpfs", path, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=0755,size=32m")
        _SETTINGS.write_text(_CONTAINERS, encoding="ascii")

    def _start(self) -> None:
        """`podman run`, with the end of a pipe that the init waits for. Raises BootError."""
        words = (*self._podman, "run", *self._options(), str(self.layers.rootfs), INIT, "-c", f"{WAIT} <&{_LIFELINE}")
        theirs, self._lifeline = os.pipe()
        said = os.open(self.folder / "podman.log", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            actions = [
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, said, 1),
                (os.POSIX_SPAWN_DUP2, said, 2),
                (os.POSIX_SPAWN_DUP2, theirs, _LIFELINE),
            ]
            environment = {"PATH": machine.PATH, "HOME": str(_HOME), "CONTAINERS_CONF": str(_SETTINGS)}
            pid = os.posix_spawn(words[0], words, environment, file_actions=actions, setpgroup=0)
            if _code(pid, self._request.start_seconds):
                text = os.pread(said, 1 << 20, 0).decode(errors="replace").strip()
                raise machine.BootError(f"podman run: {text[-_SAID:]}")
        finally:
            os.close(theirs)
            os.close(said)

    def _options(self) -> Iterator[str]:
        yield from ("--detach", f"--preserve-fds={_LIFELINE - 2}", "--pidfile", str(self.folder / "pid"))
        yield from ("--cgroup-parent", self.cgroup, "--network", "none", "--no-hosts", "--hostname", "sandbox")
        yield from ("--user", "0:0", "--cap-drop", "all", "--security-opt", "no-new-privileges", "--security-opt", "mask=/sys")
        yield from ("--systemd", "false")
        for host, inside, writable in self.bindings():
            fields = ("type=bind", f"src={host}", f"dst={inside}", f"ro={str(not writable).lower()}")
            yield from ("--mount", ",".join(_quoted(field) for field in fields))
        yield "--rootfs"


_STORAGE = ("--root", f"{_HOME}/podman/root", "--runroot", f"{_HOME}/podman/run", "--storage-driver", "vfs")


def _quoted(field: str) -> str:
    """A field of comma-separated values."""
    return '"' + field.replace('"', '""') + '"' if any(character in field for character in ',"\n') else field


def _code(pid: int, seconds: float) -> int:
    """Exit code of a child, which is the leader of its group. Raises BootError when it takes longer; then that is killed."""
    watched = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(watched, select.POLLIN)
        in_time = bool(poll.poll(seconds * 1000))
        if not in_time:
            os.killpg(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        os.close(watched)
    if not in_time:
        raise machine.BootError(f"podman did not start it within {seconds:g} s: raise sandbox.podman_start_seconds")
    return code
