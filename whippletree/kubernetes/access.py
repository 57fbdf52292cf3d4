"""Where the API server is and who we are there: a kubeconfig, or the service account of the pod that we run in.

Invariants (tests/control/kubernetes/test_kubernetes_access.py):
- a token that is a file, or comes from a credential plug-in, is read again before it grows old;
- no error text holds a token or a key; private keys given as data are on disk only while they are loaded, for their owner only;
- an address without TLS is refused unless it is on this machine: keys would cross the network in clear text.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import datetime
import os
import ssl
import tempfile
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import yaml

from whippletree.errors import ConfigurationError
from whippletree.kubernetes.config import ClusterSettings
from whippletree.types import Struct

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
IN_CLUSTER = "https://kubernetes.default.svc"
FRESH_SECONDS = 60.0  # a token that was read is used this long
PLUGIN_SECONDS = 60.0  # limit of a credential plug-in
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class _Kube(Struct, rename="kebab"):
    """Base of a kubeconfig's tables."""


class ExecEntry(_Kube):
    """A credential plug-in."""

    command: str = ""
    args: list[str] | None = None
    env: list[dict[str, str]] | None = None
    api_version: str = msgspec.field(default="client.authentication.k8s.io/v1", name="apiVersion")


class UserEntry(_Kube):
    """Credentials of one user."""

    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    exec: ExecEntry | None = None


class ClusterEntry(_Kube):
    """Address of one cluster."""

    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""


class ContextEntry(_Kube):
    """A cluster and a user by name."""

    cluster: str = ""
    user: str = ""


class NamedCluster(_Kube):
    """Entry of `clusters`."""

    name: str
    cluster: ClusterEntry = ClusterEntry()


class NamedUser(_Kube):
    """Entry of `users`."""

    name: str
    user: UserEntry = UserEntry()


class NamedContext(_Kube):
    """Entry of `contexts`."""

    name: str
    context: ContextEntry = ContextEntry()


class KubeFile(_Kube):
    """A kubeconfig, as far as it is used."""

    current_context: str = ""
    clusters: list[NamedCluster] = []
    users: list[NamedUser] = []
    contexts: list[NamedContext] = []


class _ExecStatus(msgspec.Struct, frozen=True, rename="camel"):
    token: str = ""
    expiration_timestamp: datetime.datetime | None = None


class _ExecCredential(msgspec.Struct, frozen=True):
    status: _ExecStatus = _ExecStatus()


class Access:
    """Address, TLS and token. `token` is asked before every request, on whichever event loop."""

    def __init__(self, server: str, tls: ssl.SSLContext | None, user: UserEntry, server_name: str = "") -> None:
        parts = urlsplit(server)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError(f"the API server's address {server!r} is not a URL", "write it like https://host:6443")
        if parts.scheme == "http" and parts.hostname not in LOOPBACK:
            raise ConfigurationError(f"{server}: keys and tokens are not sent without TLS", "use the https address")
        self.server = server.rstrip("/")
        self.tls = tls
        self.server_name = server_name or None
        self._user = user
        self._token = ""
        self._until = 0.0
        self._locks: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = weakref.WeakKeyDictionary()

    async def token(self, *, fresh: bool = False) -> str:
        """The bearer token, "" where there is none. `fresh`: the last one was refused. Raises ConfigurationError."""
        async with self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            if fresh or time.time() >= self._until:
                self._token, self._until = await self._read_token()
            return self._token

    async def _read_token(self) -> tuple[str, float]:
        """(token, use it until)."""
        soon = time.time() + FRESH_SECONDS
        if self._user.token_file:
            return _read(Path(self._user.token_file)).decode().strip(), soon
        if self._user.exec is not None:
            credential = await _run_plugin(self._user.exec)
            expires = credential.expiration_timestamp
            return credential.token, expires.timestamp() - FRESH_SECONDS if expires else soon
        return self._user.token, float("inf")


def open_access(config: ClusterSettings) -> Access:
    """As the settings say. Raises ConfigurationError that names the file and what is missing in it."""
    return _from_file(Path(config.kubeconfig), config.context) if config.kubeconfig else _in_cluster()


