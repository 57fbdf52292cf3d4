"""Settings of the harnesses that ship with this package."""

from __future__ import annotations

from typing import Literal

from whippletree.configuration import Config, Natural


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

    step_limit: Natural = 20
    """Model calls after which the attempt ends (then it is judged as it stands); 0: no limit."""

    format_error_limit: Natural = 3
    """Turns without a command, in a row, after which the attempt ends; 0: no limit."""

    command_seconds: Natural = 30
    """Time limit of one command, seconds."""

    environment: dict[str, str] = {}
    """Further environment variables of the commands."""

    quick_retries: Natural = 2
    """Repeats of a model request that failed, within about two seconds; the gateway joins repeats into one call."""


class ClaudeCodeSettings(Config):
    """Settings of Claude Code; the defaults give prompts that are small and vary least.

    Example: ClaudeCodeSettings(tools=("Bash", "Read"), step_limit=20)
    """

    profile: Literal["bare", "lean", "full"] = "lean"
    """"lean": four tools, no experimental features, memory, attribution line or marks for prompt caches, so that prompts are
    small and extend exactly; "bare": its own minimal mode besides, without instruction files, hooks and most of the system
    prompt; "full": what a user gets without settings, sub-agents included."""

    model: str = ""
    """The model name that it is told; empty: the run's. Names of real models switch on what it knows of them."""

    system_prompt: str = ""
    """Text that replaces its own system prompt; empty: its own."""

    system_append: str = ""
    """Text after its system prompt; empty: none."""

    tools: tuple[str, ...] = ()
    """Names of the built-in tools to offer; empty: those of the profile."""

    step_limit: Natural = 0
    """Model calls after which the attempt ends (then it is judged as it stands); 0: no limit."""

    context_tokens: Natural = 200_000
    """The model's context as it is told, in tokens, at least 100,000; close to it the history is compacted."""

    compaction: bool = True
    """Whether it compacts its history by itself."""

    output_tokens: Natural = 8192
    """The longest turn that it asks for, in tokens."""

    command_seconds: Natural = 120
    """Time limit of one command that names none of its own, seconds."""

    request_retries: Natural = 2
    """How often it repeats a model request that fails; the gateway joins repeats into one call."""

    arguments: tuple[str, ...] = ()
    """Further arguments of its command line, as `claude --help` has them."""

    environment: dict[str, str] = {}
    """Further environment variables of its process."""


class CodexSettings(Config):
    """Settings of Codex; the defaults give a small set of tools and nothing that looks for a server of its maker.

    Example: CodexSettings(system_prompt="You are a careful engineer.", features={"view_image": False})
    """

    profile: Literal["lean", "full"] = "lean"
    """"lean": no sub-agents, skills, goals, web search, images or questions; "full": what a user gets without settings."""

    model: str = ""
    """The model name that it is told; empty: the run's. Names of real models choose its tools and its system prompt."""

    system_prompt: str = ""
    """Text that replaces its own system prompt; empty: its own."""

    system_append: str = ""
    """Text of a further message of the developer role; empty: none."""

    environment_context: bool = True
    """Whether a message tells the working directory, the shell and today's date."""

    features: dict[str, bool] = {}
    """Its feature switches, by the names that `codex features list` prints; they go before the profile's."""

    context_tokens: Natural = 200_000
    """The model's context as it is told, in tokens."""

    compact_tokens: Natural = 0
    """Length of the history, in tokens, at which it is compacted; 0: nine tenths of the context."""

    request_retries: Natural = 2
    """How often it repeats a model request, or a stream that broke; the gateway joins repeats into one call."""

    stream_seconds: Natural = 300
    """How long a stream may be silent before it is given up, seconds."""

    arguments: tuple[str, ...] = ()
    """Further arguments of its command line, as `codex exec --help` has them."""

    options: dict[str, object] = {}
    """Further keys of its configuration file, at its top; they go before the adapter's."""


class PiSettings(Config):
    """Settings of pi.

    Example: PiSettings(dialect="messages", tools=("bash", "read"), step_limit=20)
    """

    dialect: Literal["chat", "responses", "messages", "gemini"] = "chat"
    """The dialect that it speaks."""

    model: str = ""
    """The model name that it is told; empty: the run's."""

    system_prompt: str = ""
    """Text that replaces its own system prompt; empty: its own. Date and working directory follow in any case."""

    system_append: str = ""
    """Text after its system prompt; empty: none."""

    tools: tuple[str, ...] = ("read", "bash", "edit", "write")
    """Names of the built-in tools to offer; besides the default ones it has `grep`, `find` and `ls`."""

    step_limit: Natural = 0
    """Model calls after which the attempt ends (then it is judged as it stands); 0: no limit."""

    context_tokens: Natural = 200_000
    """The model's context as it is told, in tokens; close to it the history is compacted."""

    output_tokens: Natural = 8192
    """The longest turn that it asks for, in tokens."""

    reasoning: bool = False
    """Whether the model is told to be one that thinks; then its thinking is part of the history."""

    compaction: bool = True
    """Whether it compacts its history by itself."""

    request_retries: Natural = 3
    """How often it repeats a model request that fails."""

    arguments: tuple[str, ...] = ()
    """Further arguments of its command line, as `pi --help` has them."""


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

    step_limit: Natural = 0
    """Model calls after which the attempt ends (then it is judged as it stands); 0: no limit."""

    directory_tree: bool = False
    """Whether the first message lists the files of the working directory."""

    request_attempts: Natural = 3
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

    step_limit: Natural = 0
    """Model calls of the main agent after which the attempt ends (then it is judged as it stands); in the last one the model is
    told to answer without tools. 0: no limit."""

    context_tokens: Natural = 200_000
    """The model's context as it is told, in tokens; close to it the history is compacted."""

    output_tokens: Natural = 8192
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

    step_limit: Natural = 0
    """Model calls after which the attempt ends (then it is judged as it stands); 0: no limit."""

    context_tokens: Natural = 200_000
    """The model's context as it is told, in tokens; close to it the history is compressed. 0: what it knows of the name."""

    request_retries: Natural = 2
    """How often it repeats a model request that fails."""


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

    observation_limit: Natural = 10_000
    """Characters of an output that are shown; of a longer one the middle is left out. 0: no limit."""

    reminder: str = ""
    """What the model is told after a turn without a call; empty: such a turn is the answer, and ends the attempt."""

    step_limit: Natural = 20
    """Model calls after which the attempt ends (then it is judged as it stands); 0: no limit."""

    compact_every: Natural = 0
    """Turns after which the history is replaced by a summary, again and again; 0: never. Each stretch becomes a sample."""

    summary: Literal["own", "model"] = "own"
    """Who writes the summary: the harness (all commands so far with what was shown of them), or the model, asked for it."""

    summary_step: str = "$ {command}\n{observation}\n"
    """One command in the harness's own summary: {command}, {observation}."""

    summary_message: str = "{task}\n\nWork so far:\n{summary}"
    """The user message after a compaction: {task}, {summary}."""

    summary_request: str = "Sum up the work so far in a few lines, without a call. Your notes replace this conversation."
    """How the model is asked for a summary."""

    command_seconds: Natural = 30
    """Time limit of one command, seconds."""

    environment: dict[str, str] = {}
    """Further environment variables of the commands."""

    quick_retries: Natural = 2
    """Repeats of a model request that failed, within about a second; the gateway joins repeats into one call."""
