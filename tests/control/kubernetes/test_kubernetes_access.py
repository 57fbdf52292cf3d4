"""Credentials."""

from __future__ import annotations

import base64
import json
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest

from whippletree.control.kubernetes.config import KubernetesConfig
from whippletree.errors import ConfigurationError
from whippletree.kubernetes import access as module
from whippletree.kubernetes.access import Access, UserEntry, open_access


def write(directory: Path, user: dict, **cluster: object) -> KubernetesConfig:
    file = directory / "kubeconfig"
    content = {
        "current-context": "c",
        "clusters": [{"name": "k", "cluster": {"server": "https://127.0.0.1:6443", **cluster}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
    }
    file.write_text(json.dumps(content))
    return KubernetesConfig(kubeconfig=str(file))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("certificate")
    cert, key = folder / "c.crt", folder / "c.key"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=test", "-days", "2"]
    subprocess.run([*command, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


async def test_a_token_is_a_token(tmp_path: Path):
    found = open_access(write(tmp_path, {"token": "t1"}))
    assert (found.server, await found.token()) == ("https://127.0.0.1:6443", "t1")


async def test_a_token_file_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "token").write_text("old\n")
    found = open_access(write(tmp_path, {"tokenFile": "token"}))
    assert await found.token() == "old"
    (tmp_path / "token").write_text("new\n")
    assert await found.token() == "old"  # still fresh
    assert await found.token(fresh=True) == "new"
    monkeypatch.setattr(module, "FRESH_SECONDS", -1.0)
    (tmp_path / "token").write_text("newer\n")
    await found.token(fresh=True)
    (tmp_path / "token").write_text("newest\n")
    assert await found.token() == "newest"


async def test_a_plug_in_is_asked_and_asked_again(tmp_path: Path):
    script = tmp_path / "plugin"
    script.write_text(
        '#!/bin/sh\necho x >> "$COUNT"\nn=$(wc -l < "$COUNT")\n'
        'echo "{\\"kind\\": \\"ExecCredential\\", \\"status\\": {\\"token\\": \\"t$n\\"}}"\n'
    )
    script.chmod(0o755)
    entry = {"command": str(script), "env": [{"name": "COUNT", "value": str(tmp_path / "count")}]}
    found = open_access(write(tmp_path, {"exec": entry}))
    assert [await found.token(), await found.token(), await found.token(fresh=True)] == ["t1", "t1", "t2"]


@pytest.mark.parametrize("body", ["exit 3", "echo nonsense", "echo secret-token; exit 1"])
async def test_a_plug_in_that_fails_is_told_without_its_output(tmp_path: Path, body: str):
    script = tmp_path / "plugin"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    found = open_access(write(tmp_path, {"exec": {"command": str(script)}}))
    with pytest.raises(ConfigurationError, match="plug-in") as caught:
        await found.token()
    assert "secret-token" not in str(caught.value)
    with pytest.raises(ConfigurationError):
        await open_access(write(tmp_path, {"exec": {"command": str(tmp_path / "nowhere")}})).token()


def test_client_certificates_as_files_and_as_data(
    tmp_path: Path, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
):
    cert, key = certificate
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    data = {
        "client-certificate-data": base64.b64encode(cert.read_bytes()).decode(),
        "client-key-data": base64.b64encode(key.read_bytes()).decode(),
    }
    authority = {"certificate-authority": str(cert)}
    for user in (data, {"client-certificate": str(cert), "client-key": str(key)}):
        found = open_access(write(tmp_path, user, **authority))
        assert found.tls is not None and found.tls.verify_mode.name == "CERT_REQUIRED"
    assert list((tmp_path / "temporary").iterdir()) == []
    unchecked = open_access(write(tmp_path, data, **{"insecure-skip-tls-verify": True}))
    assert unchecked.tls is not None and unchecked.tls.verify_mode.name == "CERT_NONE"


def test_a_key_on_disk_is_its_owners_alone(tmp_path: Path, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch):
    import ssl

    modes: list[int] = []
    load = ssl.SSLContext.load_cert_chain

    def spy(self: ssl.SSLContext, file: str) -> None:
        modes.append(stat.S_IMODE(Path(file).stat().st_mode))
        load(self, file)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", spy)
    cert, key = certificate
    open_access(write(tmp_path, {"client-certificate": str(cert), "client-key": str(key)}))
    assert modes == [0o600]


def test_keys_are_not_sent_without_tls_off_this_machine():
    with pytest.raises(ConfigurationError, match="TLS"):
        Access("http://10.0.0.1:8080", None, UserEntry())
    assert Access("http://127.0.0.1:8080/", None, UserEntry()).server == "http://127.0.0.1:8080"
    with pytest.raises(ConfigurationError, match="URL"):
        Access("nonsense", None, UserEntry())


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ConfigurationError, match="nowhere"):
        open_access(KubernetesConfig(kubeconfig=str(tmp_path / "nowhere")))
    config = write(tmp_path, {})
    with pytest.raises(ConfigurationError, match="no context 'x'"):
        open_access(KubernetesConfig(kubeconfig=config.kubeconfig, context="x"))
    (tmp_path / "broken").write_text("a: [")
    with pytest.raises(ConfigurationError, match="not a kubeconfig"):
        open_access(KubernetesConfig(kubeconfig=str(tmp_path / "broken")))
    bad = {"client-certificate-data": base64.b64encode(b"secret-junk").decode(), "client-key-data": "c2VjcmV0"}
    with pytest.raises(ConfigurationError, match="certificates") as caught:
        open_access(write(tmp_path, bad))
    assert "secret-junk" not in str(caught.value)
    monkeypatch.setattr(module, "SERVICE_ACCOUNT", tmp_path / "none")
    with pytest.raises(ConfigurationError, match="no pod"):
        open_access(KubernetesConfig())


async def test_a_pods_own_service_account(tmp_path: Path, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "token").write_text("mounted")
    (tmp_path / "ca.crt").write_bytes(certificate[0].read_bytes())
    monkeypatch.setattr(module, "SERVICE_ACCOUNT", tmp_path)
    found = open_access(KubernetesConfig())
    assert (await found.token(), found.server) == ("mounted", "https://kubernetes.default.svc")
