"""whippletree/control/contract/model.py"""

from __future__ import annotations

from pathlib import Path

from whippletree.control.contract.model import VOCABULARY, make_renderer
from whippletree.control.contract.script import Move, written
from whippletree.types import Message, ToolSpec


def test_texts_and_turns_come_back_as_they_were(tmp_path: Path) -> None:
    renderer = make_renderer(tmp_path)
    text = "Grüße, 世界 \x00 \U0001f600\r\n\ttabs and 'quotes' {\"a\": 1}"
    ids = renderer.codec.encode(text)  # type: ignore[attr-defined]
    assert renderer.decode(ids) == text and max(ids) < VOCABULARY
    tools = [ToolSpec(name="sh", description="run", parameters={"type": "object"})]
    turn = written(Move(calls=(("sh", {"command": "ls"}), ("sh", {"command": "pwd"})), text="Two at once."))
    parser = renderer.parser(tools)
    parser.feed([*renderer.codec.encode(turn), *renderer.stop_token_ids])  # type: ignore[attr-defined]
    _, message = parser.finish("stop")
    assert message.content.strip() == "Two at once." and message.reasoning == "next: 2 call(s)"
    assert [(call.name, call.arguments) for call in message.tool_calls] == [
        ("sh", '{"command": "ls"}'),
        ("sh", '{"command": "pwd"}'),
    ]
    prompt = renderer.decode(renderer.render([Message(role="user", content="hello")], tools))
    assert '"sh"' in prompt and prompt.endswith("<|im_start|>assistant\n")
