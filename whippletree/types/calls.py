"""Calls: one model request and what was sampled."""

from __future__ import annotations

from typing import Literal

import msgspec

from whippletree.types.base import FinishReason, Float32, Int32, Struct
from whippletree.types.engines import Grade, RoutedExperts, Sampling, VersionSpan
from whippletree.types.messages import RequestedSampling

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
    call after a compaction, the call whose reply is the summary (such a call may go on from early turns that the harness keeps:
    it then has a base too). `thread`: the harness's own name of the conversation, from its
    headers. `client`: the program that asked (user agent, shortened). `ignored`: what the request had that was not used.
    `reasoning_tokens`: how many of the sampled ones are thinking. `tools`: how many tools were offered. `constrained`: sampling
    was bound to a schema, so the logprobs are not those of the policy alone.

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
    reasoning_tokens: int = 0
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
