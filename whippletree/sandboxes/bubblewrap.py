"""The bubblewrap backend: own root, processes, IPC, host name and network; one way out, to the gateway.

As root the commands run under a user number of the sandbox's own; an ordinary user's sandbox is in a user namespace, and its
commands run as user 1000 there.

Invariants (tests/sandboxes/): nothing of the host's /home, /root, /var, /run or other directories is visible but what the spec
binds; no capability, no new privilege; nothing but 127.0.0.1 in the network; the init cannot be killed from inside.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from whippletree.sandboxes import checkpoint, hostroot, kernel, machine
from whippletree.sandboxes.hostroot import HOME
from whippletree.sandboxes.namespaced import NamespacedMachine
from whippletree.sandboxes.wire import BoxRequest, Frozen, receive_some

_INIT = "trap '' HUP INT QUIT TERM; echo ready; exec >/dev/null 2>&1; while read -r line; do :; done"
_BOOT_SECONDS = 15.0


class _Info(msgspec.Struct):
    """What bwrap writes to its --info-fd. Example: {"child-pid": 4711}"""

    child_pid: int = msgspec.field(name="child-pid")


class BubblewrapMachine(NamespacedMachine):
    """One sandbox of bubblewrap, seen from its keeper."""

    def __init__(self, request: BoxRequest, directories: tuple[str, ...]) -> None:
        super().__init__(request, directories)
        self.disks: tuple[str, ...] = ("/tmp", "/logs", HOME, request.workdir)

    def boot(self) -> list[int]:
        """Start bwrap and wait until the init inside says that it runs; then give the writable directories to the agent."""
        ours, theirs = socket.socketpair()
        post, office = socket.socketpair()
        said, say = os.pipe()
        told, tell = os.pipe()
        errors = os.memfd_create("bwrap-errors")

        def start() -> int:
            self._prepare(office)
            os.dup2(theirs.fileno(), 0)
            os.dup2(say, 1)
            os.dup2(errors, 2)
            os.set_inheritable(tell, True)
            os.execv(self._request.bwrap, list(self._arguments(tell)))

        def guarded() -> int:
            try:
                return start()
            except (OSError, machine.BootError) as error:
                os.write(errors, str(error).encode())
                return 1

        machine.fork(guarded)
        for end in (theirs, office):
            end.close()
        for descriptor in (say, tell):
            os.close(descriptor)
        self._lifeline = ours
        try:
            if not _ready(said):
                raise machine.BootError(f"bwrap: {_text(errors) or 'no answer'}")
            self._found(msgspec.json.decode(os.read(told, 65536), type=_Info).child_pid)
            listeners = receive_some(post)[1] if self._request.ports else []
        finally:
            post.close()
            for descriptor in (said, told, errors):
                os.close(descriptor)
        if self._request.restored:
            checkpoint.unpack(self, Path(self._request.restored))
        return listeners

    def busy(self) -> bool:
        """Running commands stand still with all else."""
        return False

    def snapshot(self, directory: Path) -> Frozen:
        """Files only: its terminal device is bound from outside, which criu does not restore."""
        return checkpoint.of_tmpfs(self, self.disks, directory)

    def _prepare(self, office: socket.socket) -> None:
        """In bwrap's process to be: the network namespace and, inside it, the listeners."""
        uid, gid = os.geteuid(), os.getegid()
        machine.oom_score(machine.LIKE_ANY_OTHER)
        kernel.unshare(kernel.CLONE_NEWNET if self._root else kernel.CLONE_NEWUSER | kernel.CLONE_NEWNET)
        if not self._root:
            kernel.map_to_root(uid, gid)
        kernel.raise_loopback()
        if self._request.ports:
            machine.send_listeners(office, self._request.ports)

    def _arguments(self, info: int) -> Iterator[str]:
        request = self._request
        yield from (request.bwrap, "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try", "--as-pid-1")
        yield from ("--new-session", "--cap-drop", "ALL", "--hostname", "sandbox", "--info-fd", str(info))
        if not self._root:
            yield from ("--unshare-user", "--uid", "1000", "--gid", "1000")
        yield from ("--ro-bind", "/usr", "/usr")
        for path, target in hostroot.links():
            yield from ("--symlink", target, path)
        for path in hostroot.MERGED:
            if not os.path.islink(path):  # noqa: PTH114
                yield from ("--ro-bind-try", path, path)
        yield from self._shadows()
        for name in hostroot.ETC:
            yield from _binding("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")
        for path, text in (hostroot.accounts(self.owner) | hostroot.names() | hostroot.lookups()).items():
            yield from ("--perms", "0644", "--file", str(_memory(text)), path)
        yield from ("--proc", "/proc", "--dev", "/dev", "--dir", "/run", "--dir", "/var", "--symlink", "/tmp", "/var/tmp")
        size = ("--size", str(request.space_mb << 20)) if request.space_mb else ()
        for path, mode in (("/tmp", "1777"), ("/logs", "0777"), (HOME, "0777"), (request.workdir, "0777")):
            yield from (*size, "--perms", mode, "--tmpfs", path)
        for host, inside in request.read_only:
            yield from _binding("--ro-bind", host, inside)
        yield from ("--clearenv", "--chdir", "/", str(hostroot.shell()), "-c", _INIT)

    def _shadows(self) -> Iterator[str]:
        """Where files of the spec go below /usr, which is the host's: a private directory, with links to what it hides."""
        wanted = set()
        for host, inside in self._request.files:
            directory = Path(inside) if Path(host).is_dir() else Path(inside).parent
            if directory.is_relative_to("/usr"):
                wanted.add(next(above for above in (directory, *directory.parents) if above.is_dir()))
        for directory in sorted(wanted):
            if directory.parents[0] in wanted:
                raise machine.BootError(f"files cannot go to both {directory.parents[0]} and {directory}")
            hidden = f"/run/host{directory}"
            yield from _binding("--ro-bind", str(directory), hidden)
            yield from ("--perms", "0755", "--tmpfs", str(directory))
            for entry in sorted(directory.iterdir()):
                yield from ("--symlink", f"{hidden}/{entry.name}", str(entry))


def _binding(how: str, host: str, inside: str) -> Iterator[str]:
    """A binding, with the directories above it, which bwrap would make for its own user only."""
    for above in reversed(Path(inside).parents):
        if str(above) != "/" and not above.is_relative_to("/usr"):
            yield from ("--perms", "0755", "--dir", str(above))
    yield from (how, host, inside)


def _ready(said: int) -> bool:
    deadline = time.monotonic() + _BOOT_SECONDS
    poll = select.poll()
    poll.register(said, select.POLLIN)
    text = b""
    while (left := deadline - time.monotonic()) > 0 and poll.poll(left * 1000):
        part = os.read(said, 64)
        text += part
        if text == b"ready\n" or not part:
            return bool(part)
    return False


def _text(descriptor: int) -> str:
    os.lseek(descriptor, 0, os.SEEK_SET)
    return os.read(descriptor, 4000).decode(errors="replace").strip()


def _memory(text: str) -> int:
    descriptor = os.memfd_create("etc", 0)
    os.write(descriptor, text.encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
