"""The extension points. A user can write any of these in one file and name it from the configuration as "module:name".

| protocol | what a user writes one for | where it is named |
|---|---|---|
| Engine, ChatEngine | another inference server | [engine] |
| Router | another choice of replica | [gateway] router |
| Renderer | another chat format | [rendering] |
| Store, PayloadStore | another database | [store] |
| Sandbox | another machine for an attempt | [sandbox] |
| Harness, ConfiguredHarness | another agent | [[sources]] |
| Verifier | another way to judge | task.toml |
| (a function) | another advantage, shaping hook, group filter or loss weight (docs/batching.md) | [batching] |

Invariants (tests/test_protocols.py): every shipped implementation satisfies its protocol at run time.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import msgspec

from whippletree.configuration import Config
from whippletree.types import (
    Attempt,
    Call,
    CallPayload,
    ChatTurn,
    EngineReport,
    EngineStatus,
    Event,
    EventPage,
    Float32,
    GenerateRequest,
    Int32,
    Message,
    ParsedMessage,
    PayloadKey,
    QueueReport,
    Rollout,
    RolloutPage,
    RolloutSpec,
    RolloutState,
    StepRecord,
    Struct,
    TokenChunk,
    ToolSpec,
    Usage,
    WeightUpdate,
)

# --- engines ---------------------------------------------------------------------------------------------------------


@runtime_checkable
class Engine(Protocol):
    """A token-level inference engine: ids in, ids and logprobs out.

    Raises EngineUnavailable where a retry may help, ContextOverflow where the prompt does not fit, EngineError otherwise.
    """

    name: str

    def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        """Sample one turn. Closing the iterator early aborts the request in the engine."""
        ...

    async def abort(self, request_id: str) -> None:
        """End a request; its last chunk then has finish_reason "abort". Unknown ids are ignored."""
        ...

    async def pause(self) -> None:
        """Stop computing. Running requests are frozen, not lost; new ones wait."""
        ...

    async def resume(self) -> None:
        """Go on computing."""
        ...

    async def update_weights(self, update: WeightUpdate) -> None:
        """Swap the weights in place and drop every cache made with the old ones. Safe only while paused or idle."""
        ...

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """Logprobs of token_ids[1:] at temperature 1, each under its prefix (length len(token_ids) - 1)."""
        ...

    async def status(self) -> EngineStatus:
        """What the engine says of itself."""
        ...

    async def probe(self) -> EngineReport:
        """Grade the engine by measurement."""
        ...

    async def close(self) -> None:
        """Close connections; the engine itself lives on if it is another process."""
        ...


class ReplicaView(Struct):
    """What routing knows of a replica. `down_until` is in seconds of a monotonic clock; `open` is false while its circuit
    breaker keeps calls away.

    Example: ReplicaView(place=0, name="vllm-0", in_flight=3, down_until=0.0)
    """

    place: int
    name: str = ""
    in_flight: int = 0
    down_until: float = 0.0
    open: bool = True


class RoutedCall(Struct):
    """What routing knows of a call: its rollout, the replica that has its prefix (-1: none), its lengths in tokens.

    Example: RoutedCall(rollout_id="s0003-g02-m5", preferred=1, prompt_tokens=4096, shared_tokens=4000)
    """

    rollout_id: str
    preferred: int = -1
    prompt_tokens: int = 0
    shared_tokens: int = 0


@runtime_checkable
class Router(Protocol):
    """Which replica a call goes to: a pure policy over plain values."""

    def choose(self, replicas: Sequence[ReplicaView], call: RoutedCall, now: float) -> int | None:
        """The place of the replica to use; None when none may be asked now. `now` is in seconds of a monotonic clock."""
        ...


# --- rendering -------------------------------------------------------------------------------------------------------


class StreamDelta(Struct):
    """What newly sampled tokens add to the reply. `tool_index` is -1 unless this is a piece of a tool call.

    Example: StreamDelta(content="hel")  or  StreamDelta(tool_index=0, tool_name="bash", tool_id="call_1")
    """

    content: str = ""
    reasoning: str = ""
    tool_index: int = -1
    tool_id: str = ""
    tool_name: str = ""
    arguments: str = ""


class StreamParser(Protocol):
    """Incremental parse of one sampled turn. Joined deltas equal what `finish` returns, for any split of the ids.

    `stopped` is the stop string that was met ("" so far): what is fed after it is ignored, and sampling should end.
    """

    stopped: str

    def feed(self, token_ids: Sequence[int]) -> list[StreamDelta]:
        """Deltas that these further ids settle; text that may still turn into a mark is held back."""
        ...

    def finish(self, finish_reason: str) -> tuple[list[StreamDelta], ParsedMessage]:
        """The rest, and the whole turn. `finish_reason` is the engine's ("stop", "length", "abort")."""
        ...


