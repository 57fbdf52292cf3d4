"""Recorded exchanges of harnesses, for tests that replay them. WHIPPLETREE_RECORDINGS names a folder with more of them."""

import gzip
import json
import os
import re
from pathlib import Path

from readers import read_stream, read_whole

from whippletree.gateway.dialects import Target
from whippletree.gateway.dialects.registry import DIALECTS
from whippletree.gateway.lineage import normal_form

FOLDERS = [Path(__file__).parent / "recordings", *map(Path, filter(None, [os.environ.get("WHIPPLETREE_RECORDINGS")]))]
ENDS = {
    "chat": b"data: [DONE]",
    "gemini": b'"finishReason"',
    "messages": b"event: message_stop",
    "responses": b"event: response.completed",
}


ADDRESSES = {
    "chat": "/chat/completions",
    "gemini": "GenerateContent",
    "messages": "/v1/messages$",
    "responses": "/responses$",
}


def exchanges(path, part):
    """Exchanges of one file whose address has the pattern `part` in it."""
    with gzip.open(path, "rt") as lines:
        return [one for one in map(json.loads, lines) if one["body"] and re.search(part, str(one["path"]))]


def files(dialect):
    """Name → exchanges, of every recording that has a request of this dialect."""
    found = {path.name: exchanges(path, ADDRESSES[dialect]) for folder in FOLDERS for path in sorted(folder.glob("*.jsonl.gz"))}
    return {name: recorded for name, recorded in found.items() if recorded}


def body_of(exchange):
    """The bytes of a request."""
    return json.dumps(exchange["body"]).encode()


def target_of(exchange):
    """What the address of a recorded Gemini request says."""
    model = str(exchange["path"]).rpartition("models/")[2].partition(":")[0]
    return Target(model=model, stream=True) if ":" in str(exchange["path"]) else Target()


def parse(dialect, exchange):
    """A recorded request as the gateway reads it."""
    return DIALECTS[dialect].parse(body_of(exchange), target_of(exchange))


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


def echoes(dialect, recorded):
    """Each sampled turn with the message that stands in its place in the first request that goes on from it."""
    for place, earlier in enumerate(recorded):
        turn, before = turn_of(dialect, earlier), list(map(normal_form, parse(dialect, earlier).messages))
        if turn is None or not (turn.content.strip() or turn.tool_calls):
            continue
        for later in recorded[place + 1 :]:
            messages, size = parse(dialect, later).messages, len(before)
            if (
                len(messages) > size
                and list(map(normal_form, messages[:size])) == before
                and messages[size].role == "assistant"
            ):
                yield turn, messages[size]
                break
