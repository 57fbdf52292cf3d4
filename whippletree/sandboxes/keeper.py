"""The keeper: one small process per sandbox, which makes it, serves its clients and removes it.

It holds a lock on the sandbox's folder while it lives. It ends when it is told to, or when its controller goes (the lifeline
closes); in both cases it first kills every process of the sandbox, then removes its cgroups and its folder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import shutil
import signal
import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from whippletree.sandboxes import cgroups, checkpoint, files, kernel, machine, runner, wire
from whippletree.sandboxes.accounts import Account
from whippletree.sandboxes.bubblewrap import BubblewrapMachine
from whippletree.sandboxes.drain import Drain
from whippletree.sandboxes.podman_backend import PodmanMachine
from whippletree.sandboxes.process import ProcessMachine
from whippletree.sandboxes.runc import RuncMachine

CONTROL, LOCK, STATE = "control", "lock", "state.json"
IMAGE_LOCK = "image.lock"
_CGROUP_SECONDS = 5.0
_MAKE_CGROUPS = ("runc", "podman")
_REQUEST_SECONDS = 1.0


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What a later controller needs to remove a sandbox whose keeper was killed (state.json in its folder).

    The process `pid` is the one that `started` then, in clock ticks of this `boot`; its number counts in the PID namespace
    `namespace`. A number alone may be another process's by now.

    Example: Kept(backend="bubblewrap", keeper=4710, pid=4711, cgroups=("/sys/fs/cgroup/pids/whippletree-1a2b3c4d-s0-1",))
    """

    backend: str
    keeper: int
    pid: int
    started: int = 0
    boot: str = ""
    namespace: int = 0
    token: str = ""
    cgroups: tuple[str, ...] = ()


def keep(request: wire.BoxRequest, lifeline: socket.socket) -> int:
    """Make the sandbox and serve it to its end. Runs in a process of its own."""
    channel = wire.Channel(lifeline)
    kernel.become_subreaper()
    folder = Path(request.root) / request.sandbox_id
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        return _refuse(
            channel, f"{folder}: {error.strerror}", "stop the sandbox of that name, or let `clean` remove what it left"
        )
    keeper = Keeper(request, channel, folder)
    try:
        keeper.open()
    except (OSError, ValueError, machine.BootError, cgroups.CgroupError) as error:
        keeper.remove()
        return _refuse(channel, str(error), "`sandboxes.probe()` tells what works here")
    try:
        told = keeper.serve()
    finally:
        keeper.remove()
    if told:
        channel.send(wire.Done())
    return 0


def _refuse(channel: wire.Channel, message: str, next_step: str) -> int:
    channel.send(wire.Failed(message=message, next_step=next_step))
    return 1


