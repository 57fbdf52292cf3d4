"""Loading a renderer from a model directory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from whippletree.configuration import dump, field_docs
from whippletree.errors import ConfigurationError
from whippletree.rendering import ChatRenderer, RenderingConfig, load_renderer
from whippletree.types import Message, ToolSpec

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
        recorded = [*loaded.render(HELLO, []), *renderer("tiny").codec.encode("yes<|im_end|>")]
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
        with pytest.raises(ConfigurationError, match='write "module:function"'):
            load_renderer(models_dir / "tiny", RenderingConfig(renderer=wrong))


def test_every_setting_is_documented() -> None:
    assert set(field_docs(RenderingConfig)) == set(RenderingConfig.__struct_fields__)
    assert 'policy = "exact"' in dump(RenderingConfig())
