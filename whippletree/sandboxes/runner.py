"""One command inside a sandbox, and the other things that a keeper's child does for a client.

    client ──Exec──► child of the keeper ──enters, forks──► supervisor (inside) ──forks──► the command
      waits for the end of the command and reads its output; at its time limit says Finish(kill) or just goes:
      then the supervisor, reaper of all orphans below it, kills everything that the command started;
      else it says Finish, with its end of the output where something still holds the other: the keeper reads on

Invariants (tests/sandboxes/): the end of a client, however it ends, ends its command; a killed command leaves no descendant, in
whichever session it hides; what a finished command left in the background lives on in the sandbox, and may write on.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Collection

from whippletree.sandboxes import cgroups, files, kernel, machine, wire
from whippletree.sandboxes.accounts import Account
from whippletree.sandboxes.drain import Drain

_NOT_FOUND, _NOT_RUNNABLE = 127, 126
_DEFAULT_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGCHLD)


def serve(channel: wire.Channel, box: machine.Machine, helpers: Collection[int], drain: Drain) -> int:
    """In a child of the keeper, one of its `helpers`: read one request, do it, answer."""
    received = channel.receive()
    if received is None:
        return 0
    message, descriptors = received
    try:
        match message:
            case wire.Exec() if len(descriptors) == 1:
                box.enter()
                _inside(box, lambda: _supervise(channel, message, descriptors[0], box, drain), wait=False)
            case wire.Put() if len(descriptors) == 1:
                box.enter()
                _inside(box, lambda: _reply(channel, lambda: _put(box, message, descriptors[0])), wait=True)
            case wire.Read():
                box.enter()
                _inside(box, lambda: _reply(channel, lambda: _read(box, message)), wait=True)
            case wire.Get() if len(descriptors) == 1:
                box.enter()
                _inside(box, lambda: _reply(channel, lambda: _get(box, message, descriptors[0])), wait=True)
            case wire.Measure():
                counted = _cpu_seconds(box), cgroups.memory_peak(box.cgroups)
                box.enter()
                _inside(box, lambda: _reply(channel, lambda: _measure(box, helpers, *counted)), wait=True)
            case wire.KillAll():
                kill_all(channel, box)
            case _:
                channel.send(wire.Failed(message=f"a keeper does not do {type(message).__name__}"))
    except OSError as error:
        channel.send(refusal(error))
    return 0


def refusal(error: OSError) -> wire.Failed:
    """What a client is told when nothing of its can be started inside."""
    hint = "it has ended: look at its memory limit" if isinstance(error, ProcessLookupError) else ""
    return wire.Failed(message=f"cannot enter the sandbox: {error}", next_step=hint)


def _inside(box: machine.Machine, body: Callable[[], int], *, wait: bool) -> None:
    """Run `body` inside: here, or in a fork where entering moves only children."""
    if not box.separate:
        body()
        return
    pid = machine.fork(body)
    if wait:
        os.waitpid(pid, 0)


def _reply(channel: wire.Channel, body: Callable[[], wire.Message]) -> int:
    try:
        answer = body()
    except OSError as error:
        answer = wire.Failed(message=f"{error.strerror}: {error.filename}" if error.filename else str(error))
    except ValueError as error:
        answer = wire.Failed(message=str(error))
    channel.send(answer)
    return 0


def _put(box: machine.Machine, message: wire.Put, source: int) -> wire.Message:
    account = box.account("")
    files.put(box.base, source, message.target, (account.uid, account.gid))
    return wire.Done()


def _read(box: machine.Machine, message: wire.Read) -> wire.Message:
    return wire.Content(data=files.read(box.base, message.path, message.limit))


def _cpu_seconds(box: machine.Machine) -> float:
    """By the cgroup, or else of all processes below the keeper: those that have ended, and those that run."""
    counted = cgroups.cpu_seconds(box.cgroups)
    if counted is not None:
        return counted
    keeper = box.keeper
    while True:
        _, before = kernel.cpu_seconds(keeper)
        found = sum(sum(kernel.cpu_seconds(pid)) for pid in kernel.descendants(keeper, ended=True))
        _, after = kernel.cpu_seconds(keeper)
        if before == after:  # else something was reaped meanwhile, and may be in both or in neither
            return before + found


def _get(box: machine.Machine, message: wire.Get, target: int) -> wire.Message:
    found = files.get(box.base, message.path, target, message.limit)
    return wire.Got(files=found.files, bytes=found.bytes, skipped=tuple(found.skipped))


def _measure(box: machine.Machine, helpers: Collection[int], cpu_seconds: float, memory_peak: int | None) -> wire.Message:
    disk = sum(files.held(path) for path in box.disks) if box.disks else files.size(box.base)
    return wire.Measured(
        cpu_seconds=cpu_seconds, memory_peak_bytes=memory_peak, processes=box.count_processes(helpers), disk_bytes=disk
    )


def kill_all(channel: wire.Channel, box: machine.Machine) -> int:
    """In a child of the keeper: end every process inside, and say so."""

    def body() -> wire.Message:
        box.kill_all()
        return wire.Done()

    return _reply(channel, body)


def _supervise(channel: wire.Channel, message: wire.Exec, output: int, box: machine.Machine, drain: Drain) -> int:
    """Start the command, report its end, and stay until the client says what is to become of its children."""
    kernel.become_subreaper()
    woken = _wake_on_child()
    try:
        command = _start(message, output, box)
        os.close(output)
        if not isinstance(command, int):
            channel.send(command)
            return 0
        return _watch(channel, woken, command, drain)
    except OSError:  # the client is gone
        machine.end_descendants()
        return 1
    except ValueError:  # a process outlives its kill; `stop` ends it with the whole sandbox
        return 1


def _wake_on_child() -> int:
    """A descriptor that can be read when a child has ended."""
    woken, wake = os.pipe()
    for descriptor in (woken, wake):
        os.set_blocking(descriptor, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    return woken


def _watch(channel: wire.Channel, woken: int, command: int, drain: Drain) -> int:
    poll = select.poll()
    poll.register(channel.socket, select.POLLIN)
    poll.register(woken, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in poll.poll()}
        if woken in ready:
            os.read(woken, 4096)
            code = _reap(command)
            if code is not None:
                channel.send(wire.Exited(code=code))
        if channel.socket.fileno() in ready:
            received = channel.receive()
            if received is None or not isinstance(received[0], wire.Finish) or received[0].kill:
                machine.end_descendants()
            elif received[1]:
                drain.hand_in(received[1])
            return 0


def _reap(command: int) -> int | None:
    """Collect what has ended; the command's exit code when it is among them."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == 0:
            return code
        if pid == command:
            code = os.waitstatus_to_exitcode(status)


