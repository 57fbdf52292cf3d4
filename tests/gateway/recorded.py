"""Recorded exchanges of harnesses, for tests that replay them. WHIPPLETREE_RECORDINGS names a folder with more of them."""

import gzip
import json
import os
import re
from pathlib import Path

from readers import read_stream, read_whole

from whippletree.gateway.dialects import Target

FOLDERS = [Path(__file__).parent / "recordings", *map(Path, filter(None, [os.environ.get("WHIPPLETREE_RECORDINGS")]))]
ENDS = {
    "chat": b"data: [DONE]",
    "gemini": b'"finishReason"',
    "messages": b"event: message_stop",
    "responses": b"event: response.completed",
}


def exchanges(path, part):
    """Exchanges of one file whose address has the pattern `part` in it."""
    with gzip.open(path, "rt") as lines:
        return [one for one in map(json.loads, lines) if one["body"] and re.search(part, str(one["path"]))]


def files(part):
    """Name → exchanges, of every recording that has such an address."""
    found = {path.name: exchanges(path, part) for folder in FOLDERS for path in sorted(folder.glob("*.jsonl.gz"))}
    return {name: recorded for name, recorded in found.items() if recorded}


def body_of(exchange):
    """The bytes of a request."""
    return json.dumps(exchange["body"]).encode()


def target_of(exchange):
    """What the address of a recorded Gemini request says."""
    model = str(exchange["path"]).rpartition("models/")[2].partition(":")[0]
    return Target(model=model, stream=True) if ":" in str(exchange["path"]) else Target()


def turn_of(dialect, exchange):
    """The turn that the harness got, None where it got none to its end."""
    response = exchange["response"]
    if exchange["status"] != 200 or not response:
        return None
    if isinstance(response, dict):
        if dialect == "chat" and "choices" not in response:
            return None
        return read_whole(dialect, json.dumps(response).encode()).message
    data = response.encode()
    return read_stream(dialect, data).message if ENDS[dialect] in data else None
