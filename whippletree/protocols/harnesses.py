"""Adapters of agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol, runtime_checkable

from whippletree.configuration import Config
from whippletree.protocols.sandboxes import SandboxHandle
from whippletree.types import Struct


class AttemptSpec(Struct):
    """What a harness needs to make one attempt. `base_url` ends in /v1 and is right for where the harness runs. `step`: of a
    task with several steps, the one that this is (each is a launch of its own, in one sandbox); `user`: as whom to run it in
    the sandbox ("" for the sandbox's own).

    Example: AttemptSpec(rollout_id="s0", attempt=1, instruction="Start at amber.", base_url="http://127.0.0.1:8000/v1",
                         api_key="wt-...", model="policy", workdir="/app", settings={"step_limit": 5}, output_dir="/run/x")
    """

    rollout_id: str
    attempt: int
    instruction: str
    base_url: str
    api_key: str
    model: str
    workdir: str
    output_dir: str
    timeout: float = 300.0
    settings: dict[str, object] = {}
    sandbox: SandboxHandle | None = None
    step: str = ""
    user: str = ""


class Package(Struct):
    """What is installed for a harness, pinned. `kind`: "npm", a folder of its own; "pip", a virtual environment of its own;
    "extra", an extra of this package, imported here.

    `size_mb`: about, on disk. `also`: further pinned requirements ("name@1.2.3" of npm, "name==1.2.3" of pip). `node`: the
    version of Node that is installed beside it ("": the machine's, 20 or later). `python`: of pip, the Python that it needs
    ("": ours).

    Example: Package(kind="npm", name="@openai/codex", version="0.171.0", size_mb=424)
    """

    kind: Literal["npm", "pip", "extra"]
    name: str
    version: str
    size_mb: int
    also: tuple[str, ...] = ()
    node: str = ""
    python: str = ""


class Probe(Struct):
    """How a check of a harness brings about what a short run does not show by itself.

    `finish_tool` with its arguments is the call that ends a run ("": text without a call does). `subagent_tool` with its
    arguments starts a sub-agent under `subagent_settings` ("": no single call does); "{prompt}" stands for its instruction.
    `subagent_finish` with its arguments is the call that ends one ("": text does); "{report}" stands for what it reports.
    `compaction`: settings under which a conversation that grows by 80,000 tokens is compacted ({}: there are none).

    Of a harness without tools, `edit` is a turn that writes the file "{path}" with the line "{text}", `bad_edit` one whose edit
    cannot be applied, after which it asks again ("": it has none). `side_mark` is in the prompts of its side calls, where no
    missing tool tells them apart. `extending`: settings under which its second request extends the first, where it does not
    by default.

    Example: Probe(subagent_tool="task", subagent_arguments={"prompt": "{prompt}"}, compaction={"context_tokens": 60000})
    """

    finish_tool: str = ""
    finish_arguments: dict[str, object] = {}
    subagent_tool: str = ""
    subagent_arguments: dict[str, object] = {}
    subagent_settings: dict[str, object] = {}
    subagent_finish: str = ""
    subagent_finish_arguments: dict[str, object] = {}
    compaction: dict[str, object] = {}
    edit: str = ""
    bad_edit: str = ""
    side_mark: str = ""
    extending: dict[str, object] = {}


class HarnessFacts(Struct):
    """Known behaviour of a harness, as data. `dialects` are the gateway's names, the default first.

    `shell_tool` is the tool that runs a command ("": none), `shell_argument` its argument that holds it, `shell_extra` what
    else it insists on. `second_request`: how the second request extends the first, as it is, after the gateway's normal form,
    not where the model thinks ("breaks"), or not at all because there is none ("single"). `sampled_turn`: how the model's turn
    comes back in it. `side_calls`: kinds of side calls in a plain run. `thread_headers` name threads or sub-agents. `compacts`:
    it shortens its history by itself. `exit_code`: what its exit code means. `variations`: what settings can vary.
    `fixed_prompt_chars`: about, its system prompt and tools in the default settings. `notes`: further quirks.

    `ends_at`: trouble after which it gives up, where others try again or go on. `record_differs`: what its own record tells
    otherwise than it was. `probe`: how a check brings things about.

    Example: HarnessFacts(dialects=("responses",), streams=True, shell_tool="exec_command", shell_argument="cmd")
    """

    dialects: tuple[Literal["chat", "responses", "messages", "gemini"], ...]
    streams: bool
    launches: tuple[Literal["process", "pool"], ...] = ("process",)
    shell_tool: str = ""
    shell_argument: str = "command"
    shell_extra: dict[str, object] = {}
    second_request: Literal["exact", "normalised", "breaks", "single"] = "exact"
    sampled_turn: str = "exact"
    side_calls: tuple[str, ...] = ()
    thread_headers: tuple[str, ...] = ()
    subagents: bool = False
    compacts: bool = False
    exit_code: str = ""
    variations: tuple[Literal["tools", "system", "steps"], ...] = ()
    fixed_prompt_chars: int = 0
    ends_at: tuple[Literal["arguments", "429", "500", "drop", "overflow"], ...] = ()
    record_differs: tuple[Literal["arguments", "429", "500", "drop", "overflow", "compaction", "subagent"], ...] = ()
    probe: Probe = Probe()
    notes: tuple[str, ...] = ()


class LaunchPlan(Struct):
    """How to start a harness as a process inside the sandbox. `files` are (path inside, text), `stdin` the text of its
    standard input.

    `trajectory` is a file that it leaves; `records` are further ones, as paths or glob patterns inside whose folders hold
    little else (both are read after the run, up to control.launch.RECORDS_LIMIT bytes in all).

    Example: LaunchPlan(argv=("mini", "-t", "..."), environment={"HOME": "/home/agent"})
    """

    argv: tuple[str, ...]
    environment: dict[str, str] = {}
    files: tuple[tuple[str, str], ...] = ()
    trajectory: str = ""
    stdin: str = ""
    records: tuple[str, ...] = ()


class HarnessResult(Struct):
    """How a harness ended. `crashed` is set when it did not do its job (crash, endless error); `ran_out` when a limit of its
    own ended it: its time, or its budget of steps, tokens or cost.

    Example: HarnessResult(exit_status="Submitted", steps=3)
    """

    exit_status: str
    steps: int = 0
    message: str = ""
    crashed: bool = False
    ran_out: Literal["", "time", "budget"] = ""


@runtime_checkable
class Harness(Protocol):
    """Adapter of one unmodified agent. One object serves any number of attempts, from any thread.

    harnesses.packages has bases with everything but `plan` and `result`.
    """

    name: str
    version: str
    package: Package | None  # what is installed for it; None: nothing
    facts: HarnessFacts
    settings: type[Config] | None  # of its settings; None: any, it checks them itself
    read_only: tuple[tuple[str, str], ...]  # what its process needs to see in the sandbox: (host path, path inside)

    def plan(self, spec: AttemptSpec) -> LaunchPlan:
        """Process mode: how to launch it. Raises HarnessError where it is not installed, ConfigurationError for a setting."""
        ...

    def result(self, exit_code: int, output: str, trajectory: bytes | None) -> HarnessResult:
        """Process mode: what its end means."""
        ...

    def account(self, output: str, records: Mapping[str, bytes]) -> bytes | None:
        """Its own record of the run as an ATIF document (whippletree.traces.atif); None where it keeps none. `records` are the
        files of the plan's trajectory and records by their path inside; in pool mode, the files of spec.output_dir."""
        ...


@runtime_checkable
class ConfiguredHarness(Harness, Protocol):
    """A harness whose `read_only`, or the meaning of its end, depends on its settings: each source has an object of its own."""

    def configured(self, settings: Mapping[str, object]) -> Harness:
        """The adapter with these settings. Raises ConfigurationError."""
        ...


@runtime_checkable
class PoolHarness(Harness, Protocol):
    """A Python harness that can be imported once and run many times in one host process."""

    def load(self) -> None:
        """Import it (slow, once per host)."""
        ...

    def run(self, spec: AttemptSpec) -> HarnessResult:
        """One attempt, on a thread of the host; its commands run in spec.sandbox."""
        ...
