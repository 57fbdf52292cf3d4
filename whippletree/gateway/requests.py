"""What a request says before its body is read: its key, its dialect, its target, its query. Pure, but for the body's read.

Invariants (tests/gateway/test_gateway_requests.py):
- of several keys in one request, the one in the path wins, then the first that looks like ours;
- a path as it is shown or recorded contains no key;
- every path suggests a dialect, so that every error has a form.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Mapping

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from whippletree.errors import RequestError
from whippletree.gateway import keys
from whippletree.gateway.dialects import Dialect
from whippletree.gateway.dialects.registry import DIALECTS

KEY_PREFIX = re.compile(r"^/r/([^/]*)(?=/|$)")
PROXY_PREFIX = re.compile(r"^/proxy/rollout/[^/]+/attempt/[^/]+/mode/[^/]+/[^/]+(?=/|$)")
KEY_LIKE = re.compile(r"\bwtc?-[\w.=-]*")
PATHS = {
    "api": re.compile(r"/api/"),  # whose refusals have one form, that of chat, whatever an id or a header looks like
    "gemini": re.compile(r"/v1(alpha|beta)\w*(/|$)|.*:(generateContent|streamGenerateContent|countTokens)$"),
    "messages": re.compile(r"(/v1)?/messages(/|$)"),
    "responses": re.compile(r"(/v1)?/responses(/|$)"),
    "chat": re.compile(r"(/v1)?/(chat/)?completions(/|$)"),
}
HEADERS = {"messages": ("anthropic-version", "x-api-key"), "gemini": ("x-goog-api-key",)}
SHOWN_PATH = 200  # characters
READ_LIMIT = 120.0  # seconds for a body to arrive
LONGEST_LIMIT = 1e9  # seconds
SWITCH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
CONTROL_WORDS = frozenset(
    (
        *(
            "control",
            "attempts",
            "seal",
            "session",
            "sessions",
            "finish",
            "rollout",
            "rollouts",
            "episodes",
            "reward",
            "rewards",
        ),
        *("verifier", "verify", "evaluate", "submit", "reset", "step", "state", "pause", "resume", "sleep", "wake_up"),
        *("abort_request", "flush_cache", "init_weights", "load_lora_adapter", "update_weights", "update_weights_from_disk"),
    )
)
NEUTRAL_WORDS = frozenset({"api", "v1", "v1beta", ""})  # what may stand before a control word


def presented_keys(request: web.Request) -> list[str]:
    """Every key that the request carries, the path's first."""
    below = KEY_PREFIX.match(request.path)  # not match_info: a path that is not served has a key too
    scheme, _, bearer = request.headers.get("Authorization", "").partition(" ")
    found = (
        below[1] if below else "",
        bearer.strip() if scheme.lower() == "bearer" else "",
        request.headers.get("x-api-key", "").strip(),
        request.headers.get("x-goog-api-key", "").strip(),
        request.query.get("key", ""),
    )
    return [key for key in found if key]


def request_key(request: web.Request) -> str:
    """The key that counts: harnesses send placeholders in one place and the real one in another. "" where there is none."""
    found = presented_keys(request)
    ours = (key for key in found if key.startswith((keys.PREFIX, keys.CONTROL_PREFIX)))
    return next(ours, found[0] if found else "")


def shown(path: str) -> str:
    """The path without its key, for errors and records."""
    return KEY_LIKE.sub("<key>", KEY_PREFIX.sub("/r/<key>", path))[:SHOWN_PATH]


def dialect_of(path: str, headers: Mapping[str, str]) -> Dialect:
    """The dialect that the path suggests, and where it suggests none, the headers: the form of the answer to whatever came."""
    bare = PROXY_PREFIX.sub("", KEY_PREFIX.sub("", path))
    name = next((name for name, pattern in PATHS.items() if pattern.match(bare)), "")
    if not name:
        name = next((name for name, signs in HEADERS.items() if any(sign in headers for sign in signs)), "chat")
    return DIALECTS.get(name, DIALECTS["chat"])


def is_control(path: str) -> bool:
    """Whether the path asks for something that only the trainer may do, here or in servers like this one."""
    for word in KEY_PREFIX.sub("", path).split("/"):
        if word.lower() not in NEUTRAL_WORDS:
            return word.lower() in CONTROL_WORDS
    return False


def seconds(request: web.Request, name: str) -> float | None:
    """A limit from the query, in seconds; None where it is not given. Raises RequestError (400)."""
    text = request.query.get(name)
    if text is None:
        return None
    try:
        limit = float(text)
    except ValueError:
        limit = math.nan
    if not 0.0 <= limit < LONGEST_LIMIT:
        raise RequestError(f"{name} is not a number of seconds", f"for example ?{name}=30")
    return limit


def flag(request: web.Request, name: str, default: bool = False) -> bool:
    """A switch from the query. Raises RequestError (400) for what is none."""
    text = request.query.get(name)
    if text is None:
        return default
    if text.lower() not in SWITCH:
        raise RequestError(f"{name} is neither on nor off", f"for example ?{name}=1")
    return SWITCH[text.lower()]


async def read_body(request: web.Request) -> bytes:
    """The whole body. Raises RequestError (408 when it does not arrive, 400 when it cannot be unpacked) and
    HTTPRequestEntityTooLarge."""
    try:
        async with asyncio.timeout(READ_LIMIT):
            return await request.read()
    except (web.RequestPayloadError, HttpProcessingError) as error:
        raise RequestError(
            f"the request body cannot be read: {type(error).__name__}", "check its encoding and length"
        ) from None
    except TimeoutError:
        cause = f"the request body did not arrive within {READ_LIMIT:g} s"
        raise RequestError(cause, "send it again", status=408, code="request_timeout") from None
