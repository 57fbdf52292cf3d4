"""Keys: one secret per run, from which every key is derived.

An attempt's key carries its rollout and attempt and a signature, so any gateway worker can check it without shared state:
`wt-<base64url of [rollout_id, attempt]>.<base64url of HMAC-SHA256>`. The control key is another derivation of the same secret.

Invariants (tests/gateway/test_gateway_keys.py):
- what `mint` made, `verify` reads back, for any rollout id; a key that differs in any character is refused;
- no error text contains the key or its signature;
- the secret's file is readable by its owner only, and is made once however many processes ask for it.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hmac
import os
import secrets
from functools import lru_cache
from pathlib import Path

import msgspec

from whippletree.errors import ConfigurationError, RequestError
from whippletree.types import Struct

PREFIX = "wt-"
CONTROL_PREFIX = "wtc-"
SECRET_BYTES = 32
REMEMBERED = 16384  # good keys
SHOWN_ID = 200  # characters of a rollout id in an error
DIGEST = "sha256"


class AttemptKey(Struct):
    """What a key says. Example: AttemptKey(rollout_id="s0003-g02-m5", attempt=1)"""

    rollout_id: str
    attempt: int


def load_secret(path: Path) -> bytes:
    """The run's secret; made (mode 0600) when the file is not there. Raises ConfigurationError when it is damaged."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        text = _create(path)
    except OSError as error:
        raise ConfigurationError(f"cannot read the signing secret {path}: {error.strerror}", "check its owner") from error
    try:
        secret = bytes.fromhex(text.decode("ascii").strip())
    except ValueError:
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise ConfigurationError(f"{path} holds no signing secret", "delete it; keys made with the lost one stop working")
    return secret


def _create(path: Path) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secrets.token_bytes(SECRET_BYTES).hex().encode())
        file.flush()
        os.fsync(file.fileno())
    with contextlib.suppress(FileExistsError):  # another process was first: its secret is the run's
        os.link(draft, path)
    draft.unlink()
    return path.read_bytes()


def mint(secret: bytes, rollout_id: str, attempt: int) -> str:
    """The key that a harness holds for one attempt."""
    payload = _encode(msgspec.json.encode((rollout_id, attempt)))
    return f"{PREFIX}{payload}.{_signature(secret, payload)}"


@lru_cache(maxsize=4)
def control_key(secret: bytes) -> str:
    """The key of the control routes."""
    return CONTROL_PREFIX + _encode(hmac.digest(secret, b"control", DIGEST))


def is_control_key(secret: bytes, key: str) -> bool:
    """True for the control key; takes the same time for any wrong one."""
    return hmac.compare_digest(key.encode("utf-8", "surrogateescape"), control_key(secret).encode())


@lru_cache(maxsize=REMEMBERED)
def verify(secret: bytes, key: str) -> AttemptKey:
    """What the key says. Raises RequestError (401) that says what is wrong with it, without showing it.

    Good keys are remembered (a signature costs as much as parsing a request); a refusal never is.
    """
    advice = "use the key that this attempt was given as its API key"
    replaced = "look whether the harness, or its configuration, replaced the key that it was given; " + advice
    if not key:
        raise _refused("no key was sent, so no rollout is known", advice)
    payload, separator, signature = key.removeprefix(PREFIX).partition(".")
    if not key.startswith(PREFIX) or not separator:
        raise _refused("the key is not a key of this gateway: it matches no rollout", replaced)
    try:
        rollout_id, attempt = _decode(payload)
    except (ValueError, binascii.Error, msgspec.DecodeError):
        raise _refused("the key is damaged: it matches no rollout", replaced) from None
    said = AttemptKey(rollout_id=rollout_id, attempt=attempt)
    if not hmac.compare_digest(signature.encode("utf-8", "surrogateescape"), _signature(secret, payload).encode()):
        whose = f"rollout {said.rollout_id[:SHOWN_ID]!r}, attempt {said.attempt}"
        cause = f"the key for {whose} was not signed by this run: it does not match that rollout"
        raise _refused(cause, "it may belong to another run; " + replaced)
    return said


def _refused(cause: str, next_step: str) -> RequestError:
    return RequestError(cause, next_step, status=401, code="invalid_api_key")


def _signature(secret: bytes, payload: str) -> str:
    return _encode(hmac.digest(secret, b"attempt:" + payload.encode("utf-8", "surrogateescape"), DIGEST))


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decode(payload: str) -> tuple[str, int]:
    padded = payload + "=" * (-len(payload) % 4)
    data = base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True)
    return msgspec.json.decode(data, type=tuple[str, int])
