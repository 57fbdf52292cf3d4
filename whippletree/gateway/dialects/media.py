"""Images, audio and files of a request: what is kept of them, and the text that stands for them.

Invariants (tests/gateway/test_gateway_media.py):
- the same bytes give the same digest, whether they come as a data address or as bare base64, in either alphabet;
- other bytes or another address give another digest;
- what claims to be base64 and is not is a RequestError (400) that names the place.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from typing import Literal

from whippletree.errors import RequestError
from whippletree.types import Media

Kind = Literal["image", "audio", "file"]
_DATA_ADDRESS = re.compile(r"data:([^;,]*)((?:;[^;,]*)*),(.*)", re.DOTALL)
_URL_SAFE = str.maketrans("-_", "+/")


def from_base64(data: str, media_type: str, place: str) -> Media:
    """Bytes that come as base64, in the standard or the URL alphabet, padded or not. Raises RequestError (400)."""
    text = data.translate(_URL_SAFE).rstrip("=")
    try:
        content = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestError(f"{place} is not base64: {error}", "send the bytes in base64") from error
    return _media(content, media_type, len(data))


def from_address(address: str, media_type: str, place: str, kind: Kind = "file") -> Media:
    """What lies at an address; nothing is fetched. A data address holds its bytes itself. Raises RequestError (400)."""
    match = _DATA_ADDRESS.fullmatch(address)
    if match is None:
        digest = hashlib.sha256(address.encode("utf-8", "surrogatepass")).hexdigest()
        known = kind_of(media_type) if media_type else kind
        return Media(kind=known, media_type=media_type or f"{kind}/*", digest=digest, size=len(address))
    stated, options, data = match.groups()
    if "base64" in options.split(";"):
        return from_base64(data, stated or media_type, place)
    return _media(data.encode("utf-8", "surrogatepass"), stated or media_type or "text/plain", len(data))


def _media(content: bytes, media_type: str, size: int) -> Media:
    media_type = media_type or "application/octet-stream"
    return Media(kind=kind_of(media_type), media_type=media_type, digest=hashlib.sha256(content).hexdigest(), size=size)


def kind_of(media_type: str) -> Kind:
    """What a media type is to us; everything that is neither image nor audio is a file."""
    family = media_type.partition("/")[0]
    return "image" if family == "image" else "audio" if family == "audio" else "file"


def placeholder(media: Media) -> str:
    """The text that stands for it, for models that read text alone."""
    return f"[{media.kind} {media.media_type}]"