class ChatChunk(Struct):
    """A piece of the answer of an engine's own chat endpoint. The last chunk has a finish reason and the engine's own counts.

    `prompt_ids` (first chunk) and `token_ids` with `logprobs` only from engines that give them (grade "tokens"); `deltas` are
    what the engine parsed, and are left empty where ids are given.

    Example: ChatChunk(deltas=(StreamDelta(content="hel"),))
    """

    deltas: tuple[StreamDelta, ...] = ()
    prompt_ids: list[int] = []
    token_ids: list[int] = []
    logprobs: list[float] = []
    policy_version: int = 0
    finish_reason: Literal["stop", "length", "tool_calls", "abort"] | None = None
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    cached_tokens: int = 0


@runtime_checkable
class ChatEngine(Protocol):
    """An engine with a chat endpoint of its own: messages in, deltas (and ids, where it can) out.

    Raises what Engine raises. An engine that offers this alone is graded below "tokens".
    """

    name: str

    def chat(self, turn: ChatTurn) -> AsyncIterator[ChatChunk]:
        """Sample one turn under the engine's own template. Closing the iterator early aborts the request in the engine."""
        ...


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """The recorded ids that a new request goes on from. Shapes: prompt [P], sampled [S].

    `text`: the exact bytes that prompt and sampled ids stand for (Renderer.to_bytes). `messages`: how many of the request's
    messages are the recorded ones, the sampled turn included.
    """

    prompt: Int32
    sampled: Int32
    text: bytes
    messages: int


@runtime_checkable
class Renderer(Protocol):
    """messages ⇄ tokens for one model family. Safe to use from several threads."""

    stop_token_ids: list[int]

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """Prompt ids with the generation prompt at the end. Raises RequestError when the template refuses the messages."""
        ...

    def bridge(self, recorded: Recorded, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int] | None:
        """The ids that follow the recorded ones, such that the text of both is what `render` gives; None when re-rendering
        would give another text (then the prefix is broken and `render` is used)."""
        ...

    def forced(self, tools: Sequence[ToolSpec], name: str) -> list[int]:
        """Ids to put after the prompt so that the turn is a call of the tool `name` ("": of any tool); [] where the format
        has no such beginning. They are fed to the turn's parser before its sampled ids."""
        ...

    def parser(self, tools: Sequence[ToolSpec], stops: Sequence[str] = ()) -> StreamParser:
        """A fresh parser for one sampled turn, which ends at the first of the stop strings. Without tools, call marks are
        plain content."""
        ...

    def to_bytes(self, token_ids: Sequence[int]) -> bytes:
        """The exact bytes behind the ids, special tokens included; joined over any split of the ids."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of the ids, special tokens included."""
        ...


# --- store -----------------------------------------------------------------------------------------------------------


