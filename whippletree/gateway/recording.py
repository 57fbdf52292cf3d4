"""From a sampled turn to the store's record. Pure, but for the clock.

Invariant (tests/gateway/test_gateway_recording.py): len(sampled ids) = len(logprobs) = sampled_tokens in every record.
"""

from __future__ import annotations

import msgspec
import numpy as np

from whippletree.gateway.dialects import Dialect, ReplyHead, Trim
from whippletree.gateway.generation import Sampled
from whippletree.gateway.keys import AttemptKey
from whippletree.gateway.lineage import Node, fingerprints
from whippletree.gateway.prompts import Prompt
from whippletree.gateway.session import reply_message
from whippletree.types import Call, CallPayload, CallTimes, ChatRequest, FinishReason, ParsedMessage


class Incoming(msgspec.Struct, kw_only=True):
    """One request as it came in. `retry`: the client says that it sent it before. `received`: seconds since the epoch."""

    dialect: Dialect
    body: bytes
    request: ChatRequest
    digest: str
    received: float
    retry: bool = False


class Draft(msgspec.Struct, kw_only=True):
    """Everything about a call before it is in the store."""

    head: ReplyHead
    key: AttemptKey
    incoming: Incoming
    prompt: Prompt
    sampled: Sampled
    streamed: bool = False
    error: str = ""

    def call(self, index: int, message: ParsedMessage, finish: FinishReason, finished: float) -> Call:
        """The metadata."""
        sampled = self.sampled
        return Call(
            call_id=self.head.call_id,
            rollout_id=self.key.rollout_id,
            attempt=self.key.attempt,
            index=index,
            digest=self.incoming.digest,
            prompt_tokens=len(self.prompt.ids),
            sampled_tokens=len(sampled.ids),
            finish_reason=finish,
            times=CallTimes(
                received=self.incoming.received,
                submitted=sampled.submitted,
                first_token=sampled.first_token,
                finished=finished,
            ),
            sampling=sampled.sampling,
            parent_call_id=self.prompt.parent.call.call_id if self.prompt.parent is not None else "",
            prefix_break=self.prompt.cause,
            requested=self.incoming.request.requested,
            versions=tuple(sampled.versions),
            logprob_source=sampled.logprob_source,
            cached_tokens=sampled.cached_tokens,
            streamed=self.streamed,
            dialect=self.incoming.dialect.name,
            replica=sampled.replica,
            malformed=message.malformed,
            error=self.error,
        )

    def payload(self, call: Call, message: ParsedMessage) -> CallPayload:
        """The columns; request and reply as the harness's dialect has them."""
        base = self.prompt.base
        trim = Trim(base=base.call.call_id, messages=base.messages, tools=True) if base is not None else Trim()
        return CallPayload(
            prompt_delta=self.prompt.delta,
            sampled_ids=np.asarray(self.sampled.ids, dtype=np.int32),
            logprobs=np.asarray(self.sampled.logprobs, dtype=np.float32),
            request_json=self.incoming.dialect.trim(self.incoming.body, trim),
            reply_json=self.incoming.dialect.reply(self.head, call, message),
        )

    def node(self, call: Call, payload: CallPayload, message: ParsedMessage) -> Node:
        """The call as the lineage keeps it."""
        reply = reply_message(message)
        return Node(
            call=call,
            parent=self.prompt.parent,
            prompt_delta=payload.prompt_delta,
            sampled=payload.sampled_ids,
            tools=self.prompt.tools,
            request=self.prompt.request,
            after=fingerprints(self.prompt.request, [reply])[0],
            messages=len(self.incoming.request.messages),
            reply=reply,
        )
