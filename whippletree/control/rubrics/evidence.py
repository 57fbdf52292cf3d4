"""What a judge is shown of an attempt, read from the run's record.

Invariants (tests/control/test_rubric_evidence.py):
- what the model thought is in nothing that is shown, nor are system prompts, nor what sub-agents and side calls said;
- nothing outside the attempt's artifacts is read; a file that is not there is said to be missing, and stops nothing;
- each part is within the rubric's limit of characters, the conversation as a whole, which loses its middle.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import msgspec

from whippletree.control.rubrics.config import RubricConfig
from whippletree.control.rubrics.prompt import Evidence, Part, shortened, visible
from whippletree.errors import AlignmentError, VerifierError
from whippletree.protocols import Store
from whippletree.tasks.artifacts import Manifest
from whippletree.traces import assign_roles, read_messages, read_reply
from whippletree.types import Attempt, Call, Message, ParsedMessage, VerifierResult

MISSING = "(it is not there)"
MOST_BYTES = 4 << 20  # of one file
MESSAGE_SHARE = 4  # one message of a conversation takes a quarter of the limit at most


def evidence_of(rubric: RubricConfig, store: Store, attempt: Attempt, instruction: str, artifacts: Path) -> Evidence:
    """What this rubric's judge sees of a finished attempt. `artifacts`: the directory with what was copied out of its sandbox.

    Raises StoreError, and VerifierError where its conversation is gone or cannot be read.
    """
    parts: list[Part] = []
    if "transcript" in rubric.sees or "answer" in rubric.sees:
        talk = conversation(store, attempt)
        if "transcript" in rubric.sees:
            parts += _within(talk, rubric.characters)
        if "answer" in rubric.sees:
            last = next((part.text for part in reversed(talk) if part.title == "assistant"), "(it said nothing)")
            parts.append(Part(title="last message", text=shortened(last, rubric.characters)))
    result = attempt.result or VerifierResult(reward=None)
    if "verifier" in rubric.sees:
        scores = "".join(f"{name} = {value:g}\n" for name, value in sorted(result.scores.items()))
        told = visible(f"{result.output}\n{scores}".strip())
        parts.append(Part(title="output and scores of the tests", text=shortened(told, rubric.characters)))
    for name in rubric.files:
        text = visible(_file(artifacts, name))
        parts.append(Part(title=f"file {visible(name)}", text=shortened(text, rubric.characters)))
    shown = visible(instruction) if "instruction" in rubric.sees else ""
    return Evidence(instruction=shortened(shown, rubric.characters), parts=tuple(parts))


def conversation(store: Store, attempt: Attempt) -> list[Part]:
    """The main conversation, each message once: what was new in a request, then the reply."""
    calls = store.calls(attempt.rollout_id, attempt.attempt)
    roles = assign_roles(calls, {call.call_id: call.parent_call_id for call in calls})
    return [part for call in calls if roles[call.call_id].role == "main" for part in _of_call(store, call)]


def _of_call(store: Store, call: Call) -> list[Part]:
    payload = store.payload(call)
    try:
        sent = read_messages(call.call_id, payload.messages_json)
        said = read_reply(call.call_id, payload.reply_json)
    except AlignmentError as error:
        raise VerifierError(error.cause, "was the store edited by hand?") from error
    shown = [Part(title=message.role, text=_text(message)) for message in sent if message.role != "system"]
    return [*shown, *([Part(title="assistant", text=_text(said))] if payload.reply_json else [])]


def _text(message: Message | ParsedMessage) -> str:
    parts = [message.content] if message.content else []
    parts += [f"{call.name} {call.arguments}" for call in message.tool_calls]
    return visible("\n".join(parts))


def _within(talk: Sequence[Part], limit: int) -> list[Part]:
    """The beginning and the end of a conversation, within `limit` characters of text."""
    parts = [Part(title=part.title, text=shortened(part.text, max(1, limit // MESSAGE_SHARE))) for part in talk]
    sizes = [len(part.text) for part in parts]
    head = tail = room = 0
    while head + tail < len(parts):
        at_end = tail <= head
        size = sizes[len(parts) - 1 - tail] if at_end else sizes[head]
        if room + size > limit:
            break
        room += size
        head, tail = (head, tail + 1) if at_end else (head + 1, tail)
    left = len(parts) - head - tail
    gap = [Part(title="note", text=f"({left} messages are left out here)")] if left else []
    return [*parts[:head], *gap, *parts[len(parts) - tail :]]


def _file(artifacts: Path, name: str) -> str:
    """The text of a file of the sandbox, as it was copied out; of a task's steps, the last that had it."""
    wanted = PurePosixPath(name)
    whole = artifacts / "manifest.json"  # of a task without steps, whose artifacts may hold files of this name
    manifests = [whole] if whole.is_file() else sorted(artifacts.glob("*/manifest.json"), key=lambda path: path.stat().st_mtime)
    for manifest in reversed(manifests):
        for entry in msgspec.json.decode(manifest.read_bytes(), type=Manifest).artifacts:
            if wanted.is_relative_to(entry.source):
                path = manifest.parent / entry.path / wanted.relative_to(entry.source)
                if path.is_file() and path.resolve().is_relative_to(artifacts.resolve()):
                    with path.open("rb") as file:
                        return file.read(MOST_BYTES).decode("utf-8", "replace")
    return MISSING
