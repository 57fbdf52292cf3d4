"""Loading a renderer from a model directory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rendering_models import read_turn, record

from whippletree.configuration import dump, field_docs
from whippletree.errors import ConfigurationError
from whippletree.rendering import ChatRenderer, RenderingConfig, load_renderer
from whippletree.types import Message, ToolCall, ToolSpec

HELLO = [Message(role="user", content="hello")]
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


@pytest.fixture
def copied(models_dir: Path, tmp_path: Path) -> Path:
    """A model directory without a template that a test may change."""
    return Path(shutil.copytree(models_dir / "tiny", tmp_path / "model"))


def set_json(path: Path, **values: object) -> None:
    path.write_text(json.dumps((json.loads(path.read_text()) if path.is_file() else {}) | values))


def test_render_and_bridge_depend_on_their_arguments_only(renderer: Callable[..., ChatRenderer], models_dir: Path) -> None:
    fresh = load_renderer(models_dir / "tiny", RenderingConfig(template="tiny"))
    once = fresh.render(HELLO, [])
    once.append(7)  # a caller's list is its own
    for loaded in (fresh, renderer("tiny")):
        prompt, sampled = loaded.render(HELLO, []), renderer("tiny").codec.encode("yes<|im_end|>")
        recorded = record(loaded, prompt, sampled, 2)
        longer = [*HELLO, Message(role="assistant", content="yes"), Message(role="user", content="and")]
        assert loaded.render(HELLO, []) == once[:-1]
        assert loaded.bridge(recorded, longer, []) == loaded.bridge(recorded, longer, [])


def test_stop_tokens_come_from_all_files_the_template_and_the_settings(copied: Path) -> None:
    codec = load_renderer(copied, RenderingConfig(template="tiny"))
    assert isinstance(codec, ChatRenderer)
    end_of_text, start, end, think = (
        codec.codec.token_id(token) for token in ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>")
    )
    assert codec.stop_token_ids == sorted([end_of_text, end])
    set_json(copied / "config.json", eos_token_id=start)
    set_json(copied / "tokenizer_config.json", eos_token=None)
    (copied / "generation_config.json").unlink()
    more = load_renderer(copied, RenderingConfig(template="tiny", stop_tokens=("<think>",)))
    assert more.stop_token_ids == sorted([start, end, think])
    with pytest.raises(ConfigurationError, match=r"no token '<nope>'"):
        load_renderer(copied, RenderingConfig(template="tiny", stop_tokens=("<nope>",)))


def test_a_model_without_any_end_is_refused(copied: Path, tmp_path: Path) -> None:
    (copied / "tokenizer_config.json").unlink()
    (copied / "generation_config.json").unlink()
    (tmp_path / "endless.jinja").write_text("{% for m in messages %}{{ m.content }} {% endfor %}")
    with pytest.raises(ConfigurationError, match="names no token that ends a turn"):
        load_renderer(copied, RenderingConfig(template=str(tmp_path / "endless.jinja")))


def test_a_template_file_comes_before_the_one_in_the_tokenizer_settings(copied: Path) -> None:
    set_json(copied / "tokenizer_config.json", chat_template="settings" + CHATML)
    (copied / "chat_template.jinja").write_text("file" + CHATML)
    loaded = load_renderer(copied)
    assert loaded.decode(loaded.render(HELLO, [])) == "file<|im_start|>user\nhello<|im_end|>\n"


def test_a_model_may_have_a_template_of_its_own_for_tools(copied: Path) -> None:
    named = [{"name": "default", "template": "plain" + CHATML}, {"name": "tool_use", "template": "tools" + CHATML}]
    set_json(copied / "tokenizer_config.json", chat_template=named)
    loaded = load_renderer(copied)
    assert loaded.decode(loaded.render(HELLO, [])).startswith("plain")
    assert loaded.decode(loaded.render(HELLO, [ToolSpec(name="bash")])).startswith("tools")
    (copied / "chat_template.jinja").write_text("plain file" + CHATML)
    (copied / "additional_chat_templates").mkdir()
    (copied / "additional_chat_templates" / "tool_use.jinja").write_text("tools file" + CHATML)
    loaded = load_renderer(copied)
    assert loaded.decode(loaded.render(HELLO, [])).startswith("plain file")
    assert loaded.decode(loaded.render(HELLO, [ToolSpec(name="bash")])).startswith("tools file")


def test_a_broken_settings_file_is_named(copied: Path) -> None:
    (copied / "tokenizer_config.json").write_text("{")
    with pytest.raises(ConfigurationError, match=r"tokenizer_config\.json"):
        load_renderer(copied)


def test_another_implementation_is_loaded_by_name(models_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_chat_format.py").write_text(
        "from whippletree.rendering import RenderingConfig, load_renderer\n"
        "def build(model_dir, config):\n"
        "    return load_renderer(model_dir, RenderingConfig(template='tiny', policy=config.policy))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    loaded = load_renderer(models_dir / "tiny", RenderingConfig(renderer="my_chat_format:build", policy="keep"))
    assert isinstance(loaded, ChatRenderer)
    assert loaded.policy == "keep"
    for wrong in ("my_chat_format:nothing", "no.such.module:build", "my_chat_format"):
        with pytest.raises(ConfigurationError, match=r"rendering\.renderer '"):
            load_renderer(models_dir / "tiny", RenderingConfig(renderer=wrong))


def test_every_setting_is_documented() -> None:
    assert set(field_docs(RenderingConfig)) == set(RenderingConfig.__struct_fields__)
    assert 'policy = "exact"' in dump(RenderingConfig())


BASH = ToolSpec(name="bash")


@pytest.mark.parametrize("model", ["tiny", "thinking", "compact", "observed"])
def test_a_forced_call_is_what_the_template_writes_and_reads_as_one_turn(
    renderer: Callable[..., ChatRenderer], model: str
) -> None:
    loaded = renderer(model)
    prompt, forced = loaded.render(HELLO, [BASH]), loaded.forced([BASH], "bash")
    rest = loaded.codec.encode(' {"command": "ls"}}\n</tool_call>')
    message = read_turn(loaded, [*forced, *rest], [BASH])
    assert [(call.name, call.arguments) for call in message.tool_calls] == [("bash", '{"command": "ls"}')]
    assert (message.content, message.malformed) == ("", "")
    turn = Message(role="assistant", tool_calls=(ToolCall(id="c", name="bash", arguments='{"command": "ls"}'),))
    whole = loaded.template.render([*HELLO, turn], [BASH], generation_prompt=False)
    assert whole.startswith(loaded.decode([*prompt, *forced]))
    any_tool = loaded.decode(loaded.forced([BASH], ""))
    assert loaded.decode(forced).startswith(any_tool)
    assert any_tool.rstrip().endswith("<tool_call>")


def test_nothing_is_forced_where_calls_are_not_read_or_no_tool_is_offered(renderer: Callable[..., ChatRenderer]) -> None:
    assert renderer("tiny").forced([], "") == []
    assert renderer("dated").forced([BASH], "bash") == []
    assert renderer("thinking", tool_format="none").forced([BASH], "bash") == []


def test_a_forced_call_closes_thinking_that_the_prompt_opens(models_dir: Path, tmp_path: Path) -> None:
    source = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
        "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{% endif %}{{ m.content }}"
        "{% for c in m.tool_calls or [] %}<tool_call>\n"
        '{{ \'{"name": "\' ~ c.function.name ~ \'", "arguments": \' }}{{ c.function.arguments | tojson }}{{ "}" }}\n'
        "</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
    )
    (tmp_path / "deep.jinja").write_text(source)
    loaded = load_renderer(models_dir / "tiny", RenderingConfig(template=str(tmp_path / "deep.jinja")))
    forced = loaded.forced([BASH], "bash")
    assert loaded.decode(forced) == '\n</think>\n\n<tool_call>\n{"name": "bash", "arguments":'
    message = read_turn(loaded, forced, [BASH], "length")
    assert (message.reasoning, message.content) == ("", '<tool_call>\n{"name": "bash", "arguments":')


def test_to_bytes_is_exact_for_any_split(renderer: Callable[..., ChatRenderer]) -> None:
    loaded = renderer("tiny")
    ids = loaded.codec.encode("é🀄 <|im_end|>")
    assert loaded.to_bytes(ids) == "é🀄 <|im_end|>".encode()
    assert all(loaded.to_bytes(ids[:cut]) + loaded.to_bytes(ids[cut:]) == loaded.to_bytes(ids) for cut in range(len(ids)))


def test_several_threads_may_render_at_once(models_dir: Path) -> None:
    loaded = load_renderer(models_dir / "thinking", RenderingConfig(cache_mb=0))
    cached = load_renderer(models_dir / "thinking")
    talks = [[Message(role="system", content="s" * 40), Message(role="user", content=f"go {n % 5}")] for n in range(60)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda talk: cached.render(talk, [BASH]), talks))
    assert together == [loaded.render(talk, [BASH]) for talk in talks]
