"""What makes two requests the same one: the fingerprint by which a retry is known.

Invariants (tests/gateway/test_gateway_digest.py):
- equal for a request and its retries, also when a retry asks for another transport or another limit;
- different when any other field differs, in another dialect, or for another model in the path.
"""

from __future__ import annotations

import hashlib

import msgspec

from whippletree.errors import RequestError
from whippletree.gateway.dialects import Dialect, Target

Fields = dict[str, msgspec.Raw]


def fields_of(body: bytes) -> Fields:
    """The fields of a JSON object, unread. Raises RequestError (400)."""
    try:
        return _FIELDS.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"the request body cannot be read: {error}", "send a JSON object") from error


_FIELDS = msgspec.json.Decoder(Fields)


def request_digest(dialect: Dialect, fields: Fields, target: Target) -> str:
    """BLAKE2b over the fields in name order, without transport and limits."""
    digest = hashlib.blake2b(f"{dialect.name}:{target.model}:{target.operation}\n".encode(), digest_size=32)
    for name in sorted(fields):
        if name not in dialect.limits:
            value = memoryview(fields[name])
            digest.update(b"%d:%s=" % (len(value), name.encode("utf-8", "surrogatepass")))
            digest.update(value)
    return digest.hexdigest()
