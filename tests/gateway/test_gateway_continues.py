"""Requests that go on from a call by its name, stored replies, and reasoning that comes back as a mark."""

import json

import pytest
from gateway_world import user

from whippletree.errors import RequestError
from whippletree.gateway.dialects import Target, signatures
from whippletree.gateway.dialects.chat import ChatDialect
from whippletree.gateway.history import conversation, stored_request
from whippletree.gateway.keys import AttemptKey
from whippletree.rendering import RenderingConfig, load_renderer
from whippletree.types import Message

CALL = '<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>'


def system(text):
    return {"role": "system", "content": text}


async def test_a_request_goes_on_from_the_call_that_it_names(make_direct):
    async with make_direct([f"I look.{CALL}", "done", "again"]) as direct:
        first = await direct.ask([system("be brief"), user("go")])
        result = {"role": "tool", "tool_call_id": "x", "content": "amber"}
        second = await direct.ask([result], change={"continues": first.call.call_id})
        assert (second.call.base_call_id, second.call.parent_call_id) == (first.call.call_id, first.call.call_id)
        assert (second.call.prefix_break, second.call.messages) == ("", 4)
        third = await direct.ask([system("be brief"), user("on")], change={"continues": second.call.call_id})
        assert third.call.base_call_id == second.call.call_id
        assert [message.content for message in conversation(direct.store, third.call)] == [
            "be brief", "go", "I look.", "amber", "done", "on",
        ]  # fmt: skip


async def test_it_goes_on_from_the_store_after_the_attempt_was_dropped_from_memory(make_direct):
    async with make_direct(["one", "two", "three"], cache_bytes=1, max_sessions=1) as direct:
        first = await direct.ask([user("go")])
        await direct.settled()
        await direct.ask([user("other")], rollout="r1")
        assert len(direct.gateway._sessions) == 1
        second = await direct.ask([user("on")], change={"continues": first.call.call_id})
        assert second.call.parent_call_id == first.call.call_id


async def test_other_instructions_stand_for_the_earlier_ones(make_direct):
    async with make_direct(["one", "two"]) as direct:
        first = await direct.ask([system("be brief"), user("go")])
        second = await direct.ask([system("be long"), user("on")], change={"continues": first.call.call_id})
        assert [message.content for message in conversation(direct.store, second.call)] == ["be long", "go", "one", "on"]
        assert second.call.prefix_break == "harness_edit"


async def test_a_summary_behind_turns_that_were_kept_names_the_call_that_wrote_it(make_direct):
    notes = "The parser was mended; what is left is to run the tests and to write the change log."
    async with make_direct(["I look.", "I mend.", notes, "I test.", "done"]) as direct:
        kept = [system("be brief"), user("go"), {"role": "assistant", "content": "I look."}]
        first = await direct.ask(kept[:2])
        whole = [*kept, user("amber"), {"role": "assistant", "content": "I mend."}]
        await direct.ask(whole[:4])
        summary = await direct.ask([*whole, user("sum up")])
        short = [*kept, user(f"So far: {notes}")]
        after = await direct.ask(short)
        assert (after.call.parent_call_id, after.call.prefix_break) == (first.call.call_id, "")  # its tokens go on
        assert after.call.origin_call_id == summary.call.call_id
        last = await direct.ask([*short, {"role": "assistant", "content": "I test."}, user("on")])
        assert (last.call.base_call_id, last.call.origin_call_id) == (after.call.call_id, "")


async def test_a_name_that_is_not_of_this_rollout_is_a_404_that_says_which(make_direct):
    async with make_direct(["one", "two"]) as direct:
        first = await direct.ask([user("go")])
        for rollout, name in (("r0", "c-unknown"), ("r1", first.call.call_id)):
            with pytest.raises(RequestError, match=name) as refused:
                await direct.ask([user("on")], rollout=rollout, change={"continues": name})
            assert refused.value.status == 404
        assert len(direct.calls("r1")) == 0
        assert (await direct.ask([user("on")])).message.content == "two"


async def test_a_recorded_reply_can_be_told_again(make_direct):
    async with make_direct(["one", "two"]) as direct:
        first = await direct.ask([user("go")])
        await direct.ask([user("go"), {"role": "assistant", "content": "one"}, user("on")])
        session = await direct.gateway.session(AttemptKey(rollout_id="r0", attempt=1))

        def parse(body):
            return ChatDialect().parse(body, Target())

        head, call, message = await direct.gateway.stored_reply(session, first.call.call_id, parse)
        assert (head.call_id, call.call_id, message.content) == (first.call.call_id, first.call.call_id, "one")
        assert head.request.messages == (Message(role="user", content="go"),)
        with pytest.raises(RequestError, match="c-none") as refused:
            await direct.gateway.stored_reply(session, "c-none", parse)
        assert refused.value.status == 404


async def test_the_stored_request_is_the_harnesss_own(make_direct):
    """With a null, odd spacing and fields of no meaning."""
    async with make_direct(["one", "two"]) as direct:
        odd = {"seed": 7, "zzz": {"b": 1.0, "a": None}, "metadata": None}
        messages = [user("go"), {"role": "assistant", "content": None, "tool_calls": []}, user("on")]
        await direct.ask(messages[:1], **odd)
        second = await direct.ask(messages, **odd)
        back = json.loads(stored_request(direct.store, second.call))
        assert back["messages"] == messages
        assert {name: back[name] for name in odd} == odd


@pytest.fixture
def thinking(model_dir, tmp_path):
    """A renderer whose template keeps old thinking."""
    template = tmp_path / "thinking.jinja"
    template.write_text(
        "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' }}"
        "{%- if message.reasoning_content %}{{- '<think>' + message.reasoning_content + '</think>' }}{%- endif %}"
        "{{- message.content + '<|im_end|>\\n' }}{%- endfor %}"
        "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
    )
    return load_renderer(model_dir, RenderingConfig(template=str(template), reasoning_format="think", tool_format="none"))


async def test_reasoning_whose_mark_comes_back_is_in_the_prompt_again(make_direct, thinking):
    """A harness that shows thinking, keeps the mark and drops the text."""
    async with make_direct(["<think>I wonder.</think>the answer", "two", "three"], rendering=thinking) as direct:
        first = await direct.ask([user("go")])
        assert first.message.reasoning == "I wonder."
        messages = direct.incoming([user("go"), {"role": "assistant", "content": "the answer"}, user("on")]).request.messages

        def echoed(mark):
            return {"messages": (messages[0], Message(role="assistant", content="the answer", signature=mark), messages[2])}

        marked = signatures.read(signatures.sign(first.call.call_id))
        second = await direct.ask([user("go")], change=echoed(marked))
        assert (second.call.prefix_break, second.call.parent_call_id) == ("", first.call.call_id)
        foreign = await direct.ask([user("go")], change=echoed("c-of-another"))
        assert foreign.call.prefix_break == "harness_edit"
        assert foreign.call.base_call_id == first.call.call_id
