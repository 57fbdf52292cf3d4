"""The bridge: recorded ids stay, and the text is what re-rendering gives (or, under "keep", what follows the turn)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rendering_models import joined, record

from whippletree.protocols import Recorded, Renderer
from whippletree.rendering import ChatRenderer
from whippletree.types import Message, ParsedMessage, ToolSpec

BASH = ToolSpec(name="bash")
CALLING = ["tiny", "thinking", "compact", "normalising", "stripping", "observed"]


class Turn(NamedTuple):
    """A recorded call and what a harness makes of it."""

    recorded: Recorded
    message: Message
    parsed: ParsedMessage


def play(renderer: ChatRenderer, messages: list[Message], sampled: list[int], tools: list[ToolSpec], prompt: list[int]) -> Turn:
    """Sample `sampled` after `prompt`; the harness sends the reply back unchanged."""
    parser = renderer.parser(tools)
    parser.feed(sampled)
    parsed = parser.finish("stop")[1]
    message = Message(role="assistant", content=parsed.content, reasoning=parsed.reasoning, tool_calls=parsed.tool_calls)
    return Turn(record(renderer, prompt, sampled, len(messages) + 1), message, parsed)


def results(turn: Turn, text: str) -> list[Message]:
    """What the harness adds: a result per call, or a remark of the user."""
    calls = [Message(role="tool", content=text, tool_call_id=call.id) for call in turn.message.tool_calls]
    return calls or [Message(role="user", content=text)]


def check_exact(renderer: ChatRenderer, rest: list[int], recorded: Recorded, messages: list[Message]) -> None:
    whole = renderer.decode(joined(recorded, rest))
    assert renderer.codec.canonical(whole) == renderer.codec.canonical(renderer.text(messages, [BASH]))


def check_kept(renderer: ChatRenderer, rest: list[int], recorded: Recorded, messages: list[Message]) -> None:
    """The rest of the turn's end, then the end of what the template renders."""
    added = renderer.decode(rest)
    end, last = renderer.layout.turn_end, recorded.sampled[-1:].tolist()
    if last and last[0] in renderer.stop_token_ids:
        end = end.removeprefix(renderer.decode(last))
    assert added.startswith(end)
    assert renderer.codec.canonical(renderer.text(messages, [BASH])).endswith(renderer.codec.canonical(added[len(end) :]))
    assert added.endswith(renderer.layout.generation_prompt)


contents = st.text(alphabet=st.sampled_from('abc é🙂\n<>{}"'), max_size=12)
arguments = st.dictionaries(st.sampled_from(["command", "path"]), contents, max_size=2)
calls = arguments.map(lambda value: f'{{"name": "bash", "arguments": {json.dumps(value, ensure_ascii=False)}}}')
odd_calls = arguments.map(lambda value: f'{{"name":"bash","arguments":{json.dumps(value, indent=1)}}}')
results_text = st.text(alphabet=st.sampled_from("xyz é\u0301🙂\n<>"), max_size=12)
token_ids = st.lists(st.integers(3, 422), max_size=12)  # any token but the specials, also halves of characters and marks


@settings(max_examples=60)
@given(data=st.data(), model=st.sampled_from(CALLING), rounds=st.integers(1, 3), policy=st.sampled_from(["exact", "keep"]))
def test_what_is_bridged_keeps_the_ids_and_the_text(
    renderer: Callable[..., ChatRenderer], data: st.DataObject, model: str, rounds: int, policy: str
) -> None:
    loaded = renderer(model, policy=policy)
    messages = [Message(role="system", content="s"), Message(role="user", content=data.draw(results_text))]
    prompt = loaded.render(messages, [BASH])
    for _ in range(rounds):
        text = data.draw(contents) + "".join(
            f"<tool_call>{call}</tool_call>" for call in data.draw(st.lists(odd_calls, max_size=2))
        )
        thought = data.draw(st.sampled_from(["", "<think>hm</think>", "<think>\nhm\n</think>\n\n"]))
        end = data.draw(st.sampled_from(["<|im_end|>", "<|endoftext|>", ""]))
        sampled = loaded.codec.encode(thought + text) + data.draw(token_ids) + loaded.codec.encode(end)
        turn = play(loaded, messages, sampled, [BASH], prompt)
        messages = [*messages, turn.message, *results(turn, data.draw(results_text))]
        bridged = loaded.bridge(turn.recorded, messages, [BASH])
        exact = renderer(model).bridge(turn.recorded, messages, [BASH])
        if exact is not None:
            check_exact(loaded, exact, turn.recorded, messages)
            assert bridged == exact
        elif policy == "keep":
            assert bridged is not None
            check_kept(loaded, bridged, turn.recorded, messages)
        else:
            assert bridged is None
        prompt = joined(turn.recorded, bridged) if bridged is not None else loaded.render(messages, [BASH])


