"""Whose conversation a call belongs to: on recorded sessions of harnesses, and case by case."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.gateway.dialects.registry import DIALECTS
from whippletree.gateway.digest import fields_of
from whippletree.gateway.keys import AttemptKey
from whippletree.gateway.leaves import Leaves
from whippletree.gateway.lineage import normal_form
from whippletree.gateway.preparing import role_of
from whippletree.gateway.prompts import leaf_of, plan, restored, unrendered
from whippletree.gateway.recording import Draft, Incoming
from whippletree.gateway.roles import Hints, Opening, Threads, argument_texts, hints_from, started_by
from whippletree.gateway.session import Session
from whippletree.gateway.sources import Sampled, Told
from whippletree.types import Message, ParsedMessage, Sampling, ToolCall

PATHS = (("/v1/messages", "messages"), ("/v1/responses", "responses"), (":streamGenerateContent", "gemini"), ("", "chat"))
DONE = Message(role="assistant", content="done")
SUMMARY = "The file was written to the disk; what is left to do is to look at it and to stop."


class Replay:
    """One attempt, as the gateway sees it, without engine and tokens."""

    def __init__(self):
        self.session = Session(AttemptKey(rollout_id="r", attempt=1), Sampling(), Leaves(10**9))
        self.calls = []

    def call(self, exchange, reply, text):
        """Take one recorded request, and say that `reply` was sampled for it."""
        name = next(name for part, name in PATHS if part in exchange["path"])
        if name not in DIALECTS:
            pytest.skip(f"the dialect {name} is not served yet")
        dialect, body = DIALECTS[name], text(json.dumps(exchange["body"])).encode()
        target = dialect.target({"model": "m", "method": "streamGenerateContent", "target": "m:streamGenerateContent"}, {})
        asked = dialect.parse(body, target)
        hints = hints_from(exchange["headers"])
        incoming = Incoming(
            dialect=dialect,
            body=body,
            fields=fields_of(body),
            request=asked,
            digest=str(len(self.calls)),
            received=0.0,
            hints=hints,
        )
        session = self.session
        request = restored(asked, session.lineage)
        made = plan(session.lineage, session.recent, request, None)
        prompt = unrendered(session.lineage, made, hints.thread)
        role, look = role_of(session, incoming, request, prompt)
        draft = Draft(
            call_id=f"c-{len(self.calls)}", key=session.key, incoming=incoming, request=request, prompt=prompt,
            sampled=Sampled(grade="text", told=Told()), role=role, look=look,
        )  # fmt: skip
        message = ParsedMessage(content=reply.content, reasoning=reply.reasoning, tool_calls=reply.tool_calls)
        recorded = draft.call(len(self.calls), message, "stop", 1.0)
        payload = draft.payload(message, b"")
        session.lineage.add(draft.node(recorded, payload), draft.forms, draft.known)
        session.recent.add(recorded.call_id, leaf_of(prompt, request, [], b""), recorded.base_call_id)
        if look:
            session.threads.begun(role, Opening(tools=bool(request.tools), look=look), hints.client)
        self.calls.append(recorded)
        return request


def replies(exchanges, parsed, fallback):
    """What was sampled for each request: what the next request that goes on from it says, or `fallback`."""
    found = []
    for number, messages in enumerate(parsed):
        forms = [normal_form(message) for message in messages]
        reply = fallback
        for later in parsed[number + 1 :]:
            if [normal_form(message) for message in later[: len(forms)]] == forms and len(later) > len(forms):
                reply = later[len(forms)]
                break
        found.append(reply)
    return found


def replay(exchanges, fallback=DONE, text=lambda body: body):
    exchanges = [exchange for exchange in exchanges if isinstance(exchange["body"], dict)]
    parsed = []
    first = Replay()
    for exchange in exchanges:  # once with made-up replies, to parse; then with the real ones
        parsed.append(first.call(exchange, fallback, text).messages)
    second = Replay()
    for exchange, reply in zip(exchanges, replies(exchanges, parsed, fallback), strict=True):
        second.call(exchange, reply, text)
    return second.calls


def summarised(body):
    """The recorded summary is too short to be told from chance; a longer one in its place."""
    return body.replace("Write a file", SUMMARY).replace("Pine a quartz", SUMMARY)


def told(calls):
    return [(call.role, call.prefix_break) for call in calls]


def test_claude_code_with_a_sub_agent(recordings):
    calls = replay(recordings("claude-code.subagent"))
    assert told(calls) == [("main", "first"), ("subagent", "new_thread"), ("subagent", ""), ("main", "")]
    assert [call.origin_call_id for call in calls] == ["", "c-0", "", ""]
    assert calls[1].thread != calls[0].thread
    assert {call.client for call in calls} == {"claude-cli/2.1.332"}


def test_codex_with_a_sub_agent(recordings):
    calls = replay(recordings("codex.subagent"))
    assert [call.role for call in calls][:4] == ["main", "main", "subagent", "subagent"][: len(calls)]
    spawned = next(call for call in calls if call.role == "subagent")
    assert (spawned.prefix_break, spawned.origin_call_id) == ("new_thread", "c-0")
    assert spawned.thread != calls[0].thread


def test_gemini_cli_sends_no_hints_and_the_sub_agent_is_known_by_its_instruction(recordings):
    calls = replay(recordings("gemini-cli.subagent"), Message(
        role="assistant", tool_calls=(ToolCall(id="", name="delegate", arguments=json.dumps(
            {"agent": "generalist", "objective": "SUBTASK: echo mock-was-here > out.txt && cat out.txt"}
        )),),
    ))  # fmt: skip
    assert told(calls)[:2] == [("main", "first"), ("subagent", "new_thread")]
    assert calls[1].origin_call_id == "c-0"
    assert {call.role for call in calls[2:]} == {"subagent"}
    assert {call.prefix_break for call in calls[2:]} == {""}


def test_codex_after_a_compaction(recordings):
    calls = replay(recordings("codex.compact1"), Message(role="assistant", content=SUMMARY), summarised)
    assert [call.prefix_break for call in calls] == ["first", "harness_edit", "compaction"]
    assert calls[2].origin_call_id == calls[1].call_id
    assert [call.role for call in calls] == ["main", "side", "main"]


def test_opencode_with_a_title_and_a_compaction(recordings):
    calls = replay(recordings("opencode.compact"), Message(role="assistant", content=SUMMARY), summarised)
    assert [call.prefix_break for call in calls] == ["first", "new_thread", "new_thread", "compaction"]
    assert [call.role for call in calls][1:] == ["main", "side", "main"]
    assert calls[3].origin_call_id == calls[2].call_id


def test_qwen_code_after_a_compaction(recordings):
    calls = replay(recordings("qwen-code.compact"), Message(role="assistant", content=SUMMARY), summarised)
    assert [call.prefix_break for call in calls] == ["first", "harness_edit", "compaction"]
    assert [call.role for call in calls] == ["main", "side", "main"]


def test_aider_asks_for_a_commit_message(recordings):
    calls = replay(recordings("aider.base"))
    assert [call.role for call in calls] == ["main", "side"]


@pytest.mark.parametrize(
    "name", ["mini-swe-agent.base", "claude-code.par", "codex.echo", "gemini-cli.par", "pi.par", "kimi-cli.base", "codex.gpt62"]
)
def test_a_plain_run_is_one_conversation(recordings, name):
    calls = replay(recordings(name))
    assert [call.prefix_break for call in calls] == ["first"] + [""] * (len(calls) - 1)
    assert {call.role for call in calls} == {"main"}


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, Hints()),
        ({"User-Agent": "claude-cli/2.1.332 (external, cli)"}, Hints(client="claude-cli/2.1.332")),
        ({"X-Claude-Code-Session-Id": "s"}, Hints(thread="s")),
        ({"X-Claude-Code-Session-Id": "s", "x-claude-code-agent-id": "a"}, Hints(thread="a", parent="s")),
        ({"x-codex-turn-metadata": '{"thread_id": "t", "request_kind": "compaction"}'}, Hints(thread="t", kind="compaction")),
        ({"x-codex-turn-metadata": '{"thread_id": "t", "requ', "x-session-id": "s"}, Hints(thread="s")),
        ({"x-codex-turn-metadata": '{"thread_id": 7}'}, Hints()),
        ({"x-openai-subagent": "review", "x-codex-parent-thread-id": "p"}, Hints(kind="review", parent="p")),
        ({"x-litellm-session-id": "a\x00b" + "c" * 200}, Hints(thread="ab" + "c" * 62)),
    ],
)
def test_hints(headers, expected):
    assert hints_from(headers) == expected


@given(st.dictionaries(st.sampled_from(["x-codex-turn-metadata", "User-Agent", "x-openai-subagent"]), st.text()))
def test_no_header_is_an_error(headers):
    found = hints_from(headers)
    assert all(len(text) <= 64 for text in (found.thread, found.parent, found.kind, found.client))


TOOLS, PLAIN = Opening(tools=True, look=b"a"), Opening(tools=False, look=b"b")


def judge(threads, opening, *, client="", inherited=None, origin="", **hints):
    return threads.judge(opening, Hints(client=client, **hints), inherited=inherited, origin=origin)


def test_the_first_conversation_with_tools_is_the_main_one():
    threads = Threads()
    assert judge(threads, PLAIN) == "main"
    threads.begun("main", PLAIN, "x/1")
    assert judge(threads, TOOLS, client="x/1") == "main"
    threads.begun("main", TOOLS, "x/1")
    assert judge(threads, PLAIN, client="x/2") == "side"
    assert judge(threads, TOOLS, client="x/2") == "main"
    assert judge(threads, Opening(tools=True, look=b"c")) == "subagent"
    assert judge(threads, TOOLS, client="curl/8") == "side"
    assert judge(threads, TOOLS, inherited="subagent") == "subagent"
    assert judge(threads, TOOLS, inherited="side") == "main"
    assert judge(threads, TOOLS, origin="c-1") == "subagent"
    assert judge(threads, TOOLS, kind="compact") == "compaction"
    assert judge(threads, TOOLS, parent="p") == "subagent"
    assert judge(threads, PLAIN, kind="collab_spawn", client="curl/8") == "subagent"


def test_instructions_are_found_in_arguments():
    texts = argument_texts([
        ToolCall(id="", name="task", arguments='{"prompt": "look for the failing test", "n": [{"d": "another long one"}]}'),
        ToolCall(id="", name="task", arguments="{bad"),
        ToolCall(id="", name="ls", arguments='{"command": "ls -la"}'),
    ])  # fmt: skip
    assert set(texts) == {"look for the failing test", "another long one"}
    assert started_by(["<reminder>x</reminder>\nlook for the failing test\n"], [("c-1", texts)]) == "c-1"
    assert started_by(["look for the failing"], [("c-1", texts)]) == "c-1"
    assert started_by(["look for the failing test in a"], [("c-1", texts)]) == ""
    assert started_by(["look"], [("c-1", texts)]) == ""