class PayloadStore(Protocol):
    """Token-sized data, written once and released once trained."""

    def put(self, payloads: Sequence[CallPayload]) -> list[PayloadKey]:
        """Append; what is returned survives the kill of any process, and a power cut as the store's settings say."""
        ...

    def flush(self) -> None:
        """Make everything that was put safe against a power cut."""
        ...

    def get(self, key: PayloadKey) -> CallPayload:
        """Raises StoreError when the payload is gone or damaged (checksum)."""
        ...

    def segments(self) -> list[str]:
        """Segments that nobody writes any more."""
        ...

    def remove(self, segments: Collection[str]) -> list[str]:
        """Nothing of these segments is wanted any more. Returns those that are gone now; the others are asked for again."""
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...


class AttemptOutcome(Struct):
    """How an attempt ended: exactly one of `result` with a reward, or `cause`. `requeue`: try the rollout again.

    Example: AttemptOutcome(result=VerifierResult(reward=1.0), exit_status="Submitted", phases=(...))
    """

    attempt: Attempt
    requeue: bool = False


@runtime_checkable
class Store(Protocol):
    """The durable record. Each write returns a Future that is resolved once the write is durable (group commit); each read
    sees every write whose Future was resolved. Safe from any thread; several processes may open one store."""

    def create_rollouts(self, specs: Sequence[RolloutSpec]) -> Future[None]:
        """Idempotent by rollout_id. Raises ConflictError if the id exists with another spec."""
        ...

    def rollout(self, rollout_id: str) -> Rollout:
        """Raises StoreError when unknown."""
        ...

    def rollouts(
        self,
        *,
        states: Iterable[RolloutState] = (),
        purpose: str = "",
        group_id: str = "",
        step: int | None = None,
        updated_after: float = 0.0,
        limit: int = 0,
    ) -> list[Rollout]:
        """Rollouts that match every given filter, oldest first."""
        ...

    def page(
        self,
        *,
        states: Iterable[RolloutState] = (),
        source: str = "",
        group_id: str = "",
        purpose: str = "",
        order: Literal["created", "updated"] = "created",
        after: str = "",
        limit: int = 100,
    ) -> RolloutPage:
        """Rollouts that match every given filter, in the order of creation or of their last change, behind the cursor `after`
        (a page's `next`). Whoever follows the order of changes to its end and asks again later misses none."""
        ...

    def begin(self, rollout_id: str, worker: str, lease_seconds: float = 0.0) -> Future[Attempt]:
        """Move one queuing rollout to running. Idempotent by worker. With a lease the attempt is lost once nobody renews it for
        so many seconds of the store's clock. Raises ConflictError."""
        ...

    def renew(self, rollout_id: str, attempt: int, *, at_least: float = 0.0) -> Future[Attempt | None]:
        """Begin the attempt's lease anew, if it has one, for `at_least` seconds where that is more. None, and nothing changes,
        where that attempt is not under way."""
        ...

    def end_lapsed(self, longest: float = math.inf) -> list[Attempt]:
        """End the attempts whose lease has run out, of those with a lease of at most `longest` seconds: cause HOST_LOST, and
        the failure table decides whether their rollouts wait for another attempt. Each is ended once, whoever asks. Blocks."""
        ...

    def cancel(self, rollout_ids: Sequence[str], reason: str) -> Future[list[Rollout]]:
        """Fail queuing and running rollouts with the cause "cancelled", their attempts sealed; what they still report changes
        nothing. Those that have ended stay as they are. Returns all of them."""
        ...

    def pause_queue(self, paused: bool) -> Future[None]:
        """While the queue is paused `claim` gives nothing. What runs goes on."""
        ...

    def queue(self) -> QueueReport:
        """Every source's rollouts by state."""
        ...

    def open_session(self, spec: RolloutSpec) -> Future[Attempt]:
        """A rollout that nobody claims: created running, with attempt 1, for a program that is captured from outside.
        Idempotent by rollout_id. Raises ConflictError if the id exists with another spec."""
        ...

    def claim(self, worker: str, limit: int) -> Future[list[Attempt]]:
        """Move up to `limit` queuing rollouts to running, each with a new attempt: evaluation before training, the source with
        the least under way before others, then oldest first. External ones are never claimed."""
        ...

    def release_worker(self, worker_prefix: str) -> Future[list[Attempt]]:
        """Put every running rollout of these workers back to queuing: their attempts are sealed and can no longer report."""
        ...

    def seal(self, rollout_id: str, attempt: int) -> Future[bool]:
        """No further call of this attempt is accepted. False if that attempt is not the current one."""
        ...

    def finish(self, outcome: AttemptOutcome) -> Future[bool]:
        """Close an attempt: succeeded with a reward, failed with a cause, or back to queuing. False if it was fenced off."""
        ...

    def attempts(self, rollout_id: str) -> list[Attempt]:
        """All attempts, oldest first."""
        ...

    def append_events(self, events: Sequence[Event]) -> Future[None]:
        """Idempotent by event_id."""
        ...

    def events(self, rollout_id: str) -> list[Event]:
        """Events of one rollout, oldest first."""
        ...

    def event_page(self, rollout_id: str, *, kind: str = "", after: int = 0, limit: int = 100) -> EventPage:
        """Events of one rollout in the order in which they were written, behind the place `after`."""
        ...

    def record_call(self, call: Call, payload: CallPayload) -> Future[Call]:
        """Durable when resolved; the returned call carries its payload key. Raises FencedError if the attempt is sealed."""
        ...

    def mark_delivered(self, call_id: str) -> Future[None]:
        """The harness has the whole reply."""
        ...

    def calls(self, rollout_id: str, attempt: int) -> list[Call]:
        """Calls of one attempt by index."""
        ...

    def payload(self, call: Call) -> CallPayload:
        """Raises StoreError when it was released."""
        ...

    def record_column(self, call: Call, name: str, values: Float32) -> Future[None]:
        """Keep one more column of a recorded call, a number for each sampled token. The first one of a name stays. Raises
        StoreError when the call is unknown."""
        ...

    def columns(self, rollout_id: str, attempt: int, name: str) -> dict[str, Float32]:
        """The columns of that name, by call_id, of an attempt's calls that have one. Raises StoreError when released."""
        ...

    def release(self, rollout_ids: Sequence[str]) -> int:
        """Give up the payloads of these rollouts; their records stay. Blocks; returns how many payloads were given up."""
        ...

    def plan_step(self, record: StepRecord) -> Future[None]:
        """Assign rollouts to an update. Raises ConflictError when one of them already belongs to another step."""
        ...

    def commit_step(self, step: int, checkpoint: str) -> Future[None]:
        """The update's checkpoint is on disk."""
        ...

    def steps(self) -> list[StepRecord]:
        """All steps in order."""
        ...

    def set_meta(self, key: str, value: str) -> Future[None]:
        """Keep one small value of the run, overwriting an earlier one."""
        ...

    def meta(self, key: str) -> str | None:
        """The value of `key`, or None."""
        ...

    def close(self) -> None:
        """Flush and close."""
        ...


