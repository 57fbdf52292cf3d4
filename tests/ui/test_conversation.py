"""whippletree/ui/conversation.py"""

from __future__ import annotations

from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from recorded_run import EVIL, play, story, train_spec, write_call

from whippletree.store import SqliteStore, open_store
from whippletree.types import VersionSpan
from whippletree.ui.conversation import conversation, printable


def turns(store: SqliteStore, rollout_id: str = "a") -> list[tuple[str, str]]:
    return [(turn.role, turn.text) for turn in conversation(store, store.calls(rollout_id, 1))]


def test_every_message_is_shown_once_in_order(tmp_path: Path):
    with open_store(tmp_path / "store") as store:
        play(store, [train_spec("a")], [story(2, solved=True)], version=3)
        assert turns(store) == [
            ("system", "Work with the bash tool."),
            ("user", "start at amber and submit the code"),
            ("assistant", 'bash {"command":"cat amber"}'),
            ("tool", '{"next": "birch"}'),
            ("assistant", 'bash {"command":"cat birch"}'),
            ("tool", '{"code": "17"}'),
            ("assistant", 'bash {"command":"submit 17"}'),
        ]
        notes = [turn.note for turn in conversation(store, store.calls("a", 1)) if turn.role == "assistant"]
        assert notes == [f"call {number}, policy version 3" for number in range(3)]


def test_a_call_that_spans_versions_or_was_not_delivered_says_so(tmp_path: Path):
    with open_store(tmp_path / "store") as store:
        store.create_rollouts([train_spec("a")]).result()
        (attempt,) = store.claim("w", 1).result()
        call = write_call(store, attempt, story(1, solved=False), 0, 3, 1.0)
        spans = (VersionSpan(start=0, policy_version=3), VersionSpan(start=2, policy_version=4))
        changed = msgspec.structs.replace(call, versions=spans, finish_reason="length", error="cut")
        assert conversation(store, [changed])[-1].note == "call 0, policy versions 3 to 4, ended by length, cut, not delivered"


def test_a_call_on_another_thread_brings_its_own_messages(tmp_path: Path):
    with open_store(tmp_path / "store") as store:
        play(store, [train_spec("a"), train_spec("b")], [story(1, solved=False), story(1, solved=False)], version=0)
        first, second = store.calls("a", 1)[0], store.calls("b", 1)[0]
        other = msgspec.structs.replace(second, index=1, prefix_break="harness_edit")
        found = conversation(store, [first, other])
        assert [turn.role for turn in found] == ["system", "user", "assistant", "note", "system", "user", "assistant"]
        assert found[3].text == "call 1 starts anew: harness edit"


def test_a_payload_that_was_released_leaves_a_note_and_hides_nothing_else(tmp_path: Path):
    with open_store(tmp_path / "store") as store:
        play(store, [train_spec("a"), train_spec("b")], [story(1, solved=False)] * 2, version=0)
        store.release(["a"])
        found = conversation(store, [*store.calls("a", 1), *store.calls("b", 1)])
        assert [turn.role for turn in found[:2]] == ["note", "note"]
        assert "released" in found[0].text
        assert [turn.role for turn in found[2:]] == ["system", "user", "assistant", "tool", "assistant"]


def test_a_call_whose_record_cannot_be_read_leaves_a_note(tmp_path: Path):
    with open_store(tmp_path / "store") as store:
        play(store, [train_spec("a")], [story(1, solved=False)], version=0)
        (call, *_) = store.calls("a", 1)
        read = store.payload
        store.payload = lambda call: msgspec.structs.replace(read(call), messages_json=b"[{")
        assert [turn.role for turn in conversation(store, [call])] == ["note"]


def test_what_a_model_wrote_is_shown_as_escapes(tmp_path: Path):
    with open_store(tmp_path / "store") as store:
        play(store, [train_spec("a")], [story(1, solved=False, text=EVIL)], version=0)
        text = "".join(turn.text for turn in conversation(store, store.calls("a", 1)))
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert r"\x1b]0;owned\x07" in text


@given(st.text(st.characters(codec=None)))
def test_printable_text_holds_nothing_that_cannot_be_seen(text: str):
    shown = printable(text)
    assert all(c.isprintable() or c in "\n\t" for c in shown)
    shown.encode()  # no lone surrogate is left
    if text.isprintable():
        assert shown == text