class Keeper:
    """A sandbox, its folder and the socket at which its clients knock."""

    def __init__(self, request: wire.BoxRequest, channel: wire.Channel, folder: Path) -> None:
        self._request = request
        self._channel = channel
        self._folder = folder
        self._cgroups: tuple[str, ...] = ()
        self._inner = ""  # path of the cgroup that another program makes for it
        self._box: machine.Machine | None = None
        self._helpers: set[int] = set()  # children that serve clients
        self._drain = Drain()
        self._door = socket.socket(socket.AF_UNIX)
        self._lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._image = _hold_image(request.rootfs)

    def open(self) -> None:
        """Make everything and say so. Raises what the parts raise; the caller then removes it."""
        request = self._request
        name = cgroups.name_of(request.root, request.sandbox_id)
        if request.backend in _MAKE_CGROUPS:
            self._inner = cgroups.inner_path(name, request.cgroup)
        self._note(0, cgroups.directories_of(name, request.cgroup))  # before there is anything that a kill could leave
        self._cgroups = _make_cgroups(request)
        # Joined once, here: whatever is forked for the sandbox is born in them. A move per command would make all sandboxes
        # of the machine wait for each other in the kernel.
        cgroups.join(self._cgroups)
        box = _machine(request, self._cgroups, self._inner, self._drain)
        self._box = box
        listeners = box.boot()
        machine.oom_score(machine.KEPT_FROM_OOM)
        self._note(box.pid)
        if not request.restored:
            box.adopt()
        if request.files or (request.user and not request.restored):
            self._fill(box)
        self._door.bind(str(self._folder / CONTROL))
        self._door.listen(128)
        ready = wire.Ready(
            pid=box.pid, workdir=box.workdir, environment=box.environment, cgroups=self._cgroups, owner=box.owner[0]
        )
        self._channel.send(ready, tuple(listeners))
        wire.close(listeners)

    @property
    def _all_cgroups(self) -> tuple[str, ...]:
        """Its cgroups, and those that another program makes; the inner ones first."""
        if self._request.backend not in _MAKE_CGROUPS:
            return self._cgroups
        return tuple(dict.fromkeys((*cgroups.every(self._inner), *self._cgroups)))

    def _note(self, pid: int, planned: tuple[str, ...] = ()) -> None:
        kept = Kept(
            backend=self._request.backend,
            keeper=os.getpid(),
            pid=pid,
            started=kernel.start_time(pid),
            boot=kernel.boot_id(),
            namespace=kernel.pid_namespace(),
            token=self._request.token,
            cgroups=(*self._all_cgroups, *planned),
        )
        beside = self._folder / f"{STATE}.new"
        beside.write_bytes(msgspec.json.encode(kept))
        beside.replace(self._folder / STATE)  # whole at any time

    def _fill(self, box: machine.Machine) -> None:
        """Copy the files of the spec in."""
        ours, theirs = socket.socketpair()
        sources = [(os.open(host, os.O_RDONLY | os.O_CLOEXEC), inside) for host, inside in self._request.files]

        def inside() -> int:
            answer = wire.Channel(theirs)
            try:
                account = box.account("")
                if self._request.user and not self._request.restored:
                    _adopt(box, account)
                for source, target in sources:
                    files.put(box.base, source, target, (account.uid, account.gid))
            except (OSError, ValueError) as error:
                answer.send(wire.Failed(message=f"files: {error}"))
                return 1
            answer.send(wire.Done())
            return 0

        def enter() -> int:
            box.enter()
            if not box.separate:
                return inside()
            os.waitpid(machine.fork(inside), 0)
            return 0

        child = box.fork(enter)
        theirs.close()
        wire.close([source for source, _ in sources])
        received = wire.Channel(ours).receive()
        ours.close()
        os.waitpid(child, 0)
        if received is None or isinstance(received[0], wire.Failed):
            why = received[0].message if received and isinstance(received[0], wire.Failed) else "no answer"
            raise machine.BootError(f"the sandbox could not be filled: {why}")

    def serve(self) -> bool:
        """Fork a child for each client until told to stop (True) or left alone (False)."""
        woken, wake = os.pipe()
        for descriptor in (woken, wake):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        poll = select.poll()
        for item in (woken, self._door.fileno(), self._channel.socket.fileno(), self._drain.fileno()):
            poll.register(item, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._channel.socket.fileno() in ready:
                try:
                    received = self._channel.receive()
                    if received is None or not isinstance(received[0], wire.Freeze):
                        return received is not None
                    self._channel.send(self._freeze(received[0]))
                except OSError:
                    return False
            if woken in ready:
                os.read(woken, 4096)
                self._helpers -= _reaped()
            if self._drain.fileno() in ready:
                self._drain.turn()
            if self._door.fileno() in ready:
                self._answer()

    def _freeze(self, message: wire.Freeze) -> wire.Message:
        """A snapshot, once no command runs; no client is served meanwhile."""
        box = self._box
        assert box is not None
        deadline = time.monotonic() + message.seconds
        while self._helpers or box.busy():
            self._helpers -= _reaped()
            if time.monotonic() > deadline:
                return wire.Failed(message="commands are running", next_step="snapshot between commands, or end them")
            time.sleep(0.01)
        try:
            self._drain.take()  # the children that served the last commands have ended
            checkpoint.note_outputs(Path(message.directory), self._drain.held)
            return box.snapshot(Path(message.directory))
        except (OSError, ValueError, machine.BootError) as error:
            return wire.Failed(message=f"no snapshot: {error}")

    def _answer(self) -> None:
        connection, _ = self._door.accept()
        box = self._box
        assert box is not None
        with connection:
            channel = wire.Channel(connection)
            try:
                self._help(box, lambda: runner.serve(channel, box, self._helpers, self._drain))
            except OSError as error:
                self._turn_away(box, channel, error)

    def _help(self, box: machine.Machine, work: Callable[[], int]) -> None:
        """Do a client's work in a child. Raises OSError where none can be made."""

        def body() -> int:
            signal.set_wakeup_fd(-1)
            self._door.close()
            self._channel.socket.close()
            self._drain.leave()
            os.close(self._lock)
            try:
                return work()
            except OSError:
                return 1  # the client went before its answer

        try:
            self._helpers.add(box.fork(body))
        except OSError as error:
            if error.errno not in (errno.ESRCH, errno.ENOMEM):  # of a PID namespace that has ended
                raise
            self._helpers.add(machine.fork(body))  # it finds that out, and tells its client

    def _turn_away(self, box: machine.Machine, channel: wire.Channel, error: OSError) -> None:
        """Answer a client for whom no child can be made, because the sandbox has as many processes as it may: only to end them
        there is one more, outside of that limit."""
        channel.socket.settimeout(_REQUEST_SECONDS)
        with contextlib.suppress(OSError):
            received = channel.receive()  # with bytes unread, the end of the connection would overtake the answer
            wire.close(received[1] if received else [])
            if received is None or not isinstance(received[0], wire.KillAll):
                channel.send(runner.refusal(error))
                return
            cgroups.leave(self._cgroups)
            try:
                self._help(box, lambda: runner.kill_all(channel, box))
            finally:
                cgroups.join(self._cgroups)

    def remove(self) -> None:
        """End every process, then remove cgroups and folder."""
        self._door.close()
        if self._box is not None:
            with contextlib.suppress(ValueError):  # what outlives its kill is tried again by cgroup
                self._box.stop()
        cgroups.leave(self._cgroups)
        cgroups.remove(self._all_cgroups, seconds=_CGROUP_SECONDS)
        remove_folder(self._folder)
        if self._image >= 0:
            os.close(self._image)


def _hold_image(rootfs: str) -> int:
    """Hold the lock of a cached image, which is not removed then; -1 where there is none."""
    try:
        lock = os.open(Path(rootfs).parent / IMAGE_LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
    fcntl.flock(lock, fcntl.LOCK_SH)
    return lock


def _machine(request: wire.BoxRequest, directories: tuple[str, ...], inner: str, drain: Drain) -> machine.Machine:
    match request.backend:
        case "bubblewrap":
            return BubblewrapMachine(request, directories)
        case "runc":
            return RuncMachine(request, directories, inner, drain)
        case "podman":
            return PodmanMachine(request, directories, inner)
        case "process":
            return ProcessMachine(request, directories)


def _adopt(box: machine.Machine, account: Account) -> None:
    """Give the writable directories to the image's user; its work directory stays as the image has it."""
    for path in ("/logs", "/home/agent"):
        directory = Path(box.base.rstrip("/") + path)
        os.chown(directory, account.uid, account.gid)
        directory.chmod(0o755)


def _make_cgroups(request: wire.BoxRequest) -> tuple[str, ...]:
    name = cgroups.name_of(request.root, request.sandbox_id)
    for cpus in dict.fromkeys((request.cpus, 0.0)):
        if not request.memory_mb and not request.processes and not cpus:
            continue
        try:
            return cgroups.create(name, request.cgroup, memory_mb=request.memory_mb, processes=request.processes, cpus=cpus)
        except cgroups.CgroupError:
            if request.cgroup:
                raise
    return ()  # the limits of the processes themselves stand alone; `probe` says so


def _reaped() -> set[int]:
    """Collect the children that have ended; their pids."""
    found: set[int] = set()
    with contextlib.suppress(ChildProcessError):
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            found.add(pid)
    return found


def remove_folder(folder: Path) -> None:
    """Remove a tree of the sandbox, also where directories in it were made unreadable. Does not raise."""
    shutil.rmtree(folder, ignore_errors=True)
    if not folder.exists():
        return
    for path, names, _ in os.walk(folder, topdown=True):
        for name in ("", *names):
            target = Path(path) / name
            if stat.S_ISDIR(target.lstat().st_mode):
                target.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)
