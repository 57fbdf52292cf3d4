"""The runc backend: an OCI bundle of our own, on an overlay with a private layer; the one that can be checkpointed.

runc starts an init that does nothing but wait for the end of its input; commands enter its namespaces as in the bubblewrap
backend, without runc. The network namespace is made first, with the listeners inside it, and given to runc by its path.

Invariants (tests/sandboxes/): no capability and no new privilege; nothing but 127.0.0.1 in the network; nothing of the host but
/usr (or an image) and what the spec binds; a killed keeper leaves no process and no mount.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import time
from pathlib import Path

import msgspec

from whippletree.sandboxes import cgroups, checkpoint, kernel, layers, machine, oci
from whippletree.sandboxes.drain import Drain
from whippletree.sandboxes.layered import WAIT, LayeredMachine
from whippletree.sandboxes.layers import INIT
from whippletree.sandboxes.wire import BoxRequest, Frozen, receive_some

_SECONDS = 30.0
_DUMP_SECONDS = 120.0
_OUTPUT = 9  # a descriptor that criu gets
_MOVED = f'[ "$2" != {_OUTPUT} ] || {{ exec 8<&{_OUTPUT}; set -- "$1" 8; }}'  # runc's own, should it have that number
_MOUNTS, _KERNEL = Path("/proc/self/mounts"), Path("/run/criu.kdat")


class RuncMachine(LayeredMachine):
    """One sandbox of runc, seen from its keeper."""

    def __init__(self, request: BoxRequest, directories: tuple[str, ...], cgroup: str, drain: Drain) -> None:
        super().__init__(request, directories, cgroup)
        self._drain = drain
        self._settings = self.folder / "criu.conf"
        self._network = -1

    def boot(self) -> list[int]:
        """Make network, files and bundle, and have runc start the init."""
        listeners = self._make_network()
        self.make_layers()
        snapshot = self.snapshot_of
        self._write_bundle()
        if snapshot is not None and self._request.processes_too and (snapshot / checkpoint.PROCESSES).exists():
            self._restore(snapshot)
        else:
            self.start("run")
        return listeners

    def _restore(self, snapshot: Path) -> None:
        into = self._drain.open()
        self.use_criu(as_agent=False, output=f"/proc/{os.getpid()}/fd/{into}")
        work = self.folder / "criu"
        work.mkdir(mode=0o700)
        with self._settings.open("a", encoding="ascii") as settings:
            settings.writelines(f"inherit-fd fd[{_OUTPUT}]:pipe:[{pipe}]\n" for pipe in checkpoint.outputs(snapshot))
        images = snapshot / checkpoint.PROCESSES
        try:
            self.start("restore", "--image-path", str(images), "--work-path", str(work), *checkpoint.CRIU)
        except machine.BootError as error:
            said = checkpoint.complaint(work / "restore.log")
            raise machine.BootError(f"criu could not restore the processes: {said}" if said else str(error)) from error
        finally:
            os.close(into)

    @property
    def criu(self) -> str:
        """Path of the criu program; "" where there is none."""
        return self._request.criu

    def busy(self) -> bool:
        """Whether anything but the init is the keeper's child: it serves a client."""
        return set(kernel.children_of().get(os.getpid(), ())) != {self.pid}

    def snapshot(self, directory: Path) -> Frozen:
        """Processes and files where criu works, else the files alone. Raises BootError, OSError, ValueError."""
        if not self.criu:
            return checkpoint.of_layers(self, directory, "there is no criu program here")
        self.use_criu(as_agent=True)
        began = time.monotonic()
        cgroups.gather(self.cgroup, lambda: [self.pid, *kernel.descendants(self.pid)])
        self.runc("pause")
        try:
            reason = self._dump(directory / checkpoint.PROCESSES)
            layers.copy(self.layers.private, directory)
        finally:
            self.runc("resume")
        return checkpoint.frozen(directory, began, reason)

    def _dump(self, target: Path) -> str:
        """Have criu write the processes; why it could not."""
        target.mkdir(mode=0o700)
        where = ("--image-path", str(target), "--work-path", str(target))
        try:
            self.runc("checkpoint", *where, "--leave-running", *checkpoint.CRIU, seconds=_DUMP_SECONDS)
        except machine.BootError as error:
            reason = checkpoint.complaint(target / "dump.log") or str(error)
            for path in target.iterdir():
                path.unlink()
            target.rmdir()
            return f"criu could not dump the processes: {reason}"
        return ""

    def use_criu(self, *, as_agent: bool, output: str = os.devnull) -> None:
        """Put criu on the PATH of runc, with `output` opened for processes that it restores. To read the limits of another
        user's processes takes a capability that root may lack, or that user's real number: with it and root's effective one,
        criu may do both."""
        uid, gid = self.owner
        self._probe_kernel()
        real = f"setpriv --ruid {uid} --rgid {gid} --keep-groups -- " if as_agent else ""
        # a shell gives up what its real user does not have, but for -p
        shell = "/bin/sh -p " if _is_script(Path(self._request.criu)) else ""
        program = self.folder / "bin" / "criu"
        program.parent.mkdir(mode=0o700, exist_ok=True)
        words = f'{real}{shell}{shlex.quote(self._request.criu)} "$@" {_OUTPUT}>{output}'
        program.write_text(f"#!/bin/sh\n{_MOVED}\nexec {words}\n", encoding="utf-8")
        program.chmod(0o700)

    def _probe_kernel(self) -> None:
        """Have criu find out, as root throughout, what the kernel can. It notes that in /run, but only in memory: where /run is
        on disk, the keeper's mount namespace gets another."""
        if not any(line.split()[1:3] == ["/run", "tmpfs"] for line in _MOUNTS.read_text(encoding="utf-8").splitlines()):
            if self.folder.is_relative_to("/run"):
                raise ValueError("sandbox.root is below /run, where criu keeps its notes: give another directory")
            kernel.mount("tmpfs", "/run", "tmpfs", 0, "mode=0755,size=1m")
        if not _KERNEL.exists():
            with contextlib.suppress(machine.BootError):  # it also tells of things that are not needed here
                machine.run((self._request.criu, "check"), seconds=_SECONDS)

    def start(self, *how: str) -> None:
        """`runc run` or `runc restore`; then the init and all its children belong to the sandbox's cgroups."""
        theirs, self._lifeline = os.pipe()
        try:
            self.runc(*how, "--detach", "--pid-file", str(self.folder / "pid"), "--bundle", str(self.folder), stdin=theirs)
        finally:
            os.close(theirs)
        self._found(int((self.folder / "pid").read_text(encoding="ascii")))
        cgroups.take_over(self.cgroup, self.cgroups)

    def runc(self, *arguments: str, stdin: int | None = None, seconds: float = _SECONDS) -> None:
        """Run runc on this container. Raises BootError with the end of its log."""
        log = self.folder / "runc.log"
        words = (self._request.runc, "--root", str(self.folder / "runc"), "--log", str(log), *arguments, "box")
        try:
            machine.run(words, seconds=seconds, stdin=stdin, path=self._path)
        except machine.BootError as error:
            said = log.read_text(encoding="utf-8", errors="replace").strip() if log.exists() else ""
            raise machine.BootError(f"runc {arguments[0]}: {said[-2000:] or error}") from error

    @property
    def _path(self) -> str:
        """PATH of runc: it looks for criu there."""
        return f"{self.folder / 'bin'}:{machine.PATH}"

    def _make_network(self) -> list[int]:
        """A network namespace with `lo` and the listeners, made in a child; the keeper holds it open."""
        ours, theirs = socket.socketpair()

        def make() -> int:
            kernel.unshare(kernel.CLONE_NEWNET)
            kernel.raise_loopback()
            namespace = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            socket.send_fds(theirs, [b"n"], [namespace])
            if self._request.ports:
                machine.send_listeners(theirs, self._request.ports)
            return 0

        child = machine.fork(make)
        theirs.close()
        with ours:
            namespace = receive_some(ours, 1)[1]
            listeners = receive_some(ours, 1)[1] if self._request.ports else []
        _, status = os.waitpid(child, 0)
        if status or len(namespace) != 1 or len(listeners) != len(self._request.ports):
            raise machine.BootError("no network namespace can be made here")
        self._network = namespace[0]
        return listeners

    def _write_bundle(self) -> None:
        request = self._request
        self._settings.write_text(
            "tcp-close\nfile-locks\nghost-limit 64M\nnetwork-lock skip\nmanage-cgroups=ignore\n", encoding="ascii"
        )
        made = oci.bundle(
            argv=(INIT, "-c", WAIT),
            user=oci.User(uid=self.owner[0], gid=self.owner[1]),
            root=str(self.layers.rootfs),
            network=f"/proc/{os.getpid()}/fd/{self._network}",
            cgroup=self.cgroup,
            bindings=self.bindings(),
            memory_mb=request.memory_mb,
            processes=request.processes,
            criu_settings=str(self._settings),
        )
        (self.folder / "config.json").write_bytes(msgspec.json.encode(made))

    def stop(self) -> None:
        """Kill all inside, then take the mounts away."""
        try:
            super().stop()
        finally:
            if self._network >= 0:
                os.close(self._network)
                self._network = -1


def _is_script(program: Path) -> bool:
    with program.open("rb") as file:
        return file.read(2) == b"#!"
