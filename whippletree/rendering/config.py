"""Settings of the rendering room."""

from __future__ import annotations

from typing import Literal

from whippletree.configuration import Config, Natural


class RenderingConfig(Config):
    """How messages become tokens and tokens become messages.

    Example: RenderingConfig(policy="exact", template="tiny")
    """

    policy: Literal["exact", "keep", "engine"] = "exact"
    """When recorded ids are reused: "exact" only where re-rendering gives the same text; "keep" whenever the messages match,
    so that what a template would drop or rewrite (old thinking, spacing of arguments) stays as it was sampled; "engine" never:
    the engine's own chat endpoint renders and parses."""
    template: str = ""
    """Chat template: "" takes the model's own, "tiny" the one shipped here, anything else is the path of a Jinja file."""
    tool_format: Literal["auto", "hermes", "none"] = "auto"
    """How tool calls are written: "hermes" is <tool_call>{"name": ..., "arguments": {...}}</tool_call>; "none" leaves them in
    the content; "auto" renders a call with the template and looks."""
    reasoning_format: Literal["auto", "think", "none"] = "auto"
    """How thinking is written: "think" is <think>...</think> before the answer; "auto" looks at the template."""
    arguments: Literal["parsed", "text"] = "parsed"
    """What a template sees as a call's arguments: "parsed" a JSON object, as most servers do; "text" the text as it was
    sampled, for templates that accept a string."""
    options: dict[str, bool | int | float | str] = {}
    """Further variables for the template, for example enable_thinking = false."""
    date: str = "2026-01-01"
    """The date (ISO) that a template sees as today, fixed so that prompts do not change overnight."""
    stop_tokens: tuple[str, ...] = ()
    """Tokens that end a turn, besides those that the model's own files name."""
    cache_mb: Natural = 64
    """Memory (MiB) of each process for the tokens of text that was rendered lately: system prompts, tools, old messages."""
    renderer: str = ""
    """Another implementation: "renderers" for the package of that name, or "module:function" called with the model directory
    and this configuration. "" is the one here, on the model's own template."""
    family: str = ""
    """With renderer = "renderers", the model family as that package names it, for example "qwen3" or "glm-5"; "" goes by the
    model's name, where the directory tells it."""

    @property
    def cache_bytes(self) -> int:
        """`cache_mb` in bytes."""
        return self.cache_mb << 20
