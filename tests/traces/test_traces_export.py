"""A trace as text, with a real renderer."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from whippletree.protocols import Recorded
from whippletree.rendering import ChatRenderer, RenderingConfig, load_renderer
from whippletree.traces import TraceText, describe, explain
from whippletree.types import Message, ToolSpec


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> ChatRenderer:
    """One token per byte, and the marks of the `tiny` template."""
    directory = tmp_path_factory.mktemp("model")
    alphabet = {character: number for number, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(alphabet, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(mark, special=True) for mark in ("<|im_start|>", "<|im_end|>")])
    tokenizer.save(str(directory / "tokenizer.json"))
    loaded = load_renderer(directory, RenderingConfig(template="tiny"))
    assert isinstance(loaded, ChatRenderer)
    return loaded


@pytest.fixture
def played(recorder: Any, renderer: ChatRenderer) -> Any:
    """Two calls of a conversation and one that failed."""
    messages = [Message(role="user", content="hé")]
    first = renderer.render(messages, [ToolSpec(name="bash")])
    end = renderer.stop_token_ids[0]
    sampled = [*renderer.codec.encode("ok\x1b[31m"), end]
    recorder.call(first, sampled)
    messages += [Message(role="assistant", content="ok\x1b[31m"), Message(role="user", content="on")]
    known = Recorded(prompt=np.array(first), sampled=np.array(sampled), text=renderer.to_bytes(first + sampled), messages=2)
    rest = renderer.bridge(known, messages, [ToolSpec(name="bash")])
    assert rest is not None
    second = first + sampled + rest
    recorder.call(
        second, [*renderer.codec.encode("é"), end], parent=0, malformed="the call has no </tool_call>", delivered=False
    )
    recorder.failed()
    return recorder


def test_described_pieces_are_the_prompt_and_the_reply(played: Any, renderer: ChatRenderer) -> None:
    described = describe(played.trace(), renderer)
    first, second, failed = described.calls
    ids = [*first.new_ids, *(token.id for token in first.sampled), *second.new_ids]
    assert ids == played.prompts[1]
    assert first.new_text.startswith("<|im_start|>tools\nbash<|im_end|>\n<|im_start|>user\nhé")
    assert (second.parent, second.excluded, second.sampled_text) == ("c0", "undelivered", "é<|im_end|>")
    assert [token.text for token in second.sampled] == ["\ufffd", "\ufffd", "<|im_end|>"]
    assert [token.version for token in second.sampled] == [1, 1, 1]
    assert second.sampled[0].logprob == pytest.approx(-0.501)
    assert (failed.error, failed.excluded, failed.new_ids) == ("engine died", "no payload", ())
    assert described.funnel.trained == 1


def test_a_description_survives_json(played: Any, renderer: ChatRenderer) -> None:
    described = describe(played.trace(), renderer)
    assert msgspec.json.decode(msgspec.json.encode(described), type=TraceText) == described


def test_explain_reads_as_a_conversation(played: Any, renderer: ChatRenderer) -> None:
    lines = explain(played.trace(), renderer).split("\n")
    assert lines[0].startswith("call 0 c0 [main]: new root (first), ")
    assert "  > hé" not in lines
    assert "  > hé<|im_end|>" in lines
    assert "  malformed: the call has no </tool_call>" in lines
    assert any("continues c0" in line and "not trained: undelivered" in line for line in lines)
    assert "  error: engine died" in lines
    assert lines[-4].startswith("3 calls: 2 captured, 1 delivered, 1 trained in 1 samples")
    assert lines[-3:] == ["roles: main 3", "prefix breaks: first 1", "left out: undelivered 1, no payload 1"]


def test_explain_can_show_every_token(played: Any, renderer: ChatRenderer) -> None:
    text = explain(played.trace(), renderer, tokens=True)
    assert f"{played.sampled[1][-1]:>7}  -0.5210 v1 '<|im_end|>'" in text


def test_control_characters_are_escaped(played: Any, renderer: ChatRenderer) -> None:
    text = explain(played.trace(), renderer)
    assert "\x1b" not in text
    assert "ok\\x1b[31m" in text


def test_an_empty_trace_says_why(recorder: Any, renderer: ChatRenderer) -> None:
    assert "no model request reached the gateway" in explain(recorder.trace(), renderer)
