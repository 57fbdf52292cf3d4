"""What a keeper needs of a backend, and what the backends share: limits and the change of user before a command."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NoReturn, Protocol

from whippletree.sandboxes import kernel
from whippletree.sandboxes.accounts import Account
from whippletree.sandboxes.wire import BoxRequest, Frozen, close

KILL_SECONDS = 5.0
_LOOK_AGAIN_SECONDS = 0.05
KEPT_FROM_OOM, LIKE_ANY_OTHER = -1000, 0  # oom scores of a keeper, and of what it starts
COPY_SECONDS = 300.0  # for copies of whole layers
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class BootError(Exception):
    """A backend did not start; the text is what it said."""


class Machine(Protocol):
    """One sandbox as its keeper sees it. Errors are OSError, ValueError or BootError."""

    keeper: int  # its keeper, in the host's numbering
    pid: int  # a process of the sandbox, in the host's numbering
    base: str  # where paths inside start, once a child has entered
    owner: tuple[int, int]  # user and group of its files, in the sandbox's numbering
    workdir: str
    environment: dict[str, str]
    separate: bool  # True: what enters must fork once more to be inside
    cgroups: tuple[str, ...]  # directories of its cgroups
    disks: tuple[str, ...]  # its private file systems, as paths inside; () where it is one folder

    def boot(self) -> list[int]:
        """Start it. Listeners inside for the request's ports, in their order; none where the network is the host's."""
        ...

    def adopt(self) -> None:
        """Give the writable directories of a fresh sandbox to its user. Called in the keeper."""
        ...

    def fork(self, body: Callable[[], int]) -> int:
        """Run `body` in a child of the keeper that can enter; its pid. Called in the keeper. Raises OSError."""
        ...

    def enter(self) -> None:
        """Move the calling process, a child made by `fork`, into the sandbox."""
        ...

    def argument(self, text: str) -> str:
        """An argument of a command as the command must see it."""
        ...

    def directory(self, text: str) -> str:
        """A directory inside, as the command must see it."""
        ...

    def account(self, user: str) -> Account:
        """The user of that name or number; "" is the sandbox's own. Called inside. Raises ValueError."""
        ...

    def become(self, account: Account) -> None:
        """Make the calling process that user's, without further privileges and with the limits of the sandbox."""
        ...

    def count_processes(self, helpers: Collection[int]) -> int:
        """How many processes run that commands started; `helpers` serve clients. Called inside."""
        ...

    def kill_all(self) -> None:
        """End every process inside but the init. Called in a child of the keeper."""
        ...

    def busy(self) -> bool:
        """Whether commands run that a snapshot must wait for. Called in the keeper."""
        ...

    def snapshot(self, directory: Path) -> Frozen:
        """Write down what it holds. Called in the keeper. Raises ValueError, OSError, BootError."""
        ...

    def stop(self) -> None:
        """End every process of the sandbox. Called in the keeper."""
        ...


def apply_limits(request: BoxRequest, *, address_space: bool, processes: bool) -> None:
    """Lower the calling process's limits to those of the request, never above the hard limit it has."""
    wanted = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: request.open_files or None,
        resource.RLIMIT_FSIZE: request.file_mb << 20 or None,
        resource.RLIMIT_AS: (request.memory_mb << 20 or None) if address_space else None,
        resource.RLIMIT_NPROC: (request.processes or None) if processes else None,
    }
    for kind, limit in wanted.items():
        if limit is None:
            continue
        _, hard = resource.getrlimit(kind)
        least = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (least, least))


def give_up_privileges(account: Account | None) -> None:
    """Become that user (None: stay who it is) and gain nothing by executing a program. Only root keeps capabilities: those that
    an administrator of the sandbox's own files and users needs."""
    kept = kernel.ROOT_CAPABILITIES if account is not None and account.uid == 0 else 0
    if os.geteuid() == 0 or account is None:
        with contextlib.suppress(PermissionError):  # without CAP_SETPCAP there is nothing to take
            kernel.drop_capability_bounds(kept)
    if account is not None:
        os.setgroups(account.groups)
        os.setresgid(account.gid, account.gid, account.gid)
        os.setresuid(account.uid, account.uid, account.uid)
    if kept:
        kernel.keep_capabilities(kept)
    kernel.forbid_new_privileges()


def listeners(ports: tuple[int, ...]) -> list[int]:
    """Sockets that listen on these ports of 127.0.0.1 in the caller's network namespace. Raises OSError."""
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(socket.socket()) for _ in ports]
        for listener, port in zip(made, ports, strict=True):
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
            listener.listen(128)
        return [listener.detach() for listener in made]


def send_listeners(office: socket.socket, ports: tuple[int, ...]) -> None:
    """Send such listeners away."""
    made = listeners(ports)
    socket.send_fds(office, [b"l"], made)
    close(made)


def run(words: tuple[str, ...], *, seconds: float, stdin: int | None = None, path: str = PATH) -> None:
    """Run a program of the host with nothing but a PATH. Raises BootError when it fails or takes longer."""
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": path},
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BootError(f"{words[0]} did not end within {seconds:g} s") from error
    except OSError as error:
        raise BootError(f"{words[0]} cannot be run: {error.strerror}") from error
    if done.returncode:
        raise BootError(f"{words[0]} ended with {done.returncode}")


def oom_score(score: int) -> None:
    """How gladly the kernel ends the calling process when a memory limit is reached; lowering it takes privileges."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:  # noqa: PTH123
        file.write(str(score))


def end_descendants(seconds: float = KILL_SECONDS) -> None:
    """Kill and reap all descendants of the caller, their reaper: its children, and then those that become its children. A PID
    namespace ends only once the keeper has reaped those of its processes that are the keeper's children. Raises ValueError when
    one is still there after `seconds`."""
    deadline = time.monotonic() + seconds
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD,))  # so that none comes between a look and the wait
    try:
        while True:
            for pid in kernel.children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            if (left := deadline - time.monotonic()) <= 0:
                raise ValueError("there are processes that could not be killed")
            signal.sigtimedwait((signal.SIGCHLD,), min(left, _LOOK_AGAIN_SECONDS))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def fork(body: Callable[[], int]) -> int:
    """Run `body` in a child that ends with its result; the child's pid. The child never returns."""
    pid = os.fork()
    if pid == 0:
        _end_with(body)
    return pid


def _end_with(body: Callable[[], int]) -> NoReturn:
    code = 70  # EX_SOFTWARE: the body raised
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        code = body()
    finally:
        os._exit(code)
