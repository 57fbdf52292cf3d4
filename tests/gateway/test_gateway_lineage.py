"""The tree of an attempt's calls: what a request goes on from, and which ids it starts with."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from whippletree.gateway.lineage import Lineage, Node, fingerprints, normal_form, tools_fingerprint
from whippletree.types import Call, CallTimes, Message, Sampling, ToolCall, ToolSpec

TOOLS = tools_fingerprint([ToolSpec(name="bash")])
SYSTEM = Message(role="system", content="be brief")
USER = Message(role="user", content="go")


def assistant(text="", arguments=None, call_id="c1", reasoning=""):
    calls = (ToolCall(id=call_id, name="bash", arguments=arguments),) if arguments is not None else ()
    return Message(role="assistant", content=text, reasoning=reasoning, tool_calls=calls)


def grow(lineage, messages, prompt, sampled, reply, delivered=True):
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
        ),
        parent=parent,
        prompt_delta=prompt[known:],
        sampled=np.asarray(sampled, dtype=np.int32),
        tools=TOOLS,
        request=request,
        after=fingerprints(request, [reply])[0],
        messages=len(messages),
        reply=reply,
    )
    lineage.add(node, messages)
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


def test_causes():
    lineage = Lineage()
    assert lineage.cause([SYSTEM, USER]) == "first"
    grow(lineage, [SYSTEM, USER], [1, 2], [3], assistant("a"))
    assert lineage.cause([SYSTEM, Message(role="user", content="name this session")]) == "new_thread"
    assert lineage.cause([SYSTEM, USER, Message(role="user", content="that was no tool call")]) == "harness_edit"
    assert lineage.cause([Message(role="system", content="today is Monday"), USER, assistant("a"), USER]) == "harness_edit"


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
    kept = sum(len(node.prompt_delta) + len(node.sampled) for node in lineage.nodes.values())
    assert kept == len(prompt) - 1
