"""The process backend: a private folder, limits and a clean environment. It isolates nothing, and says so.

Paths inside start in that folder: `/app` is `<folder>/app`; an argument that names something there is rewritten, and commands
find the folder in WHIPPLETREE_ROOT (empty in a bubblewrap sandbox). The keeper is the reaper of all that is started, so nothing
outlives it, in whichever session or group it hides.
"""

from __future__ import annotations

import os
import pwd
import signal
import time
from collections.abc import Callable, Collection
from pathlib import Path

from whippletree.sandboxes import accounts, cgroups, checkpoint, kernel, machine
from whippletree.sandboxes.wire import BoxRequest, Frozen

FOLDER = "fs"
MARK = "WHIPPLETREE_SANDBOX"


class ProcessMachine:
    """One folder and the processes started in it, seen from their keeper."""

    separate = False
    disks: tuple[str, ...] = ()

    def __init__(self, request: BoxRequest, directories: tuple[str, ...]) -> None:
        self._request = request
        self.cgroups = directories
        self.keeper = self.pid = os.getpid()
        self.owner = (os.geteuid(), os.getegid())
        self.base = str(Path(request.root) / request.sandbox_id / FOLDER)
        self.workdir = self.base + request.workdir
        home = f"{self.base}/home/agent"
        base = {
            "PATH": f"{self.base}/usr/local/bin:{machine.PATH}",
            "HOME": home,
            "USER": "agent",
            "LANG": "C.UTF-8",
            "SHELL": "/bin/sh",
        }
        own = {"TMPDIR": f"{self.base}/tmp", "WHIPPLETREE_ROOT": self.base, MARK: f"{request.root}/{request.sandbox_id}"}
        self.environment = base | request.environment | own

    def boot(self) -> list[int]:
        """Make the folder. The network is the host's: there are no listeners."""
        if self._request.restored:
            source = Path(self._request.restored) / checkpoint.FOLDER
            machine.run(("cp", "-a", "--reflink=auto", str(source), self.base), seconds=machine.COPY_SECONDS)
        for name in (self._request.workdir, "/tmp", "/logs", "/home/agent"):
            Path(self.base + name).mkdir(parents=True, exist_ok=True)
        return []

    def adopt(self) -> None:
        """They are this user's own."""
        for name in (self._request.workdir, "/logs", "/home/agent"):
            Path(self.base + name).chmod(0o755)

    def fork(self, body: Callable[[], int]) -> int:
        """Run `body` in a child of the keeper."""
        return machine.fork(body)

    def enter(self) -> None:
        """There is nothing to enter; only the keeper itself is kept from the OOM killer."""
        machine.oom_score(machine.LIKE_ANY_OTHER)

    def argument(self, text: str) -> str:
        """A path in one of the folder's directories, in its place on the host; anything else as it is."""
        above = text.rpartition("/")[0]
        inside = above.startswith("/") and ".." not in text.split("/") and os.path.isdir(self.base + above)  # noqa: PTH112
        return self.base + text if inside or (text.startswith("/") and self._holds(text)) else text

    def directory(self, text: str) -> str:
        """A directory inside, in its place on the host; "/" is the folder itself."""
        return text if text == self.base or text.startswith(f"{self.base}/") else self.base + text

    def _holds(self, text: str) -> bool:
        return text.strip("/") in os.listdir(self.base)  # noqa: PTH208

    def account(self, user: str) -> accounts.Account:
        """The user who runs the controller, and nobody else."""
        uid, gid = self.owner
        try:
            name = pwd.getpwuid(uid).pw_name
        except KeyError:
            name = str(uid)
        if user not in ("", name, str(uid)):
            raise ValueError(
                f"it cannot run commands as {user!r}: a process sandbox has one user, {name}, who runs the controller"
            )
        return accounts.Account("agent", uid, gid, (), self.environment["HOME"])

    def become(self, account: accounts.Account) -> None:
        """Limits, but not the one on processes: it would count all processes of this user."""
        machine.apply_limits(self._request, address_space=not cgroups.limits_memory(self.cgroups), processes=False)
        kernel.forbid_new_privileges()

    def count_processes(self, helpers: Collection[int]) -> int:
        """Everything below the keeper but what serves clients."""
        return len(set(kernel.descendants(self.keeper)) - {*helpers, os.getpid()})

    def busy(self) -> bool:
        """Running commands stand still with all else."""
        return False

    def snapshot(self, directory: Path) -> Frozen:
        """Files only."""
        return checkpoint.of_folder(self.base, kernel.descendants(self.keeper), directory)

    def stop(self) -> None:
        """Everything below the keeper, which is the caller."""
        machine.end_descendants()

    def kill_all(self) -> None:
        """Everything below the keeper but the calling process."""
        deadline = time.monotonic() + machine.KILL_SECONDS
        while pids := [pid for pid in kernel.descendants(self.keeper) if pid != os.getpid()]:
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            if time.monotonic() > deadline:
                raise ValueError(f"{len(pids)} processes could not be killed")
            time.sleep(0.005)
