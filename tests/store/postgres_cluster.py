"""A throw-away PostgreSQL: its own directory, its own unix socket, no port. Killed and started again as a test likes."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

INSTALLED = Path("/usr/lib/postgresql")  # Debian's packages
ACCOUNT = "postgres"  # the server refuses to run as root
SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",  # what the kernel has survives every kill; only a power cut would need it
    "max_connections": "60",
    "shared_buffers": "16MB",
    "log_min_messages": "fatal",
    "autovacuum_naptime": "1h",
}


def find_binaries() -> Path | str:
    """The newest server's directory of programs, or why there is none."""
    given = os.environ.get("WHIPPLETREE_POSTGRES", "")
    found = [Path(given)] if given else sorted(INSTALLED.glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    for path in found:
        if (path / "initdb").exists():
            if os.geteuid() == 0 and not _account():
                return f"PostgreSQL does not run as root, and there is no user {ACCOUNT}"
            return path
    return f"no PostgreSQL: run `make env-postgres`, or set WHIPPLETREE_POSTGRES to its bin directory ({given or INSTALLED})"


def _account() -> pwd.struct_passwd | None:
    with contextlib.suppress(KeyError):
        return pwd.getpwnam(ACCOUNT)
    return None


class Cluster:
    """One server with an empty database."""

    def __init__(self, binaries: Path) -> None:
        self._binaries = binaries
        self._directory = Path(tempfile.mkdtemp(prefix="wt-postgres-"))
        account = _account() if os.geteuid() == 0 else None
        self._as: dict[str, object] = {}
        if account is not None:
            os.chown(self._directory, account.pw_uid, account.pw_gid)
            self._as = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        self._data = self._directory / "data"
        self._server: subprocess.Popen[bytes] | None = None
        self.user = account.pw_name if account else pwd.getpwuid(os.geteuid()).pw_name
        self.url = f"postgresql://{self.user}@/postgres?host={self._directory}"
        self._run("initdb", "-D", str(self._data), "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "-U", self.user)
        rules = self._data / "pg_hba.conf"
        rules.write_text("local all locked scram-sha-256\n" + rules.read_text())
        self.start()

    def start(self) -> None:
        """Start the server, after a kill too, and wait until it answers."""
        settings = [word for name, value in SETTINGS.items() for word in ("-c", f"{name}={value}")]
        deadline = time.monotonic() + 60
        while True:
            log = (self._directory / "log").open("ab")
            with log:
                self._server = subprocess.Popen(
                    [self._binaries / "postgres", "-D", self._data, "-k", self._directory, *settings],
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    **self._as,
                )
            while self._server.poll() is None:
                if self._answers():
                    return
                assert time.monotonic() < deadline, (self._directory / "log").read_text()
                time.sleep(0.02)
            # Processes of a server that was killed may hold its memory for a moment.
            assert time.monotonic() < deadline, (self._directory / "log").read_text()
            time.sleep(0.05)

    def kill(self) -> None:
        """kill -9 of the server and all of its processes."""
        assert self._server is not None
        children = Path(f"/proc/{self._server.pid}/task/{self._server.pid}/children").read_text().split()
        self._server.kill()
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
        self._server.wait()

    def sql(self, statement: str) -> list[tuple[object, ...]]:
        """Run one statement by itself."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        if self._server is not None and self._server.poll() is None:
            self._server.send_signal(signal.SIGQUIT)
            self._server.wait(30)
        shutil.rmtree(self._directory)

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.url).close()
        except psycopg.OperationalError:
            return False
        return True

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._binaries / program, *arguments], cwd="/", capture_output=True, text=True, check=False, **self._as
        )
        assert done.returncode == 0, done.stdout + done.stderr


@contextlib.contextmanager
def running_cluster() -> Iterator[Cluster]:
    """A server for as long as the block runs; skips the test where there is none."""
    import pytest

    pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'whippletree[postgres]'")
    binaries = find_binaries()
    if isinstance(binaries, str):
        pytest.skip(binaries)
    cluster = Cluster(binaries)
    try:
        yield cluster
    finally:
        cluster.close()