def _in_cluster() -> Access:
    token = SERVICE_ACCOUNT / "token"
    if not token.exists():
        raise ConfigurationError(
            "this process is in no pod with a service account, and no kubeconfig is set",
            "set kubeconfig under [control.kubernetes] or [sandbox.kubernetes]",
        )
    tls = ssl.create_default_context(cafile=str(SERVICE_ACCOUNT / "ca.crt"))
    return Access(IN_CLUSTER, tls, UserEntry(token_file=str(token)))


def _from_file(path: Path, context: str) -> Access:
    try:
        file = msgspec.convert(yaml.safe_load(_read(path)) or {}, KubeFile)
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        where = error if isinstance(error, msgspec.ValidationError) else "not YAML"
        raise ConfigurationError(f"{path}: not a kubeconfig: {where}", "give a file that kubectl accepts") from None
    name = context or file.current_context
    chosen = next((entry.context for entry in file.contexts if entry.name == name), None)
    if chosen is None:
        raise ConfigurationError(f"{path}: no context {name!r}", f"known: {', '.join(entry.name for entry in file.contexts)}")
    cluster = next((entry.cluster for entry in file.clusters if entry.name == chosen.cluster), None)
    user = next((entry.user for entry in file.users if entry.name == chosen.user), UserEntry())
    if cluster is None:
        raise ConfigurationError(f"{path}: context {name!r} names no known cluster", "add the cluster, or use another context")
    base = path.resolve().parent
    if user.token_file:
        user = msgspec.structs.replace(user, token_file=str(base / user.token_file))
    try:
        tls = _tls(cluster, user, base) if cluster.server.startswith("https") else None
    except (ssl.SSLError, ValueError, binascii.Error) as error:
        raise ConfigurationError(f"{path}: certificates cannot be used: {type(error).__name__}", "mend the file") from None
    return Access(cluster.server, tls, user, cluster.tls_server_name)


def _tls(cluster: ClusterEntry, user: UserEntry, base: Path) -> ssl.SSLContext:
    authority = _data(cluster.certificate_authority_data, cluster.certificate_authority, base)
    context = ssl.create_default_context(cadata=authority.decode() if authority else None)
    if cluster.insecure_skip_tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate = _data(user.client_certificate_data, user.client_certificate, base)
    key = _data(user.client_key_data, user.client_key, base)
    if certificate and key:
        with tempfile.NamedTemporaryFile(prefix="whippletree-") as file:  # mode 0600, gone at once
            file.write(certificate + b"\n" + key)
            file.flush()
            context.load_cert_chain(file.name)
    return context


def _data(encoded: str, path: str, base: Path) -> bytes:
    if encoded:
        return base64.b64decode(encoded, validate=True)
    return _read(base / path) if path else b""


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}", "check the path and its owner") from error


async def _run_plugin(entry: ExecEntry) -> _ExecStatus:
    arguments: Sequence[str] = entry.args or ()
    extra = {item.get("name", ""): item.get("value", "") for item in entry.env or ()}
    info: dict[str, Any] = {"apiVersion": entry.api_version, "kind": "ExecCredential", "spec": {"interactive": False}}
    environment = {**os.environ, **extra, "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode()}
    try:
        process = await asyncio.create_subprocess_exec(
            entry.command, *arguments, env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
        )
    except OSError as error:
        raise ConfigurationError(f"credential plug-in {entry.command}: {error.strerror}", "install it") from error
    try:
        async with asyncio.timeout(PLUGIN_SECONDS):
            output, _ = await process.communicate()
    except TimeoutError as error:
        raise ConfigurationError(
            f"credential plug-in {entry.command} took over {PLUGIN_SECONDS:g} s", "run it by hand"
        ) from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise ConfigurationError(f"credential plug-in {entry.command} ended with {process.returncode}", "run it by hand")
    try:
        return msgspec.json.decode(output, type=_ExecCredential).status
    except msgspec.DecodeError:
        raise ConfigurationError(f"credential plug-in {entry.command} gave no ExecCredential", "run it by hand") from None
