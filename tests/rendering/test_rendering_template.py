"""Chat templates render as transformers renders them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from whippletree.errors import ConfigurationError, RequestError
from whippletree.rendering import ChatRenderer, RenderingConfig, load_renderer
from whippletree.rendering.template import ChatTemplate
from whippletree.types import Message, ToolCall, ToolSpec

TOOLS = [ToolSpec(name="bash", description="runs <a> & é", parameters={"type": "object", "properties": {"command": {}}})]
CALLS = (
    ToolCall(id="c1", name="bash", arguments='{"command":"cat  amber <é> & \'x\'", "n": [1, 2.50]}'),
    ToolCall(id="c2", name="bash", arguments='{"command": "oops'),
)
CONVERSATION = [
    Message(role="system", content="Be brief.\n"),
    Message(role="user", content="  go\n"),
    Message(role="assistant", content="I look.", reasoning="first this", tool_calls=CALLS),
    Message(role="tool", content="birch", tool_call_id="c1"),
    Message(role="tool", content="error", tool_call_id="c2"),
    Message(role="assistant", content="17"),
    Message(role="user", content="and?"),
]
# What the reference is given: the same conversation, written out as an OpenAI client and a server would hand it over.
REFERENCE: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief.\n"},
    {"role": "user", "content": "  go\n"},
    {
        "role": "assistant",
        "content": "I look.",
        "reasoning_content": "first this",
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "bash", "arguments": {"command": "cat  amber <é> & 'x'", "n": [1, 2.5]}},
            },
            {"id": "c2", "type": "function", "function": {"name": "bash", "arguments": '{"command": "oops'}},
        ],
    },
    {"role": "tool", "content": "birch", "tool_call_id": "c1"},
    {"role": "tool", "content": "error", "tool_call_id": "c2"},
    {"role": "assistant", "content": "17"},
    {"role": "user", "content": "and?"},
]


@pytest.mark.parametrize("model", ["thinking", "compact", "opened"])
@pytest.mark.parametrize("tools", [[], TOOLS])
def test_ids_equal_those_of_transformers(
    renderer: Callable[..., ChatRenderer], models_dir: Path, model: str, tools: list[ToolSpec]
) -> None:
    transformers = pytest.importorskip("transformers")
    reference = transformers.PreTrainedTokenizerFast.from_pretrained(str(models_dir / model))
    functions = [
        {"type": "function", "function": {"name": t.name, "description": t.description, "parameters": t.parameters}}
        for t in tools
    ]
    shows_calls = model != "opened"
    ours = CONVERSATION if shows_calls else [m for m in CONVERSATION if not m.tool_calls]
    theirs = REFERENCE if shows_calls else [m for m in REFERENCE if "tool_calls" not in m]
    text = reference.apply_chat_template(theirs, tools=functions or None, add_generation_prompt=True, tokenize=False)
    assert renderer(model).text(ours, tools) == text
    assert renderer(model).render(ours, tools) == reference(text, add_special_tokens=False)["input_ids"]


def test_tiny_is_short_and_keeps_arguments_as_sampled(renderer: Callable[..., ChatRenderer]) -> None:
    assert renderer("tiny").text(CONVERSATION[:5], TOOLS) == (
        "<|im_start|>tools\nbash<|im_end|>\n"
        "<|im_start|>system\nBe brief.\n<|im_end|>\n"
        "<|im_start|>user\n  go\n<|im_end|>\n"
        '<|im_start|>assistant\nI look.<tool_call>{"name": "bash", "arguments": ' + CALLS[0].arguments + "}</tool_call>"
        '<tool_call>{"name": "bash", "arguments": ' + CALLS[1].arguments + "}</tool_call><|im_end|>\n"
        "<|im_start|>tool\nbirch<|im_end|>\n<|im_start|>tool\nerror<|im_end|>\n<|im_start|>assistant\n"
    )


def test_arguments_as_text_reach_a_template_that_takes_strings(renderer: Callable[..., ChatRenderer]) -> None:
    assert CALLS[0].arguments not in renderer("thinking").text(CONVERSATION, TOOLS)
    assert CALLS[0].arguments in renderer("thinking", arguments="text").text(CONVERSATION, TOOLS)


def test_the_date_is_fixed_by_configuration(renderer: Callable[..., ChatRenderer]) -> None:
    user = [Message(role="user", content="hi")]
    assert "Today is 01 January 2026" in renderer("dated").text(user, [])
    assert "Today is 29 February 2028" in renderer("dated", date="2028-02-29").text(user, [])


def test_options_reach_the_template(models_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.jinja"
    path.write_text("{{ 'loud ' if loud }}{{ messages[0].content }}<|im_end|>")
    config = RenderingConfig(template=str(path), options={"loud": True})
    assert (
        load_renderer(models_dir / "tiny", config).decode(
            load_renderer(models_dir / "tiny", config).render([Message(role="user", content="x")], [])
        )
        == "loud x<|im_end|>"
    )


def test_a_refusal_is_a_request_error_with_the_templates_words(renderer: Callable[..., ChatRenderer]) -> None:
    with pytest.raises(RequestError, match="an assistant cannot begin") as caught:
        renderer("compact").render([Message(role="assistant", content="x")], [])
    assert caught.value.status == 400


def test_calls_that_a_template_would_drop_are_refused(renderer: Callable[..., ChatRenderer]) -> None:
    with pytest.raises(RequestError, match="leaves tool calls out"):
        renderer("dated").render(CONVERSATION, TOOLS)


def test_a_lone_surrogate_in_arguments_does_not_break_the_request(renderer: Callable[..., ChatRenderer]) -> None:
    call = ToolCall(id="c", name="bash", arguments='{"command": "\\ud83d"}')
    turn = Message(role="assistant", tool_calls=(call,))
    assert '"command": "?"' in renderer("thinking").text([Message(role="user", content="x"), turn], TOOLS)


def test_a_broken_template_names_the_setting(models_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.jinja").write_text("{% for %}")
    with pytest.raises(ConfigurationError, match="does not compile"):
        load_renderer(models_dir / "tiny", RenderingConfig(template=str(tmp_path / "bad.jinja")))
    with pytest.raises(ConfigurationError, match=r"rendering\.template"):
        load_renderer(models_dir / "tiny", RenderingConfig(template=str(tmp_path / "missing.jinja")))
    with pytest.raises(ConfigurationError, match="has no chat template"):
        load_renderer(models_dir / "tiny", RenderingConfig())
    with pytest.raises(ConfigurationError, match="ISO date"):
        load_renderer(models_dir / "dated", RenderingConfig(date="tomorrow"))


def test_a_template_cannot_reach_python(models_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "evil.jinja").write_text("{{ messages.__class__.__mro__ }}{{ messages.append(1) }}<|im_end|>")
    loaded = load_renderer(models_dir / "tiny", RenderingConfig(template=str(tmp_path / "evil.jinja")))
    with pytest.raises(RequestError, match=r"unsafe|__class__"):
        loaded.render([Message(role="user", content="x")], [])


def test_what_is_remembered_of_tools_changes_no_text(renderer: Callable[..., ChatRenderer], models_dir: Path) -> None:
    used, fresh = renderer("thinking"), load_renderer(models_dir / "thinking")
    assert isinstance(fresh, ChatRenderer)
    changed = [ToolSpec(name="bash", description="runs <a> & é", parameters={"type": "object", "properties": {"other": {}}})]
    for tools in (TOOLS, changed, TOOLS, [*TOOLS, *changed]):
        assert used.text(CONVERSATION, tools) == ChatRenderer.text(fresh, CONVERSATION, tools)
    assert '"other"' in used.text(CONVERSATION, changed)
    assert '"other"' not in used.text(CONVERSATION, TOOLS)


def test_each_style_of_json_is_remembered_by_itself(models_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "styles.jinja"
    styles = ["", "indent=1", "separators=(',', ':')", "sort_keys=true", "ensure_ascii=true"]
    path.write_text(
        "{% for tool in tools %}" + "|".join(f"{{{{ tool | tojson({style}) }}}}" for style in styles) + "{% endfor %}<|im_end|>"
    )
    loaded = load_renderer(models_dir / "tiny", RenderingConfig(template=str(path)))
    tool = {"type": "function", "function": {"name": "bash", "description": "runs <a> & é", "parameters": TOOLS[0].parameters}}
    options: list[dict[str, Any]] = [{}, {"indent": 1}, {"separators": (",", ":")}, {"sort_keys": True}]
    expected = [json.dumps(tool, ensure_ascii=False, **option) for option in options] + [json.dumps(tool)]
    for _ in range(2):
        assert loaded.decode(loaded.render([Message(role="user", content="x")], TOOLS)) == "|".join(expected) + "<|im_end|>"


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("{'items': 1}.items is defined", "True"),
        ("{'a': 1}.b is defined", "False"),
        ("{'a': 1}.b", ""),
        ("loop is defined", "False"),
        ("{'a': {'b': 2}}.a.b", "2"),
        ("' x '.strip() + 'y'.upper()", "xY"),
        ("'{}'.format(4)", "4"),
        ("'{0.__class__}'.format(4)", ""),
        ("'%s' | format(5)", "5"),
    ],
)
def test_the_short_way_to_keys_and_methods_is_the_sandboxes_way(expression: str, text: str) -> None:
    source = "{{ " + expression + " }}"
    source += "{% for x in [7, 8] %}{{ loop.first }}{{ loop.index0 }}{{ loop.cycle(1, 2) }}{{ loop.other }}{% endfor %}"
    short = ChatTemplate(source, "", {}, RenderingConfig()).render([], [], generation_prompt=False)
    assert short == ImmutableSandboxedEnvironment().from_string(source).render() == text + "True01False12"


@pytest.mark.parametrize(
    "expression", ["{'a': 1}.update({'b': 2})", "''.__class__.__mro__", "tools[0]._texts.keys()", "tools[0].clear()"]
)
def test_the_short_way_leads_out_of_no_sandbox(expression: str) -> None:
    template = ChatTemplate("{{ " + expression + " }}", "", {}, RenderingConfig())
    with pytest.raises(RequestError):
        template.render([], TOOLS, generation_prompt=False)


def call_of(arguments: str) -> Message:
    return Message(role="assistant", content="", tool_calls=(ToolCall(id="1", name="bash", arguments=arguments),))


def test_what_is_remembered_of_arguments_changes_no_text() -> None:
    source = (
        "{% for m in messages %}{% set a = m.tool_calls[0].function.arguments %}"
        "{{ a if a is string else a | tojson }}{{ a | tojson(sort_keys=true) }}{{ a }}{{ a is mapping }}"
        "{% if a is mapping %}"
        "{% for k, v in a | items %}{{ k }}{% endfor %}{% endif %}{% endfor %}"
    )
    texts = ['{"b": 1, "a": {"é": [1, 2]}}', '{"b":1,"a":{"é":[1,2]}}', "[1]", "no JSON", '{"items": 3}', "{}"]
    used = ChatTemplate(source, "", {}, RenderingConfig())
    for text in [*texts, *texts]:
        fresh = ChatTemplate(source, "", {}, RenderingConfig())
        again = used.render([call_of(text)], [], generation_prompt=True)
        assert again == fresh.render([call_of(text)], [], generation_prompt=True)


def test_no_template_can_change_what_is_remembered_of_arguments() -> None:
    call = call_of('{"a": [1]}')
    for change in ("update({'b': 2})", "a.append(2)", "pop('a')"):
        template = ChatTemplate("{{ messages[0].tool_calls[0].function.arguments." + change + " }}", "", {}, RenderingConfig())
        with pytest.raises(RequestError):
            template.render([call], [], generation_prompt=True)
