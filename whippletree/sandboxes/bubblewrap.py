"""The bubblewrap backend: own root, processes, IPC, host name and network; one way out, to the gateway.

As root the commands run under a user number of the sandbox's own; an ordinary user's sandbox is in a user namespace, and its
commands run as user 1000 there. In both, the init (a shell that waits for the end of its input) holds the PID namespace: when
the keeper goes, its input ends, it exits, and the kernel kills all the rest.

Invariants (tests/sandboxes/): nothing of the host's /home, /root, /var, /run or other directories is visible but what the spec
binds; no capability, no new privilege; nothing but 127.0.0.1 in the network; the init cannot be killed from inside.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec

from whippletree.sandboxes import accounts, cgroups, kernel, machine
from whippletree.sandboxes.wire import BoxRequest, receive_some

HOME = "/home/agent"
_INIT = "trap '' HUP INT QUIT TERM; echo ready; exec >/dev/null 2>&1; while read -r line; do :; done"
_MERGED = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = (
    *("alternatives", "ca-certificates", "crypto-policies", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "magic"),
    *("mime.types", "pki/ca-trust", "pki/tls/certs", "pki/tls/openssl.cnf", "profile.d", "protocols", "services", "shells"),
    *("ssl/certs", "ssl/openssl.cnf", "terminfo"),
)
_BOOT_SECONDS = 15.0
_FIRST_UID = 200_000
_UIDS = 100_000


class _Info(msgspec.Struct):
    """What bwrap writes to its --info-fd. Example: {"child-pid": 4711}"""

    child_pid: int = msgspec.field(name="child-pid")


class BubblewrapMachine:
    """One sandbox of bubblewrap, seen from its keeper."""

    separate = True
    base = "/"

    def __init__(self, request: BoxRequest, directories: tuple[str, ...]) -> None:
        self._request = request
        self.cgroups = directories
        self.disks: tuple[str, ...] = ("/tmp", "/logs", HOME, request.workdir)
        self._root = os.geteuid() == 0
        self._host = kernel.pid_namespace()
        uid = _FIRST_UID + zlib.crc32(f"{request.root}/{request.sandbox_id}".encode()) % _UIDS if self._root else 1000
        self.owner = (uid, uid)
        self.pid = 0
        self.workdir = request.workdir
        base = {"PATH": machine.PATH, "HOME": HOME, "USER": "agent", "LANG": "C.UTF-8", "SHELL": "/bin/sh"}
        self.environment = base | request.environment
        self._monitor = 0
        self._pidfd = -1
        self._flags = 0
        self._lifeline: socket.socket | None = None

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

        self._monitor = machine.fork(guarded)
        for end in (theirs, office):
            end.close()
        for descriptor in (say, tell):
            os.close(descriptor)
        self._lifeline = ours
        try:
            if not _ready(said):
                raise machine.BootError(f"bwrap: {_text(errors) or 'no answer'}")
            self.pid = msgspec.json.decode(os.read(told, 65536), type=_Info).child_pid
            self._pidfd = os.pidfd_open(self.pid)
            self._flags = kernel.foreign_namespaces(self.pid)
            listeners = receive_some(post)[1] if self._request.ports else []
        finally:
            post.close()
            for descriptor in (said, told, errors):
                os.close(descriptor)
        return listeners

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
        for path in _MERGED:
            if os.path.islink(path):  # noqa: PTH114
                yield from ("--symlink", str(Path(path).readlink()), path)
            else:
                yield from ("--ro-bind-try", path, path)
        yield from self._shadows()
        for name in _ETC:
            yield from _binding("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")
        for path, text in self._etc().items():
            yield from ("--perms", "0644", "--file", str(_memory(text)), path)
        yield from ("--proc", "/proc", "--dev", "/dev", "--dir", "/run", "--dir", "/var", "--symlink", "/tmp", "/var/tmp")
        size = ("--size", str(request.space_mb << 20)) if request.space_mb else ()
        for path, mode in (("/tmp", "1777"), ("/logs", "0777"), (HOME, "0777"), (request.workdir, "0777")):
            yield from (*size, "--perms", mode, "--tmpfs", path)
        for host, inside in request.read_only:
            yield from _binding("--ro-bind", host, inside)
        # bash reaps orphans while it waits for its input; another shell leaves them as zombies until the sandbox ends
        shell = "/usr/bin/bash" if os.path.exists("/usr/bin/bash") else "/bin/sh"  # noqa: PTH110
        yield from ("--clearenv", "--chdir", "/", shell, "-c", _INIT)

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

    def _etc(self) -> dict[str, str]:
        uid, gid = self.owner
        nobody = "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
        return {
            "/etc/passwd": f"root:x:0:0:root:/root:/bin/sh\nagent:x:{uid}:{gid}:agent:{HOME}:/bin/sh\n{nobody}",
            "/etc/group": f"root:x:0:\nagent:x:{gid}:\nnogroup:x:65534:\n",
            "/etc/hosts": "127.0.0.1 localhost sandbox\n",
            "/etc/hostname": "sandbox\n",
            "/etc/resolv.conf": "",
            "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
        }

    def enter(self) -> None:
        """Join every namespace at once; the next fork is inside. The init's input stays the keeper's alone."""
        if self._lifeline is not None:
            self._lifeline.close()
        machine.oom_score(machine.LIKE_ANY_OTHER)
        kernel.setns(self._pidfd, self._flags)

    def argument(self, text: str) -> str:
        """Paths inside are what they say."""
        return text

    def directory(self, text: str) -> str:
        """Paths inside are what they say."""
        return text

    def account(self, user: str) -> accounts.Account:
        """Any user of /etc/passwd or any number as root; in a user namespace there is but one."""
        uid, gid = self.owner
        if user in ("", "agent", str(uid)):
            return accounts.Account("agent", uid, gid, (gid,), HOME)
        if not self._root:
            raise ValueError(
                f"it cannot run commands as {user!r}: made by an ordinary user, it is a user namespace with one user, agent"
            )
        return accounts.find(self.base, user)

    def become(self, account: accounts.Account) -> None:
        """Limits, then the user without capabilities (in a user namespace executing a program takes them)."""
        memory, processes = cgroups.limits_memory(self.cgroups), cgroups.limits_processes(self.cgroups)
        machine.apply_limits(self._request, address_space=not memory, processes=not processes)
        machine.give_up_privileges(account if self._root else None)

    def count_processes(self, helpers: Collection[int]) -> int:
        """All but those whose parent is outside: the init, and what serves clients."""
        return sum(len(pids) for parent, pids in kernel.children_of().items() if parent != 0)

    def kill_all(self) -> None:
        """Everything in the PID namespace but its init, by one call that no fork can outrun; again until all have gone."""
        self.enter()

        def kill() -> int:
            if kernel.pid_namespace() == self._host:
                return 1  # never on the host
            deadline = time.monotonic() + machine.KILL_SECONDS
            try:
                while time.monotonic() < deadline:
                    os.kill(-1, signal.SIGKILL)
                    time.sleep(0.001)
            except ProcessLookupError:
                return 0  # all have gone, and were reaped
            return 1

        _, status = os.waitpid(machine.fork(kill), 0)
        if status:
            raise ValueError(f"the processes of the sandbox could not be killed (status {status})")

    def stop(self) -> None:
        """Kill the init, and with it all inside; then what still serves clients, and bwrap itself."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        if self._lifeline is not None:
            self._lifeline.close()
        machine.end_descendants()


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
