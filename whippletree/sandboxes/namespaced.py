"""What the backends with namespaces of their own share: entering, users, counting, killing.

The init of the PID namespace waits for the end of its input, whose other end only the keeper holds: when the keeper goes, the
init exits, and the kernel kills all the rest.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import time
import zlib
from collections.abc import Callable, Collection

from whippletree.sandboxes import accounts, cgroups, kernel, machine
from whippletree.sandboxes.hostroot import HOME
from whippletree.sandboxes.wire import BoxRequest

_FIRST_UID = 200_000
_UIDS = 100_000


class NamespacedMachine:
    """One sandbox in namespaces, seen from its keeper. Subclasses boot it and then call `_found`."""

    base = "/"

    def __init__(self, request: BoxRequest, directories: tuple[str, ...]) -> None:
        self._request = request
        self.cgroups = directories
        self._root = os.geteuid() == 0
        self.separate = not self._root  # who is not root must first be in its user namespace
        self.keeper = os.getpid()
        self._host = kernel.pid_namespace()
        uid = request.owner or (_own_uid(request) if self._root else 1000)
        self.owner = (uid, uid)
        self.pid = 0
        self.workdir = request.workdir
        base = {"PATH": machine.PATH, "HOME": HOME, "USER": "agent", "LANG": "C.UTF-8", "SHELL": "/bin/sh"}
        self.environment = base | request.environment
        self._pidfd = self._own = -1
        self._flags = 0
        self._held = (False, False)  # whether cgroups limit memory, and processes
        self._lifeline: socket.socket | int | None = None  # the other end of the init's input

    def _found(self, pid: int) -> None:
        """The init runs as `pid`. What its cgroups hold is looked up now: inside they cannot be seen."""
        self.pid = pid
        self._held = (cgroups.limits_memory(self.cgroups), cgroups.limits_processes(self.cgroups))
        self._pidfd, self._own = os.pidfd_open(pid), os.pidfd_open(self.keeper)
        self._flags = kernel.foreign_namespaces(pid)
        if not self.separate:
            self._flags &= ~kernel.CLONE_NEWPID

    def _let_go(self) -> None:
        if isinstance(self._lifeline, socket.socket):
            self._lifeline.close()
        elif self._lifeline is not None:
            os.close(self._lifeline)
        self._lifeline = None

    def fork(self, body: Callable[[], int]) -> int:
        """Run `body` in a child of the keeper that is, as root, in the PID namespace already."""
        if self.separate:
            return machine.fork(body)
        kernel.setns(self._pidfd, kernel.CLONE_NEWPID)  # of the children
        try:
            return machine.fork(body)
        finally:
            kernel.setns(self._own, kernel.CLONE_NEWPID)

    def listen(self) -> list[int]:
        """As root: bring `lo` up inside, and listen there for the request's ports."""
        kernel.setns(self._pidfd, kernel.CLONE_NEWNET)
        try:
            kernel.raise_loopback()
            return machine.listeners(self._request.ports)
        finally:
            kernel.setns(self._own, kernel.CLONE_NEWNET)

    def enter(self) -> None:
        """Join every other namespace at once; where `separate`, the next fork is inside. The init's input stays the keeper's
        alone."""
        self._let_go()
        if not self.separate and kernel.pid_namespace() == self._host:
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
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
        user = user or self._request.user
        own = ("",) if self._request.rootfs else ("", "agent")  # an image may have a user of that name
        if user in (*own, str(uid)):
            return accounts.Account("agent", uid, gid, (gid,), HOME)
        if not self._root:
            raise ValueError(
                f"it cannot run commands as {user!r}: made by an ordinary user, it is a user namespace with one user, agent"
            )
        return accounts.find(self.base, user)

    def become(self, account: accounts.Account) -> None:
        """Limits, then the user without capabilities (in a user namespace executing a program takes them)."""
        memory, processes = self._held
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

        code = self._inside(kill)
        if code:
            raise ValueError(f"the processes of the sandbox could not be killed (exit code {code})")

    def _inside(self, body: Callable[[], int]) -> int:
        """Once the calling process has entered: run `body` inside; its result."""
        return os.waitstatus_to_exitcode(os.waitpid(machine.fork(body), 0)[1]) if self.separate else body()

    def inside(self, body: Callable[[], int]) -> int:
        """Run `body` inside, with the keeper's privileges, to its end; its result."""

        def enter() -> int:
            self.enter()
            return self._inside(body)

        return os.waitstatus_to_exitcode(os.waitpid(self.fork(enter), 0)[1])

    def signal_all(self, number: int) -> None:
        """Send a signal to everything in the PID namespace but its init. Raises ValueError."""

        def send() -> int:
            if kernel.pid_namespace() == self._host:
                return 1  # never on the host
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, number)
            return 0

        if self.inside(send):
            raise ValueError("the processes of the sandbox could not be signalled")

    def stop(self) -> None:
        """Kill the init, and with it all inside; then what still serves clients, and what started it."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        self._let_go()
        machine.end_descendants()


def _own_uid(request: BoxRequest) -> int:
    """A number of its own for the sandbox's user."""
    return _FIRST_UID + zlib.crc32(f"{request.root}/{request.sandbox_id}".encode()) % _UIDS