# --- sandboxes -------------------------------------------------------------------------------------------------------


class Limits(Struct):
    """Limits of one sandbox. 0 means none. `cpus`: cores' worth of time. `space_mb`: size of what can be written to, 0: that
    of the settings.

    Example: Limits(memory_mb=512, processes=64, open_files=1024, file_mb=64, cpus=1.5, space_mb=1024)
    """

    memory_mb: int = 512
    processes: int = 64
    open_files: int = 1024
    file_mb: int = 64
    cpus: float = 0.0
    space_mb: int = 0


class NetworkPolicy(Struct):
    """What a sandbox may reach: the gateway or not, and by the proxy each "host:port" of `allow`, the names of each
    "*.name:port", and with "*:port" every public address. An address that is not public must be listed itself.

    Example: NetworkPolicy(allow=("pypi.org:443", "files.pythonhosted.org:443"))
    """

    gateway: bool = True
    allow: tuple[str, ...] = ()


class NetworkRefusal(Struct):
    """Something that a sandbox tried to reach and may not. `time` in seconds since 1970; `address`: what the name stands for,
    where it was looked up.

    Example: NetworkRefusal(time=1764450000.0, host="github.com", port=443, reason="not on the allow-list")
    """

    time: float
    host: str
    port: int
    reason: str
    address: str = ""