@settings(max_examples=60)
@given(content=contents, turns=st.lists(calls, max_size=2), cut=st.booleans(), noise=token_ids, reply=results_text)
def test_tiny_turns_as_the_template_writes_them_always_bridge(
    renderer: Callable[..., ChatRenderer], content: str, turns: list[str], cut: bool, noise: list[int], reply: str
) -> None:
    """Content of any tokens (also half a character before the cut), then calls in the template's form."""
    loaded = renderer("tiny")
    messages = [Message(role="user", content="go")]
    written = loaded.codec.encode(content + "".join(f"<tool_call>{call}</tool_call>" for call in turns))
    sampled = (written if turns else written + noise) + ([] if cut else loaded.codec.encode("<|im_end|>"))
    turn = play(loaded, messages, sampled, [BASH], loaded.render(messages, [BASH]))
    messages = [*messages, turn.message, *results(turn, reply)]
    bridged = loaded.bridge(turn.recorded, messages, [BASH])
    assert bridged is not None
    check_exact(loaded, bridged, turn.recorded, messages)


def exchange(loaded: ChatRenderer, text: str, *, reasoning: bool = True, then: str = "next") -> tuple[Recorded, list[Message]]:
    """Recorded ids of a first call that sampled `text`, and the messages of the second."""
    messages = [Message(role="user", content="go")]
    turn = play(loaded, messages, loaded.codec.encode(text), [BASH], loaded.render(messages, [BASH]))
    message = turn.message
    if not reasoning:
        message = Message(role="assistant", content=message.content, tool_calls=message.tool_calls)
    return turn.recorded, [*messages, message, *(results(turn._replace(message=message), then))]


def test_the_line_break_after_the_end_token_is_added(renderer: Callable[..., ChatRenderer]) -> None:
    loaded = renderer("tiny")
    recorded, messages = exchange(loaded, "hello<|im_end|>")
    bridged = loaded.bridge(recorded, messages, [BASH])
    assert bridged is not None
    assert loaded.decode(bridged) == "\n<|im_start|>user\nnext<|im_end|>\n<|im_start|>assistant\n"


def test_a_turn_cut_inside_a_character_is_extended(renderer: Callable[..., ChatRenderer]) -> None:
    loaded = renderer("tiny")
    messages = [Message(role="user", content="go")]
    half, prompt = loaded.codec.encode("🀄")[:-1], loaded.render(messages, [BASH])
    turn = play(loaded, messages, half, [BASH], prompt)
    assert turn.message.content == "\ufffd"
    messages = [*messages, turn.message, Message(role="user", content="on")]
    bridged = loaded.bridge(turn.recorded, messages, [BASH])
    assert bridged is not None
    assert loaded.decode([*prompt, *half, *bridged]) == loaded.text(messages, [BASH])


def test_ids_that_encoding_would_choose_otherwise_are_kept(renderer: Callable[..., ChatRenderer]) -> None:
    """The sampler spelled a word with other tokens than the tokenizer would: text equal, ids different."""
    loaded = renderer("tiny")
    messages = [Message(role="user", content="go")]
    spelled = [index for letter in "submit" for index in loaded.codec.encode(letter)]
    assert spelled != loaded.codec.encode("submit")
    turn = play(loaded, messages, [*spelled, *loaded.codec.encode("<|im_end|>")], [BASH], loaded.render(messages, [BASH]))
    messages = [*messages, turn.message, Message(role="user", content="on")]
    bridged = loaded.bridge(turn.recorded, messages, [BASH])
    assert bridged is not None
    whole = joined(turn.recorded, bridged)
    assert whole != loaded.render(messages, [BASH])
    assert loaded.decode(whole) == loaded.decode(loaded.render(messages, [BASH]))


def test_dropped_thinking_breaks_exact_and_is_kept_by_keep(renderer: Callable[..., ChatRenderer]) -> None:
    text = "<think>\nhm\n</think>\n\nhello<|im_end|>"
    loaded = renderer("thinking")
    recorded, messages = exchange(loaded, text)
    assert loaded.bridge(recorded, messages, [BASH]) is None
    kept = renderer("thinking", policy="keep").bridge(recorded, messages, [BASH])
    assert kept is not None
    assert loaded.decode(joined(recorded, kept)).endswith(text + "\n<|im_start|>user\nnext<|im_end|>\n<|im_start|>assistant\n")


def test_thinking_before_a_tool_result_bridges_when_the_harness_returns_it(renderer: Callable[..., ChatRenderer]) -> None:
    text = '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call><|im_end|>'
    loaded = renderer("thinking")
    recorded, messages = exchange(loaded, text)
    assert loaded.bridge(recorded, messages, [BASH]) is not None
    recorded, messages = exchange(loaded, text, reasoning=False)
    assert loaded.bridge(recorded, messages, [BASH]) is None
    assert renderer("thinking", policy="keep").bridge(recorded, messages, [BASH]) is not None


