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
