"""The tree of an attempt's calls: what a request goes on from, and which ids it starts with."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whippletree.gateway.lineage import Lineage, Links, Node, fingerprints, form, normal_form, tidied, tools_fingerprint
from whippletree.types import Call, CallTimes, Media, Message, Sampling, ToolCall, ToolSpec

TOOLS = tools_fingerprint([ToolSpec(name="bash")])
SYSTEM = Message(role="system", content="be brief")
USER = Message(role="user", content="go")


def assistant(text="", arguments=None, call_id="c1", reasoning=""):
    calls = (ToolCall(id=call_id, name="bash", arguments=arguments),) if arguments is not None else ()
    return Message(role="assistant", content=text, reasoning=reasoning, tool_calls=calls)


def grow(lineage, messages, prompt, sampled, reply, delivered=True, **fields):
    """Record a call whose prompt [P] and sampled ids [S] are given as lists."""
    prompt = np.asarray(prompt, dtype=np.int32)
    parent = lineage.find_parent(prompt)
    known = len(lineage.ids(parent)) if parent is not None else 0
    request = fingerprints(TOOLS, messages)[-1]
    index = len(lineage.nodes)
    node = Node(
        call=Call(
            call_id=f"c-{index}",
            rollout_id="r",
            attempt=1,
            index=index,
            digest=str(index),
            prompt_tokens=len(prompt),
            sampled_tokens=len(sampled),
            finish_reason="stop",
            times=CallTimes(received=0.0),
            sampling=Sampling(),
            delivered=delivered,
            **fields,
        ),
        parent=parent,
        tail=prompt[known:].tobytes() + np.asarray(sampled, dtype=np.int32).tobytes(),
        delta=len(prompt) - known,
        links=Links(tools=TOOLS, request=request, after=fingerprints(request, [reply])[0], asked=form(messages[-1])),
        messages=len(messages),
        reply=reply,
    )
    lineage.add(node, [form(message) for message in messages])
    return node


def test_replies_that_come_back_changed_are_still_the_same():
    sent = assistant(" done \n", '{"command": "ls", "timeout": 5}', reasoning="hm")
    echoed = assistant("done", '{"timeout":5,"command":"ls"}', call_id="other")
    assert normal_form(sent) == normal_form(echoed)
    assert normal_form(assistant(arguments="")) == normal_form(assistant(arguments="{}"))
    assert normal_form(assistant(arguments="{bad")) != normal_form(assistant(arguments="{worse"))
    assert normal_form(assistant("a")) != normal_form(assistant("b"))


def test_the_longest_recorded_history_is_the_base():
    lineage = Lineage()
    one = grow(lineage, [SYSTEM, USER], [1, 2], [3], assistant("a"))
    history = [SYSTEM, USER, assistant("a"), Message(role="tool", content="out")]
    two = grow(lineage, history, [1, 2, 3, 4], [5], assistant("b"))
    longer = [*history, assistant("b"), USER]
    assert lineage.find_base(fingerprints(TOOLS, longer)) is two
    assert lineage.find_base(fingerprints(TOOLS, [*history[:3], USER])) is one
    assert lineage.find_base(fingerprints(TOOLS, history[:2])) is None
    assert lineage.find_same(fingerprints(TOOLS, history)[-1]) is two
    assert lineage.find_base(fingerprints(tools_fingerprint([]), longer)) is None


def test_among_calls_with_one_reply_the_delivered_one_is_gone_on_from():
    lineage = Lineage()
    first = grow(lineage, [USER], [1], [2], assistant("a"), delivered=True)
    grow(lineage, [USER], [1], [7], assistant("a"), delivered=False)
    prints = fingerprints(TOOLS, [USER, assistant("a"), USER])
    assert lineage.find_base(prints) is first
    third = grow(lineage, [USER], [1], [8], assistant("a"), delivered=False)
    lineage.delivered(third)
    assert lineage.find_base(prints) is third


def cause(lineage, messages, **hints):
    return lineage.break_of(messages, [form(message) for message in messages], **hints).cause


def test_causes():
    lineage = Lineage()
    assert cause(lineage, [SYSTEM, USER]) == "first"
    grow(lineage, [SYSTEM, USER], [1, 2], [3], assistant("a"))
    assert cause(lineage, [SYSTEM, Message(role="user", content="name this session")]) == "new_thread"
    assert cause(lineage, [SYSTEM, USER, Message(role="user", content="that was no tool call")]) == "harness_edit"
    assert cause(lineage, [Message(role="system", content="today is Monday"), USER, assistant("a"), USER]) == "harness_edit"


LONG = "The parser was mended; what is left is to run the tests and to write the change log."


def user(text):
    return Message(role="user", content=text)


def found(lineage, messages, **hints):
    return lineage.break_of(messages, [form(message) for message in messages], **hints)


def test_a_summary_that_stands_for_what_was_left_out_is_a_compaction():
    lineage = Lineage()
    grow(lineage, [SYSTEM, USER], [1, 2], [3], assistant("a"))
    summary = grow(lineage, [SYSTEM, USER, assistant("a"), user("sum up")], [1, 2, 3, 4], [5], assistant(LONG))
    for messages in (
        [SYSTEM, user(f"Summary:\n{LONG}\nGo on.")],
        [SYSTEM, USER, user(LONG)],
        [Message(role="system", content=f"be brief. So far: {LONG}"), user("go on")],
        [SYSTEM, user("what did we do?"), assistant(LONG), user("go on")],
    ):
        assert (found(lineage, messages).cause, found(lineage, messages).origin) == ("compaction", summary.call.call_id)


@pytest.mark.parametrize(
    "reply",
    [
        f"<analysis>\nI think.\n</analysis>\n\n<summary>\n{LONG}\n</summary>",
        f"<scratchpad>x</scratchpad><state_snapshot>\n{LONG}</state_snapshot>",
        f"<state_snapshot><summary>{LONG}</summary></state_snapshot>",
    ],
)
def test_of_a_summary_between_marks_the_marks_and_what_was_thought_may_be_left_out(reply: str):
    lineage = Lineage()
    summary = grow(lineage, [SYSTEM, USER], [1, 2], [3], assistant(reply))
    known = found(lineage, [SYSTEM, user(f"Summary:\n{LONG}\nGo on.")])
    assert (known.cause, known.origin) == ("compaction", summary.call.call_id)
    assert found(lineage, [SYSTEM, user("I think.")]).cause != "compaction"


def test_a_summary_behind_turns_that_were_kept_is_found_where_others_went_on_from_them():
    lineage = Lineage()
    kept = [SYSTEM, USER, assistant("a"), user("out")]
    first = grow(lineage, kept[:2], [1, 2], [3], kept[2])
    compacted = [*kept, user(f"So far: {LONG}"), assistant("b")]

    def summary(messages):
        return lineage.summary_after(first, messages, [form(message) for message in messages])

    second = grow(lineage, kept, [1, 2, 3, 4], [5], assistant("b"), base_call_id=first.call.call_id)
    asked = [*kept, assistant("b"), user("sum up")]
    told = grow(lineage, asked, [1, 2, 3, 4, 5, 6], [7], assistant(LONG), base_call_id=second.call.call_id)
    assert summary(compacted) == told.call.call_id
    assert summary([*kept[:3], assistant(LONG), user("go on")]) == told.call.call_id  # the summary is a turn itself
    assert summary([*kept, user("another way")]) == ""  # a branch without one
    assert summary([*kept, assistant("b"), user(f"So far: {LONG}")]) == ""  # nothing was left out before the turn
    assert summary([*asked, assistant(LONG), user("go on")]) == ""


def test_no_compaction_is_seen_where_there_is_none():
    lineage = Lineage()
    first = grow(lineage, [SYSTEM, USER], [1, 2], [3], assistant(LONG))
    assert found(lineage, [Message(role="system", content="other"), USER, assistant(LONG), USER]).cause == "harness_edit"
    grow(lineage, [SYSTEM, USER, assistant(LONG), USER], [1, 2, 3, 4], [5], assistant("short"), base_call_id=first.call.call_id)
    assert found(lineage, [SYSTEM, user(f"as you said: {LONG}")]).cause == "new_thread"  # a reply that was gone on from
    assert found(lineage, [SYSTEM, user("as you said: short")]).cause == "new_thread"


def test_a_reply_that_is_quoted_to_another_end_is_no_summary():
    lineage = Lineage()
    reply = grow(lineage, [SYSTEM, USER], [1, 2], [3], assistant(LONG))
    quoting = [Message(role="system", content="write a commit message"), user(f"Assistant: {LONG}")]
    assert found(lineage, quoting, tools=False).cause == "new_thread"
    assert found(lineage, quoting, tools=True).origin == reply.call.call_id
    assert found(lineage, quoting[1:], tools=False).cause == "compaction"  # there is no system prompt to tell them apart by
    assert found(lineage, [SYSTEM, quoting[1]], tools=False).cause == "compaction"
    within = [Message(role="system", content=f"be brief. So far: {LONG}"), user("go on")]
    assert found(lineage, within, tools=False).cause == "compaction"


def test_a_conversation_that_a_tool_call_asked_for_names_it():
    lineage = Lineage()
    calls = assistant(arguments='{"prompt": "look for the failing test"}')
    asked = grow(lineage, [SYSTEM, USER], [1, 2], [3], calls)
    start = found(lineage, [Message(role="system", content="an agent"), user("look for the failing test")])
    assert (start.cause, start.origin) == ("new_thread", asked.call.call_id)
    assert found(lineage, [SYSTEM, USER, user("look for it")]).cause == "harness_edit"


def test_messages_of_another_thread_are_not_carried_on():
    lineage = Lineage()
    context = user("<environment>Debian</environment>")
    grow(lineage, [SYSTEM, context, USER], [1, 2], [3], assistant("a"), thread="main")
    assert found(lineage, [SYSTEM, context, user("a part of it")], thread="other").cause == "new_thread"
    assert found(lineage, [SYSTEM, context, user("a part of it")], thread="main").cause == "harness_edit"


def test_pictures_count_and_call_ids_do_not():
    def picture(digest):
        return Message(
            role="user", content="[image]", media=(Media(kind="image", media_type="image/png", digest=digest, size=9),)
        )

    assert normal_form(picture("a")) != normal_form(picture("b"))
    one, other = (Message(role="tool", content="out", tool_call_id=name) for name in "ab")
    assert normal_form(one) == normal_form(other)


def test_results_of_one_call_that_follow_one_another_are_one():
    parts = [Message(role="tool", tool_call_id="a", content=text, is_error=text == "y") for text in "xy"]
    other = Message(role="tool", tool_call_id="b", content="z")
    nameless = [Message(role="tool", content=text) for text in "pq"]
    assert tidied([USER, *parts, other, *nameless]) == (
        USER,
        Message(role="tool", tool_call_id="a", content="x\ny", is_error=True),
        other,
        *nameless,
    )


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 20),
            st.lists(st.integers(0, 2), min_size=1, max_size=3),
            st.lists(st.integers(0, 2), min_size=1, max_size=3),
        ),
        max_size=12,
    ),
    st.lists(st.integers(0, 2), max_size=14),
)
def test_the_parent_is_the_longest_exact_prefix(steps, prompt):
    lineage, recorded = Lineage(), []
    for back, delta, sampled in steps:
        start = recorded[back % len(recorded)] if recorded and back % 3 else []
        node = grow(lineage, [USER], [*start, *delta], sampled, assistant("a"))
        recorded.append([*start, *delta, *sampled])
        assert lineage.ids(node).tolist() == recorded[-1]
    parent = lineage.find_parent(np.asarray(prompt, dtype=np.int32))
    fitting = [ids for ids in recorded if prompt[: len(ids)] == ids]
    assert (lineage.ids(parent).tolist() if parent is not None else []) == max(fitting, key=len, default=[])


def test_ids_are_kept_once():
    lineage, prompt = Lineage(), [1]
    for turn in range(20):
        grow(lineage, [USER] * (turn + 1), prompt, [2], assistant("a"))
        prompt = [*prompt, 2, 3]
    kept = sum(len(node.tail) // 4 for node in lineage.nodes.values())
    assert kept == len(prompt) - 1
