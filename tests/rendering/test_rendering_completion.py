"""ChatRenderer.completion: a reply as the template writes it behind its prompt."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rendering_models import read_turn

from whippletree.errors import RequestError
from whippletree.rendering import ChatRenderer, RenderingConfig, load_renderer
from whippletree.types import Message, ToolCall, ToolSpec

BASH = ToolSpec(name="bash", description="run", parameters={"type": "object", "properties": {}})
ASK = [Message(role="system", content="be brief"), Message(role="user", content="list the files")]
SAID = Message(role="assistant", content="two files, é and 日")
CALLED = Message(role="assistant", tool_calls=(ToolCall(id="call_1", name="bash", arguments='{"command": "ls -a"}'),))
SEEN = [*ASK, CALLED, Message(role="tool", content="a\nb", tool_call_id="call_1")]


@pytest.mark.parametrize("model", ["tiny", "thinking", "compact"])
@pytest.mark.parametrize(("before", "reply"), [(ASK, SAID), (ASK, CALLED), (SEEN, SAID), (SEEN, CALLED)])
def test_the_reply_stands_behind_its_prompt_and_parses_to_itself(
    renderer: Callable[..., ChatRenderer], model: str, before: list[Message], reply: Message
) -> None:
    loaded = renderer(model)
    ids = loaded.completion(before, reply, [BASH])
    assert ids is not None and ids[-1] in loaded.stop_token_ids
    assert not set(ids[:-1]) & set(loaded.stop_token_ids)
    whole = loaded.template.render([*before, reply], [BASH], generation_prompt=False)
    assert whole.startswith(loaded.decode([*loaded.render(before, [BASH]), *ids]))
    message = read_turn(loaded, ids, [BASH])
    assert message.content == reply.content and not message.malformed
    assert [(call.name, json.loads(call.arguments)) for call in message.tool_calls] == [
        (call.name, json.loads(call.arguments)) for call in reply.tool_calls
    ]


def test_calls_that_the_template_leaves_out_are_refused(renderer: Callable[..., ChatRenderer]) -> None:
    assert renderer("dated").completion(ASK, SAID, ()) is not None
    with pytest.raises(RequestError, match="leaves tool calls out"):
        renderer("dated").completion(ASK, CALLED, [BASH])


def test_a_template_that_rewrites_the_prompt_once_the_reply_is_there_gives_none(models_dir: Path, tmp_path: Path) -> None:
    counting = tmp_path / "counting.jinja"
    turns = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    counting.write_text("{{ messages|length }}" + turns + "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
    loaded = load_renderer(models_dir / "tiny", RenderingConfig(template=str(counting)))
    assert isinstance(loaded, ChatRenderer)
    assert loaded.render(ASK, ())
    assert loaded.completion(ASK, SAID, ()) is None