def _at_home(account: Account, environment: dict[str, str], box: machine.Machine) -> None:
    """HOME and USER are the account's, unless the client gave its own."""
    for name, value in (("HOME", account.home if os.path.isdir(account.home) else "/"), ("USER", account.name)):  # noqa: PTH112
        if environment.get(name) == box.environment[name]:
            environment[name] = value


def _start(message: wire.Exec, output: int, box: machine.Machine) -> int | wire.Exited | wire.Failed:
    """Start the command: own process group, no input, one pipe for all output. Its pid, or how it could not be started.

    The supervisor itself takes the sandbox's user and limits first, so that the command needs no code of ours between fork and
    exec; it can still kill what it started, which is the same user's.
    """
    argv = [box.argument(os.fsdecode(argument)) for argument in message.argv]
    environment = dict(message.environment)
    os.setsid()
    os.umask(0o022)
    try:
        account = box.account(message.user)
    except ValueError as error:
        return wire.Failed(message=str(error), next_step="name a user of the sandbox, or use a backend that has users")
    if message.user or account.uid != box.owner[0]:
        _at_home(account, environment, box)
    box.become(account)
    try:
        os.chdir(box.directory(message.cwd))
    except OSError as error:
        return _refused(output, f"{message.cwd}: {error.strerror}", _NOT_RUNNABLE)
    os.environ["PATH"] = environment.get("PATH", os.defpath)  # where the program is looked for
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, output, 1),
        (os.POSIX_SPAWN_DUP2, output, 2),
    ]
    try:
        return os.posix_spawnp(argv[0], argv, environment, file_actions=actions, setpgroup=0, setsigdef=_DEFAULT_SIGNALS)
    except FileNotFoundError:
        return _refused(output, f"{argv[0]}: command not found", _NOT_FOUND)
    except OSError as error:
        return _refused(output, f"{argv[0]}: {error.strerror}", _NOT_RUNNABLE)


def _refused(output: int, text: str, code: int) -> wire.Exited:
    os.write(output, f"{text}\n".encode())
    return wire.Exited(code=code)