def test_respaced_arguments_break_exact_and_are_kept_by_keep(renderer: Callable[..., ChatRenderer]) -> None:
    text = '<tool_call>\n{"name": "bash", "arguments": {"command":"ls"}}\n</tool_call><|im_end|>'
    recorded, messages = exchange(renderer("thinking"), text)
    assert renderer("thinking").bridge(recorded, messages, [BASH]) is None
    assert renderer("thinking", arguments="text").bridge(recorded, messages, [BASH]) is not None
    kept = renderer("thinking", policy="keep").bridge(recorded, messages, [BASH])
    assert kept is not None
    assert '{"command":"ls"}' in renderer("thinking").decode(joined(recorded, kept))


def test_an_edited_turn_breaks_exact(renderer: Callable[..., ChatRenderer]) -> None:
    """Under "keep" the caller vouches for the recorded messages; a place without a turn is refused all the same."""
    recorded, messages = exchange(renderer("tiny"), "hello<|im_end|>")
    messages[1] = Message(role="assistant", content="good day")
    assert renderer("tiny").bridge(recorded, messages, [BASH]) is None
    assert renderer("tiny", policy="keep").bridge(recorded, messages, [BASH]) is not None
    messages[1] = Message(role="user", content="good day")
    assert renderer("tiny", policy="keep").bridge(recorded, messages, [BASH]) is None


def test_the_engine_policy_reuses_nothing(renderer: Callable[..., ChatRenderer]) -> None:
    recorded, messages = exchange(renderer("tiny"), "hello<|im_end|>")
    assert renderer("tiny").bridge(recorded, messages, [BASH]) is not None
    assert renderer("tiny", policy="engine").bridge(recorded, messages, [BASH]) is None


def test_decomposed_characters_in_a_prompt_do_not_break_the_prefix(renderer: Callable[..., ChatRenderer]) -> None:
    """The tokenizer normalises the prompt, so the recorded text differs from the rendered text in form only."""
    loaded = renderer("normalising")
    messages = [Message(role="user", content="cafe\u0301")]
    turn = play(loaded, messages, loaded.codec.encode("ok<|im_end|>"), [BASH], loaded.render(messages, [BASH]))
    messages = [*messages, turn.message, Message(role="user", content="re\u0301sume\u0301")]
    bridged = loaded.bridge(turn.recorded, messages, [BASH])
    assert bridged is not None
    assert loaded.decode(joined(turn.recorded, bridged)).count("\u00e9") == 3


def test_keep_finds_the_turn_behind_a_message_that_the_harness_put_in(renderer: Callable[..., ChatRenderer]) -> None:
    loaded = renderer("thinking", policy="keep")
    recorded, messages = exchange(loaded, "<think>hm</think>hello<|im_end|>")
    messages += [Message(role="assistant", content="(from the harness)"), Message(role="user", content="go on")]
    kept = loaded.bridge(recorded, messages, [BASH])
    assert kept is not None
    assert loaded.decode(kept).count("<|im_start|>") == 4


def test_the_renderer_satisfies_its_protocol(renderer: Callable[..., ChatRenderer]) -> None:
    assert isinstance(renderer("tiny"), Renderer)


@pytest.mark.parametrize("policy", ["exact", "keep"])
def test_a_token_that_ended_the_turn_and_opens_the_next_is_not_written_again(
    renderer: Callable[..., ChatRenderer], policy: str
) -> None:
    loaded = renderer("observed", policy=policy)
    recorded, messages = exchange(loaded, 'I look.\n<tool_call>{"name": "bash", "arguments": {}}</tool_call><|observation|>')
    rest = loaded.bridge(recorded, messages, [BASH])
    assert rest is not None
    assert loaded.decode(rest) == "\n<tool_response>\nnext\n</tool_response><|assistant|>\n"


def test_the_recorded_ids_are_not_decoded(renderer: Callable[..., ChatRenderer], monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = renderer("tiny")
    recorded, messages = exchange(loaded, "hello<|im_end|>")
    asked: list[int] = []
    real = loaded.codec.to_bytes
    monkeypatch.setattr(loaded.codec, "to_bytes", lambda ids: asked.append(len(ids)) or real(ids))
    assert loaded.bridge(recorded, messages, [BASH]) is not None
    assert asked == []


def test_a_template_that_takes_one_system_message_gets_one(renderer: Callable[..., ChatRenderer]) -> None:
    messages = [
        Message(role="system", content="one"),
        Message(role="system", content="two"),
        Message(role="user", content="go"),
    ]
    for policy in ("exact", "keep"):
        loaded = renderer("strict", policy=policy)
        prompt = loaded.render(messages, [])
        assert loaded.decode(prompt).startswith("<|im_start|>system\none\n\ntwo<|im_end|>\n<|im_start|>user\ngo")
        recorded = record(loaded, prompt, loaded.codec.encode("ok<|im_end|>"), 4)
        longer = [*messages, Message(role="assistant", content="ok"), Message(role="system", content="late")]
        rest = loaded.bridge(recorded, longer, [])
        assert rest is not None
        assert loaded.decode(rest) == "\n<|im_start|>user\nlate<|im_end|>\n<|im_start|>assistant\n"
        longer[3] = Message(role="assistant", content="edited")
        assert (loaded.bridge(recorded, longer, []) is not None) == (policy == "keep")