class SandboxSpec(Struct):
    """What a sandbox is made of. `files` are copied in ((host path, path inside)), `read_only` are bound ((host, inside)).
    `gateway_port` on 127.0.0.1 inside leads to the gateway, `proxy_port` to what `network` allows; there is no other way out. 0
    means that there is no such port. `rootfs`: directory with a root file system, where a backend takes one; `user`: whose
    the commands are that name no user, and the files that are copied in ("": the sandbox's own user).

    Example: SandboxSpec(sandbox_id="s0-1", workdir="/app", files=(("/tasks/t/environment/data", "/app"),))
    """

    sandbox_id: str
    workdir: str = "/app"
    files: tuple[tuple[str, str], ...] = ()
    read_only: tuple[tuple[str, str], ...] = ()
    environment: dict[str, str] = {}
    limits: Limits = Limits()
    gateway_port: int = 8000
    proxy_port: int = 0
    network: NetworkPolicy = NetworkPolicy()
    rootfs: str = ""
    user: str = ""


class PodAddress(Struct):
    """Where a sandbox is that is a pod, for whoever may read the same kubeconfig; it holds no secret. `user` is the number of
    its container's user. Times are in seconds: of one request, between pings, for finding a command again whose connection was
    lost.

    Example: PodAddress(namespace="rollouts", pod="wt-box-s0-1b2c3d4e", uid="9f...", container="sandbox", kubeconfig="/etc/k")
    """

    namespace: str
    pod: str
    uid: str
    container: str
    kubeconfig: str = ""
    context: str = ""
    user: int = 0
    user_name: str = "root"
    request_seconds: float = 30.0
    ping_seconds: float = 10.0
    lost_seconds: float = 60.0


class SandboxHandle(Struct):
    """Enough to enter a running sandbox from another process on this machine (`sandboxes.attach`). `pod`: where it is, if it is
    not on this machine.

    Example: SandboxHandle(backend="bubblewrap", sandbox_id="s0-1", pid=4711, root="/run/wt/s0-1", workdir="/app")
    """

    backend: str
    sandbox_id: str
    pid: int
    root: str
    workdir: str
    environment: dict[str, str] = {}
    cgroups: tuple[str, ...] = ()
    limits: Limits = Limits()
    pod: PodAddress | None = None


class ExecResult(Struct):
    """A command's end. `output` is stdout and stderr together; `timed_out`: it was killed at its limit; `left_running`: a
    process that it left in the background still held its output; it lives on, and what it writes now is dropped.

    Example: ExecResult(exit_code=0, output="ok\\n", seconds=0.01)
    """

    exit_code: int
    output: str
    seconds: float
    timed_out: bool = False
    truncated: bool = False
    left_running: bool = False


class Fetched(Struct):
    """What `get` copied to the host. `skipped` (at most 100): symbolic links, devices, pipes and sockets, by path.

    Example: Fetched(files=2, bytes=1024, skipped=("artifacts/latest",))
    """

    files: int
    bytes: int
    skipped: tuple[str, ...] = ()


class Snapshot(Struct):
    """A sandbox at one moment, in a directory of the host. `reason`: why it holds no processes. Sizes in bytes on disk;
    `frozen_seconds`: how long the sandbox stood still for it. `owner` is the number of the sandbox's own user. `environment`
    and `limits`, `rootfs` and `user`: of its spec; what is restored may be given others.

    Example: Snapshot(directory="/runs/a/snapshots/s0-1", backend="runc", holds="processes+files", sandbox_id="s0-1",
                      owner=200017, workdir="/app", files_bytes=81920, processes_bytes=10485760, frozen_seconds=0.41,
                      time=1764450000.0)
    """

    directory: str
    backend: str
    holds: Literal["processes+files", "files"]
    sandbox_id: str
    owner: int
    workdir: str
    files_bytes: int
    processes_bytes: int
    frozen_seconds: float
    time: float
    reason: str = ""
    rootfs: str = ""
    user: str = ""
    read_only: tuple[tuple[str, str], ...] = ()
    environment: dict[str, str] = {}
    limits: Limits = Limits()


