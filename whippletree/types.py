"""Typed structs that cross a process boundary, each with one worked example.

Words are those of docs/architecture.md: task, source, harness, sandbox, rollout, attempt, call, trace, sample, group, batch,
policy version, payload, metadata. Times are seconds since the epoch (float) unless a name says otherwise; lengths are tokens.

Invariants held here (tests/test_types.py):
- every struct round-trips through JSON and MessagePack unchanged;
- unknown fields in a decoded struct are ignored, so that an older reader accepts a newer writer's records.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import Any, Literal, dataclass_transform, overload

import msgspec
import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]

RolloutState = Literal["queuing", "running", "succeeded", "failed"]
Purpose = Literal["train", "eval"]
FinishReason = Literal["stop", "length", "tool_calls", "abort", "error"]
Launch = Literal["process", "pool"]


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Struct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of every record: immutable, keyword-only, defaults left out on the wire."""


# --- messages: the gateway's one internal form ---------------------------------------------------------------------


class ToolCall(Struct):
    """One call that the model asks for. `arguments` is the exact JSON text that was sampled (it may be malformed).

    Example: ToolCall(id="call_7f", name="bash", arguments='{"command": "ls"}')
    """

    id: str
    name: str
    arguments: str


class Media(Struct):
    """An image or file of a message. A text model sees only the placeholder that stands for it in the message's content.

    `digest` is the SHA-256 of its bytes or address, so that two pictures are never taken for one; `size` is in bytes of the
    wire form.

    Example: Media(kind="image", media_type="image/png", digest="9f86d0…", size=1834)
    """

    kind: Literal["image", "audio", "file"]
    media_type: str
    digest: str
    size: int


