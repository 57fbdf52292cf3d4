"""Settings of the harnesses that ship with this package."""

from __future__ import annotations

from typing import Literal

from whippletree.configuration import Config


class MiniSettings(Config):
    """Settings of mini-SWE-agent; what is written here goes into its own configuration, unchanged.

    Templates are Jinja and may name mini's variables, such as {{task}}, {{output.output}}, {{output.returncode}}, {{error}}.

    Example: MiniSettings(mode="text", step_limit=6, observation_template="{{output.output}}")
    """

    mode: Literal["toolcall", "text"] = "toolcall"
    """How the model asks for a command: by a call of the tool `bash`, or by a fenced block in its text."""

    system_template: str = "You can run shell commands."
    """The first message."""

    instance_template: str = "{{task}}"
    """The second message; {{task}} is the instruction of the task."""

    observation_template: str = ""
    """What the model is shown of a command's end; empty: mini's own."""

    format_error_template: str = ""
    """What the model is told when its turn holds no command; empty: mini's own."""

    action_regex: str = ""
    """Text mode: where the command is in the turn (its first group); empty: mini's own, a block called mswea_bash_command."""

    step_limit: int = 20
    """Model calls after which the attempt ends (then it is judged as it stands); 0: no limit."""

    format_error_limit: int = 3
    """Turns without a command, in a row, after which the attempt ends; 0: no limit."""

    command_seconds: int = 30
    """Time limit of one command, seconds."""

    environment: dict[str, str] = {}
    """Further environment variables of the commands."""

    quick_retries: int = 2
    """Repeats of a model request that failed, within about two seconds; the gateway joins repeats into one call."""


class GeminiSettings(Config):
    """Settings of Gemini CLI; the defaults give prompts that vary least.

    Example: GeminiSettings(tools=("run_shell_command", "read_file"), step_limit=20)
    """

    model: str = ""
    """The model name that it is told; empty: the run's. Names of real models switch on what it knows of them."""

    system_prompt: str = ""
    """Text that replaces its own system prompt; empty: its own."""

    tools: tuple[str, ...] = ()
    """Names of the built-in tools to offer; empty: all."""

    step_limit: int = 0
    """Model calls after which the attempt ends (then it is judged as it stands); 0: no limit."""

    compression_threshold: float = 0.5
    """Share of a context of 1,048,576 tokens at which it compresses its history."""

    directory_tree: bool = False
    """Whether the first message lists the files of the working directory."""

    request_attempts: int = 3
    """How often it makes one model request that fails, at most 10."""


class OpenCodeSettings(Config):
    """Settings of OpenCode; the defaults make no side calls and keep no snapshots of files.

    Example: OpenCodeSettings(dialect="messages", tools=("bash", "read", "edit"), step_limit=20)
    """

    dialect: Literal["chat", "responses", "messages", "gemini"] = "chat"
    """The dialect that it speaks, by the provider package that it is given."""

    system_prompt: str = ""
    """Text that replaces the system prompt of its agent; empty: its own. Facts of the machine follow in any case."""

    tools: tuple[str, ...] = ()
    """Names of the built-in tools to offer; empty: all."""

    step_limit: int = 0
    """Model calls after which it asks for a last answer without tools; 0: no limit."""

    context_tokens: int = 200_000
    """The model's context as it is told, in tokens; close to it the history is compacted."""

    output_tokens: int = 8192
    """The longest turn as it is told, in tokens."""

    compaction: bool = True
    """Whether it compacts its history by itself."""

    title: bool = False
    """Whether a side call asks the model for a title of the session."""

    snapshots: bool = False
    """Whether it keeps the files' state after each step in a git repository of its own."""


class QwenSettings(Config):
    """Settings of Qwen Code.

    Example: QwenSettings(tools=("run_shell_command", "read_file", "edit"), step_limit=20)
    """

    dialect: Literal["chat", "responses", "messages", "gemini"] = "chat"
    """The dialect that it speaks."""

    system_prompt: str = ""
    """Text that replaces its own system prompt; empty: its own."""

    tools: tuple[str, ...] = ()
    """Names of the built-in tools to offer; empty: all."""

    step_limit: int = 0
    """Model calls after which the attempt ends (then it is judged as it stands); 0: no limit."""

    context_tokens: int = 200_000
    """The model's context as it is told, in tokens; close to it the history is compressed. 0: what it knows of the model's name."""

    request_retries: int = 2
    """How often it repeats a model request that fails."""
