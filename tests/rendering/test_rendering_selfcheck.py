"""The self-check finds what incremental building loses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from whippletree.protocols import Recorded, StreamParser
from whippletree.rendering import ChatRenderer, RenderingConfig, load_renderer, selfcheck
from whippletree.types import Message, ToolSpec


class Wrapped:
    """A renderer whose bridge another function has a hand in."""

    def __init__(self, inner: ChatRenderer, change: Callable[[list[int]], list[int] | None]) -> None:
        self._inner = inner
        self._change = change
        self.stop_token_ids = inner.stop_token_ids

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        return self._inner.render(messages, tools)

    def bridge(self, recorded: Recorded, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int] | None:
        rest = self._inner.bridge(recorded, messages, tools)
        return None if rest is None else self._change(rest)

    def forced(self, tools: Sequence[ToolSpec], name: str) -> list[int]:
        return self._inner.forced(tools, name)

    def parser(self, tools: Sequence[ToolSpec], stops: Sequence[str] = ()) -> StreamParser:
        return self._inner.parser(tools, stops)

    def to_bytes(self, token_ids: Sequence[int]) -> bytes:
        return self._inner.to_bytes(token_ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._inner.decode(token_ids)


@pytest.mark.parametrize("policy", ["exact", "keep"])
@pytest.mark.parametrize("model", ["tiny", "thinking", "compact", "observed", "normalising"])
def test_the_renderers_here_have_no_findings(renderer: Callable[..., ChatRenderer], model: str, policy: str) -> None:
    assert selfcheck(renderer(model, policy=policy)) == []


def test_a_lost_separator_is_found(renderer: Callable[..., ChatRenderer]) -> None:
    """The line break after the end of each assistant turn."""
    findings = selfcheck(Wrapped(renderer("thinking"), lambda rest: rest[1:]))
    assert len(findings) >= 1
    assert "'<|im_start|>user" in findings[0]
    assert "'\\n<|im_start|>user" in findings[0]


def test_a_border_between_the_results_of_parallel_calls_is_found(renderer: Callable[..., ChatRenderer]) -> None:
    loaded = renderer("thinking")
    between = loaded.codec.encode("</tool_response>\n<tool_response>")
    border = loaded.codec.encode("</tool_response><|im_end|>\n<|im_start|>user\n<tool_response>")

    def split(rest: list[int]) -> list[int]:
        text = loaded.decode(rest)
        return loaded.codec.encode(text.replace(loaded.decode(between), loaded.decode(border)))

    assert any("message 2" in finding for finding in selfcheck(Wrapped(loaded, split)))


def test_an_end_that_is_written_twice_is_found(renderer: Callable[..., ChatRenderer]) -> None:
    loaded = renderer("observed")
    findings = selfcheck(Wrapped(loaded, lambda rest: [*loaded.codec.encode("<|observation|>"), *rest]))
    assert any("message 2" in finding and "<|observation|>" in finding for finding in findings)


def test_a_broken_prefix_is_found(renderer: Callable[..., ChatRenderer]) -> None:
    findings = selfcheck(Wrapped(renderer("tiny"), lambda rest: None))
    assert [finding.partition(":")[0] for finding in findings] == ["message 2", "message 5", "message 7"]
    assert all("not reused" in finding for finding in findings)


def test_a_template_that_refuses_the_conversation_is_a_finding(renderer: Callable[..., ChatRenderer]) -> None:
    (finding,) = selfcheck(renderer("dated"))
    assert "leaves tool calls out" in finding


def test_calls_that_are_not_read_back_are_found(models_dir: Path) -> None:
    deaf = load_renderer(models_dir / "thinking", RenderingConfig(tool_format="none"))
    assert "its turn is read as" in selfcheck(deaf)[0]