@runtime_checkable
class Sandbox(Protocol):
    """The machine of one attempt. Raises SandboxError. `stop` never raises and leaves nothing behind."""

    isolation: str  # one sentence for people: what this backend does and does not isolate
    handle: SandboxHandle | None  # set by start
    gateway: tuple[str, int]  # (host, port) of the gateway as its commands reach it, once it has started

    @property
    def proxy_environment(self) -> dict[str, str]:
        """Variables that lead commands to the proxy; {} while it leads nowhere, and where there is none."""
        ...

    @property
    def refusals(self) -> Sequence[NetworkRefusal]:
        """What it tried to reach and may not: the latest, oldest first."""
        ...

    @property
    def refused(self) -> int:
        """How often it tried that, since it started."""
        ...

    async def start(self) -> SandboxHandle:
        """Boot it. Raises SandboxError with what the backend said."""
        ...

    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        environment: Mapping[str, str] | None = None,
        cwd: str = "",
        output_limit: int = 1_000_000,
        user: str = "",
        on_output: Callable[[bytes], None] | None = None,
    ) -> ExecResult:
        """Run a command to its end; at `timeout` seconds it and its children are killed. `user`: as whom, a name of its
        /etc/passwd or a number ("" for the sandbox's own user). `on_output` gets the output as it comes, in pieces, up to
        `output_limit` bytes. Raises SandboxError where the backend cannot."""
        ...

    async def put(self, source: Path, target: str) -> None:
        """Copy a host file or directory to a path that does not exist yet inside."""
        ...

    async def read(self, path: str, limit: int = 1_000_000) -> bytes | None:
        """A regular file's bytes (symbolic links are not followed); None when it does not exist."""
        ...

    async def get(self, source: str, target: Path, limit: int = 100_000_000) -> Fetched:
        """Copy a file or directory out to a host path that does not exist yet. Links are not followed, and not copied.
        Raises SandboxError when there is more than `limit` bytes; nothing is left of a copy that failed."""
        ...

    async def usage(self) -> Usage:
        """What it uses, and has used."""
        ...

    async def snapshot(self, directory: Path) -> Snapshot:
        """Write its files, and its processes where that works, into a directory that does not exist yet. It goes on."""
        ...

    async def set_network(self, policy: NetworkPolicy) -> None:
        """Change what may be reached while it runs; what is open and no longer allowed is cut."""
        ...

    async def kill_all(self) -> None:
        """End every process that was started inside; the sandbox and its files stay."""
        ...

    async def stop(self) -> None:
        """End everything in it and remove it."""
        ...


# --- harnesses -------------------------------------------------------------------------------------------------------


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


class HarnessFacts(Struct):
    """Known behaviour of a harness, as data. `dialects` are the gateway's names, the default first.

    `shell_tool` is the tool that runs a command ("": none), `shell_argument` its argument that holds it, `shell_extra` what
    else it insists on. `second_request`: how the second request extends the first, as it is, after the gateway's normal form,
    or not at all because there is none. `sampled_turn`: how the model's turn comes back in it. `side_calls`: kinds of side
    calls in a plain run. `thread_headers` name threads or sub-agents. `compacts`: it shortens its history by itself.
    `exit_code`: what its exit code means. `variations`: what settings can vary. `fixed_prompt_chars`: about, its system prompt
    and tools in the default settings. `notes`: further quirks.

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
    second_request: Literal["exact", "normalised", "single"] = "exact"
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
