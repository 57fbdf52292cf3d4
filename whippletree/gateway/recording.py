"""From a sampled turn to the store's record. Pure, but for the clock.

Invariant (tests/gateway/test_gateway_recording.py): len(sampled ids) = len(logprobs) = sampled_tokens in every record, or the
call has a grade below "tokens" and no ids.
"""

from __future__ import annotations

import msgspec
import numpy as np

from whippletree.gateway.dialects import Dialect, Target
from whippletree.gateway.digest import Fields
from whippletree.gateway.keys import AttemptKey
from whippletree.gateway.lineage import Fingerprint, Links, Node, chained, form, make_node, reply_message
from whippletree.gateway.prompts import Prompt
from whippletree.gateway.roles import Hints
from whippletree.gateway.sources import Sampled
from whippletree.types import Call, CallPayload, CallTimes, ChatRequest, FinishReason, Int32, Message, ParsedMessage, Role

NO_IDS: Int32 = np.zeros(0, np.int32)


class Incoming(msgspec.Struct, kw_only=True):
    """One request as it came in; `fields` are those of its body. `retry`: the client says that it sent it before. `received`:
    seconds since the epoch."""

    dialect: Dialect
    body: bytes
    fields: Fields
    request: ChatRequest
    digest: str
    received: float
    retry: bool = False
    target: Target = Target()
    hints: Hints = Hints()


class Draft(msgspec.Struct, kw_only=True):
    """Everything about a call before it is in the store. `request`: as it was matched and rendered. `look`: of its
    conversation, where it starts anew (roles.Opening)."""

    call_id: str
    key: AttemptKey
    incoming: Incoming
    request: ChatRequest
    prompt: Prompt
    sampled: Sampled
    role: Role = "main"
    look: bytes = b""
    ignored: tuple[str, ...] = ()
    error: str = ""
    links: Links | None = None  # these two once `payload` was made
    reply: Message | None = None

    @property
    def trainable(self) -> bool:
        """Whether ids are recorded."""
        return self.sampled.grade == "tokens"

    def call(self, index: int, message: ParsedMessage, finish: FinishReason, finished: float) -> Call:
        """The metadata."""
        sampled, prompt, told = self.sampled, self.prompt, self.sampled.told
        counted = not self.trainable and told is not None
        return Call(
            call_id=self.call_id,
            rollout_id=self.key.rollout_id,
            attempt=self.key.attempt,
            index=index,
            digest=self.incoming.digest,
            prompt_tokens=told.prompt_tokens if counted and told is not None else len(prompt.ids),
            sampled_tokens=told.sampled_tokens if counted and told is not None else len(sampled.ids),
            finish_reason=finish,
            times=CallTimes(
                received=self.incoming.received,
                submitted=sampled.submitted,
                first_token=sampled.first_token,
                finished=finished,
            ),
            sampling=sampled.sampling,
            parent_call_id=prompt.parent.call.call_id if prompt.parent is not None else "",
            prefix_break=prompt.cause,
            requested=self.incoming.request.requested,
            versions=tuple(sampled.versions),
            logprob_source=sampled.logprob_source if self.trainable else "none",
            cached_tokens=sampled.cached_tokens,
            reasoning_tokens=message.reasoning_tokens,
            streamed=self.incoming.request.stream,
            dialect=self.incoming.dialect.name,
            role=self.role,
            replica=sampled.replica,
            malformed=message.malformed,
            error=self.error,
            base_call_id=prompt.base.call.call_id if prompt.base is not None else "",
            messages=len(self.request.messages),
            tools=len(self.request.tools),
            grade=sampled.grade,
            origin_call_id=prompt.origin,
            thread=self.incoming.hints.thread,
            client=self.incoming.hints.client,
            ignored=self._ignored(),
            constrained=sampled.constrained,
        )

    def _ignored(self) -> tuple[str, ...]:
        names = [*self.request.ignored, *self.ignored]
        if self.request.schema is not None and not self.sampled.constrained:
            names.append("response_format")
        return tuple(dict.fromkeys(names))

    def payload(self, message: ParsedMessage, stored_request: bytes) -> CallPayload:
        """The columns. `stored_request`: deltas.pack of the body."""
        ids = self.trainable
        return CallPayload(
            prompt_delta=self.prompt.delta if ids else NO_IDS,
            sampled_ids=np.asarray(self.sampled.ids if ids else [], dtype=np.int32),
            logprobs=np.asarray(self.sampled.logprobs if ids else [], dtype=np.float32),
            request_json=stored_request,
            messages_json=msgspec.json.encode(self.request.messages[self.known :]),
            reply_json=msgspec.json.encode(message),
            lineage=self._links(message),
            experts=self.sampled.experts if ids else None,
        )

    @property
    def known(self) -> int:
        """How many of the request's messages an earlier call has."""
        base = self.prompt.base
        return base.messages + 1 if base is not None else 0

    @property
    def forms(self) -> list[Fingerprint]:
        """The forms of the messages that no earlier call has."""
        return self.prompt.prints.forms[self.known :]

    def _links(self, message: ParsedMessage) -> bytes:
        prints, forms = self.prompt.prints, self.forms
        request = prints.after[-1]
        self.reply = reply_message(message)
        said = form(self.reply)
        self.links = Links(
            tools=prints.tools,
            request=request,
            after=chained(request, [said])[0],
            asked=forms[-1] if forms else b"",
            said=said,
            look=self.look,
            offered=len(self.request.tools),
        )
        return msgspec.msgpack.encode(self.links)

    def node(self, call: Call, payload: CallPayload) -> Node:
        """The call as the lineage keeps it."""
        return make_node(call, payload, self.prompt.parent, self.links, self.reply)
