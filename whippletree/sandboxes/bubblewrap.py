"""The bubblewrap backend: own root, processes, IPC, host name and network; one way out, to the gateway.

As root the commands run under a user number of the sandbox's own; an ordinary user's sandbox is in a user namespace, and its
commands run as user 1000 there.

Invariants (tests/sandboxes/): nothing of the host's /home, /root, /var, /run or other directories is visible but what the spec
binds; no capability, no new privilege; nothing but 127.0.0.1 in the network; the init cannot be killed from inside.
"""

from __future__ import annotations

import contextlib
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


_INFO = msgspec.json.Decoder(_Info)
Streams = tuple[int, int, int, int]  # input, output, errors, and where bwrap says which process it started


class BubblewrapMachine(NamespacedMachine):
    """One sandbox of bubblewrap, seen from its keeper."""

    def __init__(self, request: BoxRequest, directories: tuple[str, ...]) -> None:
        super().__init__(request, directories)
        self.disks: tuple[str, ...] = ("/tmp", "/logs", HOME, request.workdir)

    def boot(self) -> list[int]:
        """Start bwrap, wait until the init inside says that it runs, and listen inside for the request's ports."""
        ours, theirs = socket.socketpair()
        post, office = socket.socketpair()
        said, say = os.pipe()
        told, tell = os.pipe()
        errors = os.memfd_create("bwrap-errors")
        os.set_inheritable(tell, True)
        streams = (theirs.fileno(), say, errors, tell)
        try:
            if self._root:
                self._spawn(streams)
            else:
                machine.fork(lambda: self._become_bwrap(streams, office))
        finally:
            for end in (theirs, office):
                end.close()
            for descriptor in (say, tell):
                os.close(descriptor)
        self._lifeline = ours
        try:
            if not _ready(said):
                raise machine.BootError(f"bwrap: {_text(errors) or 'no answer'}")
            self._found(_INFO.decode(os.read(told, 65536)).child_pid)
            listeners = self._listen(post)
        finally:
            post.close()
            for descriptor in (said, told, errors):
                os.close(descriptor)
        if self._request.restored:
            checkpoint.unpack(self, Path(self._request.restored))
        return listeners

    def _spawn(self, streams: Streams) -> None:
        """As root: bwrap makes the network namespace too, and starts without a copy of the keeper."""
        with contextlib.ExitStack() as stack:
            words = list(self._arguments(streams[3], stack))
            actions = [(os.POSIX_SPAWN_DUP2, descriptor, at) for at, descriptor in enumerate(streams[:3])]
            os.posix_spawn(words[0], words, {"PATH": machine.PATH}, file_actions=actions)

    def _become_bwrap(self, streams: Streams, office: socket.socket) -> int:
        """As an ordinary user, in bwrap's process to be: the network namespace is made first, with the listeners inside it,
        because only a process of its user namespace can enter it."""
        try:
            uid, gid = os.geteuid(), os.getegid()
            kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNET)
            kernel.map_to_root(uid, gid)
            kernel.raise_loopback()
            if self._request.ports:
                machine.send_listeners(office, self._request.ports)
            with contextlib.ExitStack() as stack:
                words = list(self._arguments(streams[3], stack))
                for at, descriptor in enumerate(streams[:3]):
                    os.dup2(descriptor, at)
                os.execv(words[0], words)
        except (OSError, machine.BootError) as error:
            os.write(streams[2], str(error).encode())
            return 1

    def _listen(self, post: socket.socket) -> list[int]:
        """Listeners inside for the request's ports."""
        if self._root:
            return self.listen()
        return receive_some(post)[1] if self._request.ports else []

    def adopt(self) -> None:
        """As root: nothing but the init runs inside yet, and it has no links at these paths."""
        if self._root:
            for path in ("/logs", HOME, self._request.workdir):
                os.chown(f"/proc/{self.pid}/root{path}", *self.owner)

    def busy(self) -> bool:
        """Running commands stand still with all else."""
        return False

    def snapshot(self, directory: Path) -> Frozen:
        """Files only: its terminal device is bound from outside, which criu does not restore."""
        return checkpoint.of_tmpfs(self, self.disks, directory)

    def _arguments(self, info: int, stack: contextlib.ExitStack) -> Iterator[str]:
        """Words of bwrap. The descriptors that they name are open as long as the stack."""
        request = self._request
        yield from (request.bwrap, "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try", "--as-pid-1")
        yield from ("--new-session", "--cap-drop", "ALL", "--hostname", "sandbox", "--info-fd", str(info))
        yield from ("--unshare-net",) if self._root else ("--unshare-user", "--uid", "1000", "--gid", "1000")
        yield from ("--ro-bind", "/usr", "/usr")
        for path, target in hostroot.links():
            yield from ("--symlink", target, path)
        for path in hostroot.MERGED:
            if not os.path.islink(path):  # noqa: PTH114
                yield from ("--ro-bind-try", path, path)
        yield from self._shadows()
        for path in hostroot.etc_directories():
            yield from _binding("--ro-bind", path, path)
        own = hostroot.accounts(self.owner) | hostroot.names() | hostroot.lookups()
        for path, content in (hostroot.etc_files() | {path: text.encode() for path, text in own.items()}).items():
            yield from _above(path)
            yield from ("--perms", "0644", "--file", str(_memory(content, stack)), path)
        yield from ("--proc", "/proc", "--dev", "/dev", "--dir", "/run", "--dir", "/var", "--symlink", "/tmp", "/var/tmp")
        size = ("--size", str(request.space_mb << 20)) if request.space_mb else ()
        for path, mode in (("/tmp", "1777"), ("/logs", "0755"), (HOME, "0755"), (request.workdir, "0755")):
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
    yield from _above(inside)
    yield from (how, host, inside)


def _above(inside: str) -> Iterator[str]:
    for above in reversed(Path(inside).parents):
        if str(above) != "/" and not above.is_relative_to("/usr"):
            yield from ("--perms", "0755", "--dir", str(above))


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


def _memory(content: bytes, stack: contextlib.ExitStack) -> int:
    descriptor = os.memfd_create("etc", 0)
    stack.callback(os.close, descriptor)
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
