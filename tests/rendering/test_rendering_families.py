"""Families of the `renderers` package, on a small tokenizer that has their special tokens."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rendering_models import assert_joined, joined, read_turn, record

from whippletree.errors import ConfigurationError, RequestError
from whippletree.protocols import Renderer
from whippletree.rendering import RenderingConfig, load_renderer, selfcheck
from whippletree.types import Message, ToolCall, ToolSpec

pytest.importorskip("renderers")
from whippletree.rendering.families import FamilyRenderer, model_name
from whippletree.rendering.family_parsing import FamilyParser

FAMILIES = {"qwen3": "qwen3", "glm": "glm-4.5"}
BASH = ToolSpec(name="bash", description="run", parameters={"type": "object", "properties": {"command": {"type": "string"}}})
CALLS = (
    ToolCall(id="a", name="bash", arguments='{"command": "ls"}'),
    ToolCall(id="b", name="bash", arguments='{"command": "pwd"}'),
)
QUESTION = [Message(role="system", content="Be brief."), Message(role="user", content="go")]
RESULTS = [Message(role="tool", content="one", tool_call_id="a"), Message(role="tool", content="two", tool_call_id="b")]
TURNS = {
    "qwen3": "<think>\nhm\n</think>\n\nI look.\n"
    + "\n".join(f'<tool_call>\n{{"name": "bash", "arguments": {call.arguments}}}\n</tool_call>' for call in CALLS)
    + "<|im_end|>",
    "glm": "\n<think>hm</think>\nI look.\n"
    + "".join(
        f"<tool_call>bash\n<arg_key>command</arg_key>\n<arg_value>{word}</arg_value>\n</tool_call>" for word in ("ls", "pwd")
    )
    + "<|observation|>",
}


@pytest.fixture(scope="module")
def family(models_dir: Path) -> Callable[..., FamilyRenderer]:
    @cache
    def load(model: str, **changes: object) -> FamilyRenderer:
        config = RenderingConfig(renderer="renderers", family=FAMILIES[model], **changes)  # type: ignore[arg-type]
        loaded = load_renderer(models_dir / model, config)
        assert isinstance(loaded, FamilyRenderer)
        return loaded

    return load


def test_it_satisfies_the_protocol(family: Callable[..., FamilyRenderer]) -> None:
    assert isinstance(family("qwen3"), Renderer)


@pytest.mark.parametrize("model", FAMILIES)
@pytest.mark.parametrize("policy", ["exact", "keep"])
def test_a_family_has_no_findings(family: Callable[..., FamilyRenderer], model: str, policy: str) -> None:
    assert selfcheck(family(model, policy=policy)) == []


def test_ids_are_those_of_the_familys_own_tokenizer(models_dir: Path, family: Callable[..., FamilyRenderer]) -> None:
    """The same family renderer, on the tokenizer class that the package itself would load."""
    transformers = pytest.importorskip("transformers")
    package = importlib.import_module("renderers")
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(str(models_dir / "qwen3"))
    theirs = package.create_renderer(tokenizer, package.Qwen3RendererConfig())
    messages = [*QUESTION, Message(role="assistant", content="I look.", reasoning="hm", tool_calls=CALLS), *RESULTS]
    plain = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": json.loads(c.arguments)}}
                for c in CALLS
            ],
        },
        {"role": "tool", "content": "one", "tool_call_id": "a"},
        {"role": "tool", "content": "two", "tool_call_id": "b"},
    ]
    function = {"name": BASH.name, "description": BASH.description, "parameters": BASH.parameters}
    tools = [{"type": "function", "function": function}]
    assert family("qwen3").render(messages, [BASH]) == theirs.render_ids(plain, tools=tools, add_generation_prompt=True)


@pytest.mark.parametrize("model", FAMILIES)
def test_a_turn_is_read_bridged_and_equals_the_full_render(family: Callable[..., FamilyRenderer], model: str) -> None:
    loaded = family(model)
    prompt = loaded.render(QUESTION, [BASH])
    sampled = loaded.codec.encode(TURNS[model])
    message = read_turn(loaded, sampled, [BASH])
    assert (message.reasoning, message.content.strip()) == ("hm", "I look.")
    assert [(call.name, json.loads(call.arguments)) for call in message.tool_calls] == [
        ("bash", {"command": "ls"}),
        ("bash", {"command": "pwd"}),
    ]
    assert (message.finish_reason, message.malformed) == ("tool_calls", "")
    turn = Message(role="assistant", content=message.content, reasoning=message.reasoning, tool_calls=message.tool_calls)
    results = [Message(role="tool", content=text, tool_call_id=c.id) for text, c in zip("xy", message.tool_calls, strict=True)]
    messages = [*QUESTION, turn, *results]
    recorded = record(loaded, prompt, sampled, 3)
    rest = loaded.bridge(recorded, messages, [BASH])
    assert rest is not None
    assert loaded.decode(joined(recorded, rest)) == loaded.decode(loaded.render(messages, [BASH]))


def test_the_mark_that_ended_a_turn_and_opens_the_next_is_there_once(family: Callable[..., FamilyRenderer]) -> None:
    for policy in ("exact", "keep"):
        loaded = family("glm", policy=policy)
        sampled = loaded.codec.encode(TURNS["glm"])
        turn = read_turn(loaded, sampled, [BASH])
        recorded = record(loaded, loaded.render(QUESTION, [BASH]), sampled, 3)
        messages = [
            *QUESTION,
            Message(role="assistant", content=turn.content, reasoning=turn.reasoning, tool_calls=turn.tool_calls),
            Message(role="tool", content="one", tool_call_id=turn.tool_calls[0].id),
        ]
        rest = loaded.bridge(recorded, messages, [BASH])
        assert rest is not None
        assert loaded.decode(joined(recorded, rest)).count("<|observation|>") == 1


def test_dropped_thinking_breaks_exact_and_is_kept_by_keep(family: Callable[..., FamilyRenderer]) -> None:
    text = "<think>\nhm\n</think>\n\nhello<|im_end|>"
    messages = [*QUESTION, Message(role="assistant", content="hello", reasoning="hm"), Message(role="user", content="next")]
    loaded = family("qwen3")
    recorded = record(loaded, loaded.render(QUESTION, [BASH]), loaded.codec.encode(text), 3)
    assert loaded.bridge(recorded, messages, [BASH]) is None
    kept = family("qwen3", policy="keep").bridge(recorded, messages, [BASH])
    assert kept is not None
    assert loaded.decode(kept) == "\n<|im_start|>user\nnext<|im_end|>\n<|im_start|>assistant\n"
    assert family("qwen3", policy="engine").bridge(recorded, messages, [BASH]) is None


def test_ids_that_encoding_would_choose_otherwise_are_kept(family: Callable[..., FamilyRenderer]) -> None:
    loaded = family("qwen3")
    spelled = [index for letter in "submit" for index in loaded.codec.encode(letter)]
    sampled = [*loaded.codec.encode("<think>\nhm\n</think>\n\n"), *spelled]
    turn = Message(role="assistant", content="submit", reasoning="hm", tool_calls=CALLS[:1])
    sampled += loaded.codec.encode('\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call><|im_end|>')
    recorded = record(loaded, loaded.render(QUESTION, [BASH]), sampled, 3)
    messages = [*QUESTION, turn, RESULTS[0]]
    rest = loaded.bridge(recorded, messages, [BASH])
    assert rest is not None
    whole = joined(recorded, rest)
    assert whole != loaded.render(messages, [BASH])
    assert loaded.decode(whole) == loaded.decode(loaded.render(messages, [BASH]))


def test_thinking_and_content_stream_and_calls_come_at_the_end(family: Callable[..., FamilyRenderer]) -> None:
    loaded = family("qwen3")
    parser = loaded.parser([BASH])
    early = [
        delta
        for index in loaded.codec.encode("<think>\nfirst this then that\n</think>\n\nI look at")
        for delta in parser.feed([index])
    ]
    assert "".join(delta.reasoning for delta in early) == "first this then that"
    assert "".join(delta.content for delta in early).startswith("I look")
    later = parser.feed(
        loaded.codec.encode(' it.\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call><|im_end|>')
    )
    rest, message = parser.finish("stop")
    assert not any(delta.tool_index >= 0 for delta in later)
    assert [delta.tool_name for delta in rest if delta.tool_index >= 0] == ["bash"]
    assert_joined([*early, *later, *rest], message)


PIECES = st.sampled_from(
    [
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        '{"name": "bash", "arguments": {}}',
        "\n",
        "text",
        "é🙂",
        "<arg_key>",
        "{",
    ]
)


@settings(max_examples=60, deadline=None)
@given(
    pieces=st.lists(PIECES, max_size=8),
    noise=st.lists(st.integers(3, 424), max_size=4),
    model=st.sampled_from([*FAMILIES]),
    tools=st.booleans(),
    reason=st.sampled_from(["stop", "length"]),
)
def test_the_deltas_are_the_message_whatever_was_sampled(
    family: Callable[..., FamilyRenderer], pieces: list[str], noise: list[int], model: str, tools: bool, reason: str
) -> None:
    loaded = family(model)
    read_turn(loaded, [*loaded.codec.encode("".join(pieces)), *noise], [BASH] if tools else [], reason)


def test_a_call_that_the_family_cannot_read_keeps_its_text(family: Callable[..., FamilyRenderer]) -> None:
    loaded = family("qwen3")
    message = read_turn(loaded, loaded.codec.encode("so <tool_call>\n{oops\n</tool_call><|im_end|>"), [BASH])
    assert "{oops" in message.content
    assert "invalid_json" in message.malformed
    cut = read_turn(loaded, loaded.codec.encode('<tool_call>\n{"name": "bash", "argum'), [BASH], "length")
    assert '{"name": "bash", "argum' in cut.content
    assert cut.finish_reason == "length"


def test_a_turn_on_which_the_familys_parser_fails_is_content(family: Callable[..., FamilyRenderer]) -> None:
    loaded = family("qwen3")
    text = "<tool_call>" + "[" * 5000 + "</tool_call>"
    parser = loaded.parser([BASH])
    parser.feed(loaded.codec.encode(text + "<|im_end|>"))
    message = parser.finish("stop")[1]
    assert message.content == text
    assert "cannot be read" in message.malformed


def test_without_offered_tools_marks_are_content(family: Callable[..., FamilyRenderer]) -> None:
    loaded = family("qwen3")
    text = '<tool_call>\n{"name": "bash", "arguments": {}}\n</tool_call>'
    message = read_turn(loaded, loaded.codec.encode(text + "<|im_end|>"), [])
    assert (message.content, message.tool_calls) == (text, ())


def test_a_stop_string_ends_the_content(family: Callable[..., FamilyRenderer]) -> None:
    loaded = family("qwen3")
    message = read_turn(loaded, loaded.codec.encode("one two STOP three"), [BASH], "abort", ["STOP"])
    assert (message.content, message.stop_sequence, message.finish_reason) == ("one two ", "STOP", "stop")


def test_a_forced_call_begins_as_the_family_writes_it(family: Callable[..., FamilyRenderer]) -> None:
    loaded = family("qwen3")
    forced = loaded.forced([BASH], "bash")
    assert loaded.decode(forced).endswith('<tool_call>\n{"name": "bash", "arguments":')
    message = read_turn(loaded, forced + loaded.codec.encode(' {"command": "ls"}}\n</tool_call><|im_end|>'), [BASH])
    assert json.loads(message.tool_calls[0].arguments) == {"command": "ls"}
    assert family("glm").forced([BASH], "bash") == []


def test_a_refusal_is_a_request_error(family: Callable[..., FamilyRenderer]) -> None:
    with pytest.raises(RequestError, match="refuses these messages"):
        family("qwen3").render([], [])


def test_the_family_must_be_known(models_dir: Path, tmp_path: Path) -> None:
    def load(directory: Path, **changes: str) -> None:
        load_renderer(directory, RenderingConfig(renderer="renderers", **changes))

    with pytest.raises(ConfigurationError, match="cannot tell the family"):
        load(models_dir / "qwen3")
    with pytest.raises(ConfigurationError, match=r"family 'qwen4' is unknown.*qwen3"):
        load(models_dir / "qwen3", family="qwen4")
    with pytest.raises(ConfigurationError, match="does not fit"):
        load(models_dir / "tiny", family="kimi-k2")
    with pytest.raises(ConfigurationError, match="not used by"):
        load_renderer(models_dir / "qwen3", RenderingConfig(template="tiny", family="qwen3"))
    with pytest.raises(ConfigurationError, match="does not fit"):
        load_renderer(models_dir / "qwen3", RenderingConfig(renderer="renderers", family="qwen3", options={"loud": True}))
    named = Path(shutil.copytree(models_dir / "qwen3", tmp_path / "models--Qwen--Qwen3-8B" / "snapshots" / "abc"))
    assert isinstance(load_renderer(named, RenderingConfig(renderer="renderers")), FamilyRenderer)


def test_the_models_name_is_read_from_its_directory(tmp_path: Path) -> None:
    hub = tmp_path / "models--Qwen--Qwen3-8B" / "snapshots" / "abc"
    hub.mkdir(parents=True)
    assert model_name(hub) == "Qwen/Qwen3-8B"
    (tmp_path / "Qwen" / "Qwen3-4B").mkdir(parents=True)
    assert model_name(tmp_path / "Qwen" / "Qwen3-4B") == "Qwen/Qwen3-4B"
    (hub / "config.json").write_text('{"_name_or_path": "Qwen/Qwen3-32B"}')
    assert model_name(hub) == "Qwen/Qwen3-32B"
    (hub / "config.json").write_text("{")
    with pytest.raises(ConfigurationError, match=r"config\.json"):
        model_name(hub)


def test_without_the_package_the_extra_is_named(models_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def refuse(name: str, *rest: object) -> ModuleType:
        if name.partition(".")[0] == "renderers":
            raise ModuleNotFoundError("No module named 'renderers'", name="renderers")
        return real(name, *rest)  # type: ignore[arg-type]  # the package argument

    for name in [name for name in sys.modules if name.partition(".")[0] == "renderers"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(ConfigurationError, match=r"whippletree\[renderers\]"):
        load_renderer(models_dir / "qwen3", RenderingConfig(renderer="renderers", family="qwen3"))


def test_reading_again_as_the_turn_grows_costs_little_more_than_reading_it_once() -> None:
    """The ids read over all readings, for a turn of n ids, stay under 20 n; after each id it would be n² / 2."""

    class Reading:
        content, reasoning_content, reasoning_complete, tool_calls = "", None, True, ()

    read: list[int] = []

    def parse(ids: list[int]) -> Reading:
        read.append(len(ids))
        return Reading()

    parser = FamilyParser(parse, None, [], calls=True)  # type: ignore[arg-type]  # the codec is for turns without tools
    for index in range(4000):
        parser.feed([index])
    parser.finish("stop")
    assert sum(read) < 20 * 4000
    assert read[:8] == [1, 2, 3, 4, 5, 6, 7, 8]
