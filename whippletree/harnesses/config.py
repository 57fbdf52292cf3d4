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


class WhiteboxSettings(Config):
    """Settings of whitebox. In templates {name} is replaced for the names that are given; other braces stay as they are.

    Example: WhiteboxSettings(tool_name="run", tool_argument="script", step_limit=6, compact_every=2)
    """

    system_prompt: str = "You can run shell commands. When the task is done, answer without a call."
    """The system prompt; empty: none is sent."""

    task: str = "{task}"
    """The first user message; {task} is the instruction of the task."""

    tool_name: str = "shell"
    """Name of the one tool."""

    tool_description: str = "Run a command line in the working directory and return its output."
    """Description of the tool."""

    tool_argument: str = "command"
    """Name of the tool's one argument, the command line."""

    observation: str = "exit code {exit_code}\n{output}"
    """What the model is shown of a command's end: {output}, {exit_code}."""

    observation_limit: int = 10_000
    """Characters of an output that are shown; of a longer one the middle is left out. 0: no limit."""

    reminder: str = ""
    """What the model is told after a turn without a call; empty: such a turn is the answer, and ends the attempt."""

    step_limit: int = 20
    """Model calls after which the attempt ends (then it is judged as it stands); 0: no limit."""

    compact_every: int = 0
    """Turns after which the history is replaced by a summary, again and again; 0: never. Each stretch becomes a sample."""

    summary: Literal["own", "model"] = "own"
    """Who writes the summary: the harness (all commands so far with what was shown of them), or the model, asked for it."""

    summary_step: str = "$ {command}\n{observation}\n"
    """One command in the harness's own summary: {command}, {observation}."""

    summary_message: str = "{task}\n\nWork so far:\n{summary}"
    """The user message after a compaction: {task}, {summary}."""

    summary_request: str = "Sum up the work so far in a few lines, without a call. Your notes replace this conversation."
    """How the model is asked for a summary."""

    command_seconds: int = 30
    """Time limit of one command, seconds."""

    environment: dict[str, str] = {}
    """Further environment variables of the commands."""

    quick_retries: int = 2
    """Repeats of a model request that failed, within about a second; the gateway joins repeats into one call."""


SETTINGS: dict[str, type[Config]] = {"mini-swe-agent": MiniSettings, "whitebox": WhiteboxSettings}
"""Settings struct of each shipped harness, by its name."""
