"""Settings of the generic adapters, and of the harnesses that are Python packages."""

from __future__ import annotations

from typing import Literal

from whippletree.configuration import Config, Count, Natural


class CommandSettings(Config):
    """Settings of the generic command adapter: how to start a program that takes a base URL.

    Placeholders are {instruction}, {base_url}, {root_url}, {model}, {workdir} and {output_dir}; any other brace is text.

    Example: CommandSettings(argv=("/opt/agent/run", "--url", "{base_url}", "{instruction}"))
    """

    argv: tuple[str, ...] = ()
    """The command line, as seen inside the sandbox, with placeholders; it is needed."""

    environment: dict[str, str] = {}
    """Environment variables, with placeholders and {api_key}. The variables of the dialect are set in any case."""

    files: dict[str, str] = {}
    """Files to write before the start, path inside to text, with placeholders; {api_key} only in files below /home/agent."""

    stdin: str = ""
    """Text for its standard input, with placeholders; empty: none."""

    dialect: Literal["chat", "responses", "messages", "gemini"] = "chat"
    """What it speaks. {base_url} ends in /v1 for "chat" and "responses" and not for the others; its key is in OPENAI_API_KEY,
    ANTHROPIC_API_KEY or GEMINI_API_KEY."""

    read_only: tuple[tuple[str, str], ...] = ()
    """Directories or files of this machine that it needs: pairs of the path here and the path inside."""

    success_codes: tuple[int, ...] = (0,)
    """Exit codes that mean that it did its job."""

    crash_codes: tuple[int, ...] = ()
    """Exit codes that mean that it failed at its job; empty: all but the other two lists. Where some are named, an exit code
    that is in no list is an attempt that is judged as it stands."""

    budget_codes: tuple[int, ...] = ()
    """Exit codes that mean that a limit of its own ended it: its steps, tokens or cost."""

    trajectory: str = ""
    """Path inside of the ATIF file that it writes; empty: none."""

    def __post_init__(self) -> None:
        """Raises ValueError; `convert` adds the key."""
        if any("{api_key}" in word for word in self.argv):
            raise ValueError("argv holds {api_key}: every process of the machine could read it there; use environment")
        if "{api_key}" in self.stdin:
            raise ValueError("stdin holds {api_key}: use environment")
        for path, text in self.files.items():
            inside = path.startswith("/home/agent/") and ".." not in path.split("/")
            if "{api_key}" in text and not inside:
                raise ValueError(f"files: {path} holds {{api_key}} and is not below /home/agent")
        for path in (*self.files, *(inside for _, inside in self.read_only), *([self.trajectory] if self.trajectory else [])):
            if not path.startswith("/"):
                raise ValueError(f"{path!r} is no absolute path inside the sandbox")
        for here, _ in self.read_only:
            if not here.startswith("/"):
                raise ValueError(f"read_only: {here!r} is no absolute path of this machine")


class CallableSettings(Config):
    """Settings of the adapter for an agent that is a Python function.

    Example: CallableSettings(function="agent:solve", path="examples/own_agent", step_limit=8)
    """

    function: str = ""
    """The function, as "module:function"; it is needed, is called with one argument, a context, and may be a coroutine
    function."""

    path: str = ""
    """Folder to import the module from, before all others; in process mode it is shown in the sandbox, read-only, and so are
    all files in it. Empty: the module is one that the Python can import anyway."""

    python: str = ""
    """Process mode: the Python that runs it, for example that of a virtual environment with the agent's libraries; empty: the
    one that runs Whippletree."""

    step_limit: Natural = 20
    """Model calls that the function may make, as it counts them by context.step(); 0: no limit."""

    command_seconds: Count = 30
    """Time limit of one command of context.run, seconds, where the function names none."""

    options: dict[str, object] = {}
    """Whatever the function wants to read in context.options."""

    def __post_init__(self) -> None:
        """Raises ValueError; `convert` adds the key."""
        module, separator, name = self.function.partition(":")
        if self.function and not (separator and all(part.isidentifier() for part in (*module.split("."), *name.split(".")))):
            raise ValueError(f'function is {self.function!r}: write it as "module:function"')


class VibeSettings(Config):
    """Settings of Mistral Vibe.

    Example: VibeSettings(dialect="messages", prompt="minimal", step_limit=20)
    """

    dialect: Literal["chat", "responses", "messages"] = "chat"
    """What it speaks to the gateway."""

    step_limit: Natural = 0
    """Model calls after which it ends (then the attempt is judged as it stands); 0: no limit."""

    prompt: Literal["cli", "lean", "minimal"] = "cli"
    """Which of its own system prompts it uses."""

    system_prompt: str = ""
    """A system prompt instead of its own; empty: its own."""

    project_context: bool = True
    """Whether the system prompt tells of the working directory and its git repository."""

    subagents: bool = True
    """Whether it may start sub-agents."""

    background_processes: bool = True
    """Whether it may leave processes running."""

    context_tokens: Natural = 0
    """The model's context, tokens, as it is told; 0: it is not told."""

    compact_at: Natural = 0
    """Tokens of history at which it sums the history up; 0: its own 200000, or 80% of context_tokens."""


class OpenHandsSettings(Config):
    """Settings of the OpenHands SDK's agent.

    Example: OpenHandsSettings(tools=("terminal", "finish"), step_limit=30)
    """

    tools: tuple[str, ...] = ("terminal", "file_editor", "task_tracker", "finish", "think")
    """Its tools, any of these five."""

    system_prompt: str = ""
    """A system prompt instead of its own; empty: its own."""

    step_limit: Natural = 500
    """Model calls after which it ends (then the attempt is judged as it stands)."""

    condense_at: Natural = 80
    """Events of history at which it sums the history up; 0: never."""

    retries: Natural = 5
    """Repeats of a model request that failed, 8 to 64 seconds apart."""

    treat_as: str = ""
    """A model that it knows, whose abilities it is to assume; "kimi-k2-thinking" makes it send reasoning back. Empty: what it
    assumes of a model that it does not know."""


class AiderSettings(Config):
    """Settings of aider.

    Example: AiderSettings(edit_format="diff", files=("app.py",), commits=False)
    """

    edit_format: Literal["whole", "diff", "diff-fenced", "udiff", "ask"] = "whole"
    """How the model writes its edits."""

    files: tuple[str, ...] = ()
    """Files that it is given to edit, relative to the working directory; others it must ask for."""

    commits: bool = True
    """Whether it commits its edits; the message of a commit is a model call of its own."""

    map_tokens: Natural = 1024
    """Tokens of the map of the repository in its prompt; 0: none."""

    context_tokens: Natural = 32768
    """The model's context, tokens, as it is told."""

    output_tokens: Natural = 8192
    """The longest answer, tokens, as it is told."""

    language: str = "English"
    """The language that the model is asked to answer in."""

    stream: bool = True
    """Whether answers are streamed."""
