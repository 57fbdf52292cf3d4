"""From a request to a draft of its call: the messages that it means, its prompt, its role.

    request ─► what it goes on from by name ─► tidied, reasoning restored ─► plan ─► compose ─► settle ─► role ─► Draft

Short prompts are composed at once, long ones on the one rendering thread, so that a cold start of many attempts does not hold
up the loop. One thread: rendering is mostly Python, and more of them would only take turns with the loop.
Invariants (tests/gateway/test_gateway_prompts.py, test_gateway_continues.py, test_gateway_roles.py):
- `continues` of another rollout, or of no call, is a 404 that names it;
- a call that goes on from another has its role.
"""

from __future__ import annotations

import asyncio
import hashlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec

from whippletree.errors import RequestError
from whippletree.gateway.history import conversation
from whippletree.gateway.prompts import (
    Composed,
    Plan,
    Prompt,
    bridge,
    force,
    plan,
    render,
    restored,
    settle,
    unrendered,
)
from whippletree.gateway.recording import Draft, Incoming
from whippletree.gateway.replicas import Replicas
from whippletree.gateway.roles import Opening
from whippletree.gateway.session import Session
from whippletree.gateway.sources import Sampled, engine_renders, speaks_tokens
from whippletree.identifiers import new_id
from whippletree.protocols import Renderer, Store
from whippletree.types import ChatRequest, Message, Role

LONG = 2000  # characters; what is longer is rendered on the thread


class Preparer:
    """Drafts of calls. Used from one event loop."""

    def __init__(self, store: Store, renderer: Renderer, replicas: Replicas) -> None:
        self._store = store
        self._renderer = renderer
        self._replicas = replicas
        self._engine_renders = engine_renders(renderer)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rendering")

    def close(self) -> None:
        """Let go of the rendering thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def own_prompt(self) -> bool:
        """Whether there is an engine that takes the prompt which we would render."""
        active = self._replicas.active
        return not self._engine_renders and (not active or any(map(speaks_tokens, active)))

    async def draft(self, session: Session, incoming: Incoming, sampled: Sampled) -> Draft:
        """Raises RequestError: the template refuses the messages, or they go on from a call that is not there."""
        request = restored(await self._continued(session, incoming.request), session.lineage)
        ignored: tuple[str, ...] = ()
        if self.own_prompt():
            prompt, ignored = await self._prompt(session, request, incoming.hints.thread)
        else:
            made = plan(session.lineage, session.recent, request, None)
            prompt = unrendered(session.lineage, made, incoming.hints.thread)
        role, look = role_of(session, incoming, request, prompt)
        return Draft(
            call_id=new_id("c-"),
            key=session.key,
            incoming=incoming,
            request=request,
            prompt=prompt,
            sampled=sampled,
            role=role,
            look=look,
            ignored=ignored,
        )

    async def _continued(self, session: Session, request: ChatRequest) -> ChatRequest:
        """The request with the messages of the call that it names, and that call's reply, before its own.

        System messages at the start of its own stand for those of the earlier request.
        """
        if not request.continues:
            return request
        node = session.lineage.nodes.get(request.continues)
        if node is None:
            cause = f"{request.continues!r} is no call of this rollout that can be gone on from"
            raise RequestError(cause, "send the whole conversation instead", status=404, code="previous_response_not_found")
        leaf = session.recent.leaves.get(node.call.call_id)
        earlier = leaf.messages if leaf is not None else await asyncio.to_thread(conversation, self._store, node.call)
        own = request.messages
        if own and own[0].role == "system":
            earlier = earlier[_systems(earlier) :]
            earlier = (*own[: _systems(own)], *earlier)
            own = own[_systems(own) :]
        return msgspec.structs.replace(request, messages=(*earlier, node.reply, *own))

    async def _prompt(self, session: Session, request: ChatRequest, thread: str) -> tuple[Prompt, tuple[str, ...]]:
        """The prompt, and what the request asked for in vain."""
        made = plan(session.lineage, session.recent, request, self._renderer)
        composed = bridge(made, self._renderer) if made.new <= LONG else None
        if composed is None and sum(len(message.content) for message in request.messages) <= LONG:
            composed = render(made, self._renderer)
        if composed is None:
            compose = partial(_compose, made, self._renderer, bridging=made.new > LONG)
            composed = await asyncio.get_running_loop().run_in_executor(self._thread, compose)
        ignored: tuple[str, ...] = ()
        if request.tool_choice == "required" or request.forced_tool:
            ids = self._renderer.forced(request.tools, request.forced_tool)
            composed = force(composed, ids, self._renderer)
            ignored = () if ids else ("tool_choice",)
        return settle(session.lineage, made, composed, thread), ignored


def _compose(made: Plan, renderer: Renderer, *, bridging: bool) -> Composed:
    """The costly part of a long prompt; runs on the thread."""
    return (bridge(made, renderer) if bridging else None) or render(made, renderer)


def _systems(messages: tuple[Message, ...]) -> int:
    """How many system messages they start with."""
    return next((place for place, message in enumerate(messages) if message.role != "system"), len(messages))


def role_of(session: Session, incoming: Incoming, request: ChatRequest, prompt: Prompt) -> tuple[Role, bytes]:
    """The role of the call; and what its conversation looks like, where it starts anew (else b"")."""
    before = prompt.base or prompt.parent
    if before is not None:
        return before.call.role, b""
    opening = opening_of(request, prompt)
    carried = session.lineage.nodes.get(prompt.shares)
    role = session.threads.judge(
        opening,
        incoming.hints,
        inherited=carried.call.role if carried is not None else None,
        origin=prompt.origin if prompt.cause == "new_thread" else "",
    )
    return role, opening.look


def opening_of(request: ChatRequest, prompt: Prompt) -> Opening:
    """What the start of a conversation looks like."""
    system = [form for form, message in zip(prompt.prints.forms, request.messages, strict=True) if message.role == "system"]
    look = hashlib.blake2b(b"".join([prompt.prints.tools, *system]), digest_size=16).digest()
    return Opening(tools=bool(request.tools), look=look)
