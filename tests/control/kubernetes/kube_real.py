"""A real API server on loopback ports: etcd, kube-apiserver and kube-controller-manager from a folder."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SETTING = "WHIPPLETREE_KUBE"
TOKEN = "test-token"
READY_SECONDS = 90.0


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class RealApi:
    """Starts the three processes; `stop` ends them."""

    def __init__(self, binaries: Path, directory: Path) -> None:
        self.directory = directory
        self._binaries = binaries
        self._processes: list[subprocess.Popen] = []
        self._etcd, self._peer, self.port, self._manager = free_ports(4)
        self.url = f"https://127.0.0.1:{self.port}"

    @property
    def authority(self) -> Path:
        return self.directory / "certs" / "apiserver.crt"

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        etcd = shutil.which("etcd", path=f"{self._binaries}:/usr/local/bin:/usr/bin:/bin")
        assert etcd is not None, "etcd is missing: install Debian's etcd-server, or put it into the folder"
        key = self.directory / "sa.key"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        (self.directory / "tokens.csv").write_text(f'{TOKEN},admin,1,"system:masters"\n')
        self._spawn(
            "etcd",
            etcd,
            "--data-dir",
            self.directory / "etcd",
            "--unsafe-no-fsync",
            "--listen-client-urls",
            f"http://127.0.0.1:{self._etcd}",
            "--advertise-client-urls",
            f"http://127.0.0.1:{self._etcd}",
            "--listen-peer-urls",
            f"http://127.0.0.1:{self._peer}",
        )
        self._spawn(
            "apiserver",
            self._binaries / "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._etcd}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self.port}",
            "--insecure-port=0",
            f"--cert-dir={self.directory / 'certs'}",
            f"--token-auth-file={self.directory / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--service-account-issuer=https://test",
            f"--service-account-signing-key-file={key}",
            f"--service-account-key-file={key}",
            "--disable-admission-plugins=ServiceAccount",
            "--feature-gates=TTLAfterFinished=true",
            "--watch-cache-sizes=configmaps#0",  # so that a compaction is felt at once for them
            "--endpoint-reconciler-type=none",
        )
        self._until(f"{self.url}/readyz")
        config = self.directory / "kubeconfig"
        config.write_text(json.dumps(self.kubeconfig()))
        self._spawn(
            "controller-manager",
            self._binaries / "kube-controller-manager",
            f"--kubeconfig={config}",
            "--controllers=job,garbagecollector,ttl-after-finished,namespace",
            "--feature-gates=TTLAfterFinished=true",
            "--kube-api-qps=500",
            "--kube-api-burst=500",
            "--leader-elect=false",
            "--port=0",
            f"--secure-port={self._manager}",
            "--bind-address=127.0.0.1",
            f"--cert-dir={self.directory / 'manager'}",
        )

    def kubeconfig(self) -> dict:
        """JSON is YAML."""
        cluster = {"server": self.url, "certificate-authority": str(self.authority)}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": TOKEN}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }

    def ask(self, method: str, path: str, body: dict | None = None) -> dict:
        request = urllib.request.Request(
            self.url + path,
            json.dumps(body).encode() if body is not None else None,
            {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=20, context=_unchecked()) as reply:
            return json.load(reply)

    def compact(self) -> None:
        """Forget every version but the current one."""
        current = int(self.ask("GET", "/api/v1/namespaces?limit=1")["metadata"]["resourceVersion"])
        body = json.dumps({"revision": str(current), "physical": True}).encode()
        urllib.request.urlopen(
            urllib.request.Request(f"http://127.0.0.1:{self._etcd}/v3/kv/compaction", body), timeout=20
        ).read()

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()

    def _spawn(self, name: str, *command: object) -> None:
        with (self.directory / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen([str(part) for part in command], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
            )

    def _until(self, url: str) -> None:
        limit = time.monotonic() + READY_SECONDS
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"})
        while True:
            try:
                with urllib.request.urlopen(request, timeout=5, context=_unchecked()):
                    return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                dead = [process.args for process in self._processes if process.poll() is not None]
                assert not dead, f"{dead} ended; see {self.directory}"
                assert time.monotonic() < limit, f"the API server is not ready; see {self.directory}"
            time.sleep(0.2)


@contextmanager
def running_api(directories: pytest.TempPathFactory) -> Iterator[RealApi]:
    """A real API server of the binaries that the setting names; a test that asks where it names none is skipped."""
    folder = os.environ.get(SETTING, "")
    if not folder or not (Path(folder) / "kube-apiserver").exists():
        pytest.skip(f"{SETTING} names no folder with kube-apiserver and kube-controller-manager")
    api = RealApi(Path(folder).resolve(), directories.mktemp("kube"))
    try:
        api.start()
        yield api
    finally:
        api.stop()


def _unchecked() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
