"""Cases of messages and tokens, on real renderers with small models' files."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from rendering_models import GLM_MARKS, joined, read_turn, record, write_model

from whippletree.rendering import ChatRenderer, RenderingConfig, load_renderer, selfcheck
from whippletree.types import Message, ParsedMessage, ToolCall, ToolSpec

BASH = ToolSpec(name="bash")
TOOLS = [BASH, ToolSpec(name="ls"), ToolSpec(name="edit"), ToolSpec(name="write_file")]
USER = [Message(role="user", content="U1")]


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., ChatRenderer]:
    """renderer(template, policy=...): a model with that chat template."""
    root = tmp_path_factory.mktemp("models")

    @cache
    def load(template: str, **settings: object) -> ChatRenderer:
        observed = template == "observed"
        ends = ["<|endoftext|>", "<|user|>", "<|observation|>"] if observed else ["<|endoftext|>"]
        directory = write_model(root / template, template, marks=GLM_MARKS if observed else (), ends=ends)
        loaded = load_renderer(directory, RenderingConfig(**settings))  # type: ignore[arg-type]
        assert isinstance(loaded, ChatRenderer)
        return loaded

    return load


def sent_back(turn: ParsedMessage) -> Message:
    """The turn as a faithful harness sends it back."""
    return Message(role="assistant", content=turn.content, reasoning=turn.reasoning, tool_calls=turn.tool_calls)


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def test_A05_a_call_cut_by_the_limit_keeps_its_raw_arguments(renderer: Callable[..., ChatRenderer]) -> None:
    loaded = renderer("thinking")
    arguments = '{"path":"a.txt","content":"hel'
    sampled = loaded.codec.encode('<tool_call>\n{"name": "write_file", "arguments": ' + arguments)
    message = read_turn(loaded, sampled, TOOLS, "length")
    assert [(call.name, call.arguments) for call in message.tool_calls] == [("write_file", arguments)]
    assert message.finish_reason == "length"
    assert message.malformed


def test_A18_an_absent_content_is_never_rendered_as_none(renderer: Callable[..., ChatRenderer]) -> None:
    """Dialects read null as ""; what is shown here is that no template then writes None."""
    messages = [
        Message(role="user", content="check metrics"),
        Message(role="assistant", tool_calls=(ToolCall(id="c1", name="bash", arguments="{}"),)),
        Message(role="tool", content="ok", tool_call_id="c1"),
    ]
    for template in ("thinking", "compact", "observed"):
        assert "None" not in renderer(template).decode(renderer(template).render(messages, [BASH]))


def test_A19_a_turn_of_nothing_but_a_call_is_rendered_and_so_is_its_result(renderer: Callable[..., ChatRenderer]) -> None:
    messages = [
        Message(role="user", content="x"),
        Message(role="assistant", tool_calls=(ToolCall(id="t1", name="ls", arguments="{}"),)),
        Message(role="tool", content="a", tool_call_id="t1"),
    ]
    text = renderer("thinking").text(messages, TOOLS)
    assert "<|im_start|>assistant\n" + hermes("ls", "{}") + "<|im_end|>\n" in text
    assert text.endswith("<tool_response>\na\n</tool_response><|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize("pieces", ["whole", "token by token"])
def test_A28_thinking_and_a_call_are_read_without_markup_in_the_content(
    renderer: Callable[..., ChatRenderer], pieces: str
) -> None:
    loaded = renderer("thinking")
    sampled = loaded.codec.encode('<think>look</think><tool_call>{"name":"ls","arguments":{}}</tool_call>')
    parser = loaded.parser(TOOLS)
    parts = [sampled] if pieces == "whole" else [[index] for index in sampled]
    deltas = [delta for part in parts for delta in parser.feed(part)]
    rest, message = parser.finish("stop")
    assert not any(delta.content for delta in deltas + rest)
    assert (message.content, message.reasoning) == ("", "look")
    assert [(call.name, call.arguments) for call in message.tool_calls] == [("ls", "{}")]
    kinds = ["reasoning" if delta.reasoning else "call" for delta in deltas + rest]
    assert kinds == sorted(kinds, reverse=True)


def test_A45_several_system_messages_and_late_ones_are_rendered(renderer: Callable[..., ChatRenderer]) -> None:
    """developer is system in the internal form; a template that takes one system message at the start is given one."""
    words = ["test", "more", "hi", "late"]
    late = [
        Message(role="system", content="test"),
        Message(role="system", content="more"),
        Message(role="user", content="hi"),
        Message(role="assistant", content="a"),
        Message(role="system", content="late"),
    ]
    for template in ("strict", "thinking"):
        text = renderer(template).text(late, [])
        places = [text.find(word) for word in words]
        assert min(places) >= 0
        assert places == sorted(places)
    assert renderer("strict").text(late, []).startswith("<|im_start|>system\ntest\n\nmore<|im_end|>\n")


def test_B11_respelled_arguments_keep_the_captured_tokens(renderer: Callable[..., ChatRenderer]) -> None:
    """The gateway recognises the turn by parsed value and says so in `Recorded.messages`; `keep` then goes on from its ids.
    `exact` does where the template writes the same text, and else starts anew: it never feeds one text and records another."""
    sampled_text = hermes("edit", '{"path": "a.py", "edits": []}') + "<|im_end|>"
    result = Message(role="tool", content="done", tool_call_id="c")

    def bridged(policy: str, arguments: str) -> list[int] | None:
        loaded = renderer("thinking", policy=policy)
        prompt, sampled = loaded.render(USER, TOOLS), loaded.codec.encode(sampled_text)
        echoed = Message(role="assistant", tool_calls=(ToolCall(id="c", name="edit", arguments=arguments),))
        recorded = record(loaded, prompt, sampled, 2)
        rest = loaded.bridge(recorded, [*USER, echoed, result], TOOLS)
        if rest is not None:
            assert joined(recorded, rest)[: len(prompt + sampled)] == prompt + sampled
            assert loaded.decode(joined(recorded, rest)).count('{"path": "a.py", "edits": []}') == 1
        return rest

    assert bridged("keep", '{"edits":[],"path":"a.py"}') is not None
    assert bridged("exact", '{"path":"a.py","edits":[]}') is not None
    assert bridged("exact", '{"edits":[],"path":"a.py"}') is None
    assert bridged("exact", '{"path":"b.py","edits":[]}') is None


def test_B12_dropped_thinking_is_a_setting_and_doubles_no_token(renderer: Callable[..., ChatRenderer]) -> None:
    exact, keep = renderer("thinking"), renderer("thinking", policy="keep")
    prompt, sampled = exact.render(USER, []), exact.codec.encode("<think>t1</think>a1<|im_end|>")
    turn = sent_back(read_turn(exact, sampled, []))
    messages = [*USER, turn, Message(role="user", content="U2")]
    recorded = record(exact, prompt, sampled, 2)
    assert exact.bridge(recorded, messages, []) is None
    anew = exact.decode(exact.render(messages, []))
    assert (anew.count("a1"), anew.count("t1")) == (1, 0)
    rest = keep.bridge(recorded, messages, [])
    assert rest is not None
    kept = keep.decode(joined(recorded, rest))
    assert (kept.count("a1"), kept.count("t1"), kept.count("U2")) == (1, 1, 1)


@pytest.mark.parametrize("policy", ["exact", "keep"])
def test_B13_the_separator_after_the_end_token_is_there_in_every_turn(
    renderer: Callable[..., ChatRenderer], policy: str
) -> None:
    loaded = renderer("thinking", policy=policy)
    messages, prompt = list(USER), loaded.render(USER, TOOLS)
    for turn in range(4):
        sampled = loaded.codec.encode(hermes("bash", f'{{"command": "cat {turn}"}}') + "<|im_end|>")
        message = sent_back(read_turn(loaded, sampled, TOOLS))
        messages += [message, Message(role="tool", content=f"r{turn}", tool_call_id=message.tool_calls[0].id)]
        recorded = record(loaded, prompt, sampled, len(messages) - 1)
        rest = loaded.bridge(recorded, messages, TOOLS)
        assert rest is not None
        assert loaded.decode(rest).startswith("\n<|im_start|>user\n<tool_response>")
        prompt = joined(recorded, rest)
        assert prompt == loaded.render(messages, TOOLS)
    assert selfcheck(loaded) == []


@pytest.mark.parametrize("policy", ["exact", "keep"])
def test_B14_results_of_parallel_calls_are_one_turn(renderer: Callable[..., ChatRenderer], policy: str) -> None:
    loaded = renderer("thinking", policy=policy)
    calls = [hermes("bash", f'{{"command": "cat {name}.py"}}') for name in "ab"]
    prompt, sampled = loaded.render(USER, TOOLS), loaded.codec.encode("\n".join(calls) + "<|im_end|>")
    message = sent_back(read_turn(loaded, sampled, TOOLS))
    results = [
        Message(role="tool", content=f"contents of {name}.py", tool_call_id=call.id)
        for name, call in zip("ab", message.tool_calls, strict=True)
    ]
    recorded = record(loaded, prompt, sampled, 2)
    rest = loaded.bridge(recorded, [*USER, message, *results], TOOLS)
    assert rest is not None
    text = loaded.decode(rest)
    assert (text.count("<|im_start|>user"), text.count("<tool_response>")) == (1, 2)
    assert joined(recorded, rest) == loaded.render([*USER, message, *results], TOOLS)


@pytest.mark.parametrize("policy", ["exact", "keep"])
def test_B15_a_stop_token_that_opens_the_next_turn_is_there_once(renderer: Callable[..., ChatRenderer], policy: str) -> None:
    loaded = renderer("observed", policy=policy)
    observation = loaded.codec.token_id("<|observation|>")
    call = '<tool_call>{"name": "bash", "arguments": {}}</tool_call>'
    prompt, sampled = loaded.render(USER, TOOLS), loaded.codec.encode("\n" + call + "<|observation|>")
    assert sampled[-1] == observation
    message = sent_back(read_turn(loaded, sampled, TOOLS))
    recorded = record(loaded, prompt, sampled, 2)
    messages = [*USER, message, Message(role="tool", content="ok", tool_call_id=message.tool_calls[0].id)]
    rest = loaded.bridge(recorded, messages, TOOLS)
    assert rest is not None
    assert joined(recorded, rest).count(observation) == 1
    assert observation not in rest  # it was sampled, so it is trained once, as a sampled token


def test_B16_what_was_sampled_is_never_tokenised_again(renderer: Callable[..., ChatRenderer]) -> None:
    """Here lengths cannot differ: the bridge gives new ids only, so ids, mask and logprobs of the turn stay as recorded.
    (The check that names rollout and turn is that of samples.)"""
    loaded = renderer("thinking")
    spelled = [index for letter in "submit" for index in loaded.codec.encode(letter)]
    call = loaded.codec.encode("\n" + hermes("bash", "{}") + "<|im_end|>")
    prompt, sampled = loaded.render(USER, TOOLS), [*spelled, *call]
    message = sent_back(read_turn(loaded, sampled, TOOLS))
    recorded = record(loaded, prompt, sampled, 2)
    messages = [*USER, message, Message(role="tool", content="ok", tool_call_id=message.tool_calls[0].id)]
    rest = loaded.bridge(recorded, messages, TOOLS)
    assert rest is not None
    assert len(loaded.codec.encode(loaded.decode(sampled))) < len(sampled)
    ids = joined(recorded, rest)
    mask = [False] * len(prompt) + [True] * len(sampled) + [False] * len(rest)
    assert len(ids) == len(mask)
    assert [index for index, trained in zip(ids, mask, strict=True) if trained] == sampled


@pytest.mark.parametrize("policy", ["exact", "keep"])
def test_B32_an_end_that_was_not_sampled_is_part_of_the_next_prompt(renderer: Callable[..., ChatRenderer], policy: str) -> None:
    loaded = renderer("thinking", policy=policy)
    end = loaded.codec.token_id("<|im_end|>")
    prompt, sampled = loaded.render(USER, []), loaded.codec.encode("cut he")
    message = sent_back(read_turn(loaded, sampled, [], "length"))
    recorded = record(loaded, prompt, sampled, 2)
    rest = loaded.bridge(recorded, [*USER, message, Message(role="user", content="on")], [])
    assert rest is not None
    assert rest[0] == end
    assert end not in recorded.sampled.tolist()


def test_B33_only_sampled_ids_are_the_turns_own(renderer: Callable[..., ChatRenderer]) -> None:
    loaded = renderer("thinking")
    prompt, sampled = loaded.render(USER, []), loaded.codec.encode("hello<|im_end|>")
    message = sent_back(read_turn(loaded, sampled, []))
    recorded = record(loaded, prompt, sampled, 2)
    rest = loaded.bridge(recorded, [*USER, message, Message(role="user", content="on")], [])
    assert rest is not None
    assert loaded.decode(prompt).endswith("<|im_start|>assistant\n")
    assert loaded.decode(recorded.sampled.tolist()) == "hello<|im_end|>"
    assert loaded.decode(rest).startswith("\n<|im_start|>user")