class Message(Struct):
    """One chat message. `content` is text; `reasoning` is text between thinking marks, never shown as content.

    `signature` is what the harness sent back of the mark that we put on reasoning: the id of the call that sampled this turn,
    or ""; with it, reasoning that the harness dropped is put back. `is_error`: the harness calls this tool result a failure.

    Example: Message(role="assistant", tool_calls=(ToolCall(id="c1", name="bash", arguments="{}"),))
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""
    media: tuple[Media, ...] = ()
    is_error: bool = False
    signature: str = ""


class ToolSpec(Struct):
    """A tool offered to the model. `parameters` is a JSON Schema object; `name` is what the model sees, unique in its request.

    A harness may have offered it in another shape, which decides how a call of it is written back: `kind` "custom" is a tool
    whose one argument, `input`, is free text, "legacy" one of the old `functions`; `namespace` and `own_name` are its name
    there when it came inside a namespace.

    Example: ToolSpec(name="bash", description="run", parameters={"type": "object", "properties": {}})
    """

    name: str
    description: str = ""
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)
    kind: Literal["function", "custom", "legacy"] = "function"
    namespace: str = ""
    own_name: str = ""


class RequestedSampling(Struct):
    """What the harness asked for; recorded beside what was used, never obeyed blindly. None: not sent.

    Example: RequestedSampling(temperature=0.0, max_tokens=4096)
    """

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    n: int | None = None


class ChatRequest(Struct):
    """The internal form of every dialect's request.

    `forced_tool`: the tool that must be called ("" leaves the choice to `tool_choice`). `schema`: a JSON Schema that the reply
    must follow, enforced where the engine can. `continues`: the call whose request and reply come before these messages
    (Responses' previous_response_id). `wants_logprobs`: the reply is to carry logprobs. `ignored`: names of fields and tools
    that were accepted and are not used. `extra`: fields of no known meaning, for engines that take a whole chat request.

    Example: ChatRequest(model="policy", messages=(Message(role="user", content="hi"),))
    """

    model: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: Literal["auto", "none", "required"] = "auto"
    forced_tool: str = ""
    stream: bool = False
    include_usage: bool = False
    wants_logprobs: bool = False
    schema: dict[str, Any] | None = None
    continues: str = ""
    ignored: tuple[str, ...] = ()
    extra: dict[str, Any] = {}
    requested: RequestedSampling = msgspec.field(default_factory=RequestedSampling)


class ParsedMessage(Struct):
    """An assistant turn parsed from sampled ids. `malformed` says why a tool call could not be parsed ("" when fine). Its raw
    text is then kept, as the call's arguments where its name could be read and in `content` where not, so that nothing sampled
    is hidden from the harness. `stop_sequence`: the requested stop string that ended the turn; it is in no part of the message.

    Example: ParsedMessage(content="done", finish_reason="stop")
    """

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: FinishReason = "stop"
    malformed: str = ""
    stop_sequence: str = ""


# --- engines ---------------------------------------------------------------------------------------------------------


class Sampling(Struct):
    """The sampling that a run fixes for its rollouts (n is always 1). `top_k` 0 and `top_p` 1 mean the whole distribution.

    Example: Sampling(temperature=1.0, max_tokens=40)
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 512
    seed: int | None = None


class TokenIds(Sequence[int]):
    """Token ids as an array, int32 [n], beside their JSON text: a long prompt is written once, not anew for each request."""

    __slots__ = ("array", "json")

    def __init__(self, array: Int32, json: bytes) -> None:
        self.array = array
        self.json = json

    def __len__(self) -> int:
        return len(self.array)

    def __iter__(self) -> Iterator[int]:
        return iter(self.array.tolist())

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> list[int]: ...
    def __getitem__(self, place: int | slice) -> int | list[int]:
        found = self.array[place]
        return found.tolist() if isinstance(place, slice) else int(found)


def ids_json(ids: Sequence[int]) -> msgspec.Raw:
    """Token ids as a JSON array, ready to stand in a request's body."""
    return msgspec.Raw(ids.json if isinstance(ids, TokenIds) else msgspec.json.encode(list(ids)))


class GenerateRequest(Struct):
    """One token-level request to an engine. `stop_token_ids` end the turn and are part of the sampled ids.

    `schema`: JSON Schema that the text must follow; sent only to engines whose report says `structured`.

    Example: GenerateRequest(request_id="r1-1-0", prompt_ids=[1, 2], sampling=Sampling(), stop_token_ids=[2])
    """

    request_id: str
    prompt_ids: Sequence[int]
    sampling: Sampling
    stop_token_ids: list[int] = []
    schema: dict[str, Any] | None = None


class VersionSpan(Struct):
    """Sampled tokens from index `start` on (until the next span) came from `policy_version`.

    Example: VersionSpan(start=0, policy_version=7)
    """

    start: int
    policy_version: int


class RoutedExperts(Struct):
    """Which experts a mixture-of-experts model used: int16, little-endian, shape (tokens, layers, experts per token), for the
    tokens from place `start` of prompt + sampled ids on.

    Example: RoutedExperts(start=0, shape=(120, 24, 8), data=b"...")
    """

    start: int
    shape: tuple[int, int, int]
    data: bytes


class TokenChunk(Struct):
    """A piece of an engine's answer, in order. len(token_ids) == len(logprobs). The last chunk has a finish reason.

    `logprobs`: natural log, float32 precision, of each sampled token under softmax(logits / temperature) over the full
    vocabulary (before top-k/top-p).
    `versions`: only on the last chunk, and only from engines that tell versions at the end of a turn: spans over the whole
    turn, which then replace the chunks' `policy_version`.
    `experts`: only on the last chunk, from engines that tell it.

    Example: TokenChunk(token_ids=[5], logprobs=[-0.1], policy_version=3, finish_reason="stop", cached_tokens=12)
    """

    token_ids: list[int]
    logprobs: list[float]
    policy_version: int
    finish_reason: Literal["stop", "length", "abort"] | None = None
    cached_tokens: int = 0
    versions: tuple[VersionSpan, ...] = ()
    experts: RoutedExperts | None = None


class ChatTurn(Struct):
    """One request to an engine's own chat endpoint: the engine renders and parses, nothing is reused.

    Example: ChatTurn(request_id="c-1-0", request=ChatRequest(model="policy", messages=(...)), sampling=Sampling())
    """

    request_id: str
    request: ChatRequest
    sampling: Sampling


class EngineStatus(Struct):
    """What an engine says of itself. `policy_version` is that of the weights it serves now.

    Example: EngineStatus(name="embedded", model="tiny", policy_version=3, context_length=1024)
    """

    name: str
    model: str
    policy_version: int
    context_length: int
    paused: bool = False
    running: int = 0
    waiting: int = 0


Grade = Literal["tokens", "logprobs", "text"]


class EngineReport(Struct):
    """Result of a probe at registration: what the engine can be used for. Only grade "tokens" can be trained on.

    `context_length` in tokens (0: unknown). `tool_calls`: its own chat endpoint reads tool calls. `structured`: it can follow a
    JSON Schema. `experts`: it tells routed experts.

    Example: EngineReport(grade="tokens", logprobs="processed", detail="ids and logprobs of 8 tokens agree with their scores")
    """

    grade: Literal["tokens", "logprobs", "text", "none"]
    logprobs: Literal["processed", "raw", "none"]
    detail: str = ""
    context_length: int = 0
    tool_calls: bool = False
    structured: bool = False
    experts: bool = False


class WeightUpdate(Struct):
    """New weights for an engine: a directory in Hugging Face layout (config.json, *.safetensors), under a new policy version.

    Example: WeightUpdate(directory="/dev/shm/run/weights", policy_version=4)
    """

    directory: str
    policy_version: int


# --- calls -----------------------------------------------------------------------------------------------------------

PrefixBreak = Literal["", "first", "template", "retokenisation", "harness_edit", "compaction", "new_thread", "engine"]
Role = Literal["main", "subagent", "compaction", "side"]


class PayloadKey(Struct):
    """Where a payload lies: a segment file of the payload store, a byte offset and a length in bytes.

    Example: PayloadKey(segment="gateway-0-0001", offset=4096, length=512)
    """

    segment: str
    offset: int
    length: int


class CallTimes(Struct):
    """Moments of one call, seconds since the epoch; 0.0 where it was not reached.

    Example: CallTimes(received=1.0, submitted=1.1, first_token=1.2, finished=1.9)
    """

    received: float
    submitted: float = 0.0
    first_token: float = 0.0
    finished: float = 0.0


class Call(Struct):
    """Metadata of one model request and what was sampled. Token-sized data is in the payload behind `payload`.

    `parent_call_id` names the earlier call whose prompt + sampled ids are the longest exact prefix of this prompt ("" for
    a root); the payload then holds only the new prompt ids. `base_call_id` names the call whose request and reply are the start
    of this call's messages ("" where none is), `messages` counts the messages of the request (internal form).
    `delivered` turns true when the harness has the whole reply.
    `grade`: below "tokens" the engine gave no ids, the counts are its own and the payload holds none.
    `role` as far as the gateway can tell; `origin_call_id`: of a sub-agent's first call, the call that started it; of the first
    call after a compaction, the call whose reply is the summary. `thread`: the harness's own name of the conversation, from its
    headers. `client`: the program that asked (user agent, shortened). `ignored`: what the request had that was not used.
    `tools`: how many tools were offered. `constrained`: sampling was bound to a schema, so the logprobs are not those of the
    policy alone.

    Example: Call(call_id="c-1", rollout_id="r-1", attempt=1, index=0, model="policy", prompt_tokens=20, sampled_tokens=8, ...)
    """

    call_id: str
    rollout_id: str
    attempt: int
    index: int
    digest: str
    prompt_tokens: int
    sampled_tokens: int
    finish_reason: FinishReason
    times: CallTimes
    sampling: Sampling
    payload: PayloadKey | None = None
    parent_call_id: str = ""
    prefix_break: PrefixBreak = ""
    requested: RequestedSampling = msgspec.field(default_factory=RequestedSampling)
    versions: tuple[VersionSpan, ...] = ()
    logprob_source: Literal["processed", "raw", "none"] = "processed"
    cached_tokens: int = 0
    delivered: bool = False
    streamed: bool = False
    dialect: str = "chat"
    role: Role = "main"
    replica: str = ""
    malformed: str = ""
    error: str = ""
    base_call_id: str = ""
    messages: int = 0
    tools: int = 0
    grade: Grade = "tokens"
    origin_call_id: str = ""
    thread: str = ""
    client: str = ""
    ignored: tuple[str, ...] = ()
    constrained: bool = False

    @property
    def version_start(self) -> int:
        """Policy version of the first sampled token; -1 when nothing was sampled."""
        return self.versions[0].policy_version if self.versions else -1

    @property
    def version_end(self) -> int:
        """Policy version of the last sampled token; -1 when nothing was sampled."""
        return self.versions[-1].policy_version if self.versions else -1


class CallPayload(msgspec.Struct, kw_only=True):
    """Token-sized columns of one call. Shapes: prompt_delta [P'], sampled_ids [S], logprobs [S].

    `prompt_delta`: the prompt ids that follow the parent's prompt + sampled ids, or the whole prompt when there is no parent.
    `request_json`: the harness's own request, without what its base call's request has already (gateway/deltas.py).
    `messages_json`: the request's messages after those of the base call and its reply, in the internal form (JSON list of
    Message). `reply_json`: the turn in the internal form (JSON of ParsedMessage); the dialect's reply is made again from it.
    `lineage`: how the gateway finds the call again (gateway/lineage.py).
    """

    prompt_delta: Int32
    sampled_ids: Int32
    logprobs: Float32
    request_json: bytes = b""
    messages_json: bytes = b"[]"
    reply_json: bytes = b""
    lineage: bytes = b""
    experts: RoutedExperts | None = None


# --- rollouts --------------------------------------------------------------------------------------------------------


class CauseClass(enum.StrEnum):
    """Whose fault a failure is. All of them leave the reward None; a wrong answer is not a failure."""

    ENGINE = "engine"
    GATEWAY = "gateway"
    SANDBOX = "sandbox"
    HARNESS = "harness"
    HOST_LOST = "host_lost"
    NO_CALLS = "no_calls"
    TASK = "task"
    VERIFIER = "verifier"
    DEADLINE = "deadline"
    CONFIGURATION = "configuration"
    CANCELLED = "cancelled"


class Cause(Struct):
    """Why an attempt failed: class, the phase it was in, what happened, what to do.

    Example: Cause(cause=CauseClass.SANDBOX, phase="boot", message="bwrap exited 1: ...", next_step="run `whippletree check`")
    """

    cause: CauseClass
    phase: str
    message: str
    next_step: str = ""


class VerifierResult(Struct):
    """What the verifier said. `reward` None means that the verifier itself failed (then `cause` says why).
    `scores` are its named scores; they are combined only by an explicit rule. `tampering`: what the agent had left where only
    the tests write; it counted for nothing.

    Example: VerifierResult(reward=1.0, scores={"reward": 1.0}, exit_code=0)
    """

    reward: float | None
    scores: dict[str, float] = {}
    exit_code: int | None = None
    output: str = ""
    cause: Cause | None = None
    tampering: tuple[str, ...] = ()


class RolloutSpec(Struct):
    """The desired rollout: everything an attempt needs, written once when the rollout is created.

    `group_id` joins the rollouts of one task under one harness configuration. `key` makes creation idempotent.

    Example: RolloutSpec(rollout_id="s0003-g02-m5", group_id="s0003-g02", source="trail", task_id="trail-2-0-17",
                         task_path="/tasks/trail-2-0-17", harness="mini-swe-agent", purpose="train", step=3)
    """

    rollout_id: str
    group_id: str
    source: str
    task_id: str
    task_path: str
    harness: str
    purpose: Purpose = "train"
    step: int = 0
    sampling: Sampling = msgspec.field(default_factory=Sampling)
    max_attempts: int = 3
    labels: dict[str, str] = {}


class Phase(Struct):
    """One timed phase of an attempt (boot, setup, agent, verify, cleanup); seconds.

    Example: Phase(name="agent", started=10.0, seconds=1.5)
    """

    name: str
    started: float
    seconds: float


class Attempt(Struct):
    """One try at a rollout. `attempt` counts from 1 and is the fencing token: reports of an older one change nothing.

    Example: Attempt(rollout_id="s0003-g02-m5", attempt=1, started=10.0)
    """

    rollout_id: str
    attempt: int
    started: float
    worker: str = ""
    sealed: bool = False
    finished: float = 0.0
    phases: tuple[Phase, ...] = ()
    result: VerifierResult | None = None
    cause: Cause | None = None
    exit_status: str = ""
    sandbox: str = ""


class Rollout(Struct):
    """A rollout as it stands: its spec, its state and, once terminal, its result. `reward` is None unless it was verified.

    Example: Rollout(spec=..., state="succeeded", attempt=1, reward=1.0, created=1.0, updated=2.0)
    """

    spec: RolloutSpec
    state: RolloutState
    created: float
    updated: float
    attempt: int = 0
    reward: float | None = None
    cause: Cause | None = None

    @property
    def terminal(self) -> bool:
        """True once the state can no longer change."""
        return self.state in ("succeeded", "failed")


class Event(Struct):
    """Something that happened to a rollout, for people and for the record. `event_id` makes a repeat a no-op.

    Example: Event(event_id="s0-1-boot", rollout_id="s0", attempt=1, time=1.0, kind="phase", data={"name": "boot"})
    """

    event_id: str
    rollout_id: str
    attempt: int
    time: float
    kind: str
    data: dict[str, Any] = {}


class StepRecord(Struct):
    """One optimiser update, planned before it is computed and committed with its checkpoint. On resume, planned steps after
    the last checkpoint are replayed with the same rollouts: each rollout is trained exactly once in the weights' history.

    Example: StepRecord(step=3, policy_version=4, rollout_ids=("a", "b"), committed=True, checkpoint="checkpoints/step-0003")
    """

    step: int
    rollout_ids: tuple[str, ...]
    policy_version: int
    committed: bool = False
    checkpoint: str = ""


# --- samples ---------------------------------------------------------------------------------------------------------


class Sample(msgspec.Struct, kw_only=True, frozen=True):
    """One training sequence: a root-to-leaf path of a rollout's trace. All columns have shape [L].

    `trained` marks sampled, delivered tokens that this sample trains (shared prefixes are trained in one sample only);
    `logprobs` are the sampler's (0.0 where nothing was sampled); `versions` is the policy version (-1 in context).
    """

    sample_id: str
    rollout_id: str
    group_id: str
    call_ids: tuple[str, ...]
    token_ids: Int32
    trained: Bool
    logprobs: Float32
    versions: Int32
