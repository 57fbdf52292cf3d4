"""Engines with a chat endpoint of their own: by wish, or because they offer nothing better."""

import asyncio

import pytest
from gateway_world import user

from whippletree.engines.scripted import ScriptedEngine
from whippletree.errors import EngineError, EngineUnavailable
from whippletree.protocols import ChatChunk, StreamDelta
from whippletree.rendering import RenderingConfig, load_renderer
from whippletree.types import EngineReport

TEXT_ONLY = {"scripted": EngineReport(grade="text", logprobs="none")}


def assistant(text):
    return {"role": "assistant", "content": text}


class Chatting(ScriptedEngine):
    """An engine that renders by itself. `ids`: it tells ids and logprobs. `prompt`: it tells the prompt's ids too."""

    def __init__(self, renderer, answers, *, ids=False, prompt=True, reset=0, suffix=""):
        super().__init__(None, vocabulary=420, context=4096)
        self.renderer, self.answers, self.turns = renderer, iter(answers), []
        self.ids, self.prompt, self.reset, self.suffix = ids, prompt, reset, suffix

    async def chat(self, turn):
        self.turns.append(turn)
        rendered = self.renderer.render(turn.request.messages, turn.request.tools)
        rendered += self.renderer.codec.encode(self.suffix)
        text = next(self.answers)
        if not self.ids:
            for number, word in enumerate(text.split(" ")):
                await asyncio.sleep(0)
                yield ChatChunk(deltas=(StreamDelta(content=word + " "),))
                if number + 1 == self.reset:
                    raise EngineUnavailable("gone")
            yield ChatChunk(finish_reason="stop", prompt_tokens=11, sampled_tokens=5, cached_tokens=3)
            return
        if self.prompt:
            yield ChatChunk(prompt_ids=rendered)
        for token in self.renderer.codec.encode(text + "<|im_end|>"):
            yield ChatChunk(token_ids=[token], logprobs=[-0.5], policy_version=7)
        yield ChatChunk(finish_reason="stop", policy_version=7)


@pytest.fixture
def engine_policy(model_dir):
    return load_renderer(model_dir, RenderingConfig(template="tiny", reasoning_format="think", policy="engine"))


async def test_below_grade_tokens_the_reply_is_the_engines_and_nothing_can_be_trained(make_direct, renderer):
    engine = Chatting(renderer, ["a whole answer", "and more"])
    async with make_direct(engines=[engine], reports=TEXT_ONLY) as direct:
        reply, deltas = await direct.follow([user("go")])
        assert reply.message.content == "a whole answer "
        assert [delta.content for delta in deltas] == ["a ", "whole ", "answer "]
        call = reply.call
        assert (call.grade, call.logprob_source, call.prompt_tokens, call.sampled_tokens) == ("text", "none", 11, 5)
        payload = direct.store.payload(call)
        assert len(payload.prompt_delta) == len(payload.sampled_ids) == len(payload.logprobs) == 0
        second = await direct.ask([user("go"), assistant("a whole answer"), user("on")])
        assert (second.call.base_call_id, second.call.prefix_break, second.call.role) == (call.call_id, "", "main")
        assert [message.content for message in engine.turns[1].request.messages] == ["go", "a whole answer", "on"]


async def test_tools_of_the_engines_own_parser_reach_the_harness(make_direct, renderer):
    class Calls(Chatting):
        async def chat(self, turn):
            yield ChatChunk(deltas=(StreamDelta(tool_index=0, tool_id="call_9", tool_name="bash"),))
            yield ChatChunk(deltas=(StreamDelta(tool_index=0, arguments='{"command": "ls"}'),))
            yield ChatChunk(finish_reason="tool_calls", sampled_tokens=5, prompt_tokens=3)

    async with make_direct(engines=[Calls(renderer, [])], reports=TEXT_ONLY) as direct:
        reply = await direct.ask([user("go")])
        assert reply.message.tool_calls[0].arguments == '{"command": "ls"}'
        assert (reply.message.finish_reason, reply.call.finish_reason) == ("tool_calls", "tool_calls")


async def test_an_engine_that_renders_by_itself_and_tells_ids_can_be_trained(make_direct, engine_policy):
    engine = Chatting(engine_policy, ["one", "two", "three"], ids=True)
    async with make_direct(engines=[engine], rendering=engine_policy) as direct:
        first = await direct.ask([user("go")])
        second = await direct.ask([user("go"), assistant("one"), user("on")])
        assert [call.grade for call in direct.calls()] == ["tokens", "tokens"]
        assert (first.call.prefix_break, second.call.prefix_break) == ("first", "")
        assert second.call.parent_call_id == first.call.call_id
        assert first.message.content == "one"
        engine.suffix = "!"  # its template has changed its mind
        engine.answers = iter(["four"])
        prompt, sampled = direct.ids(second.call)
        assert prompt == engine_policy.render(engine.turns[1].request.messages, engine.turns[1].request.tools)
        assert engine_policy.decode(sampled) == "two<|im_end|>"
        assert second.call.version_end == 7
        await direct.settled()
        assert sum(sample.trained.sum() for sample in samples(direct)) == sum(call.sampled_tokens for call in direct.calls())


def samples(direct):
    from whippletree.traces import build_samples

    return build_samples(direct.trace(), direct.store.rollout("r0").spec)


async def test_ids_that_the_engine_does_not_go_on_from_are_a_break_of_its_own(make_direct, engine_policy):
    engine = Chatting(engine_policy, ["one", "two"], ids=True, suffix="!")
    async with make_direct(engines=[engine], rendering=engine_policy) as direct:
        first = await direct.ask([user("go")])
        second = await direct.ask([user("go"), assistant("one"), user("on")])
        assert (second.call.base_call_id, second.call.parent_call_id) == (first.call.call_id, "")
        assert second.call.prefix_break == "engine"


async def test_sampled_ids_without_those_of_the_prompt_are_not_trained(make_direct, engine_policy):
    engine = Chatting(engine_policy, ["one"], ids=True, prompt=False)
    async with make_direct(engines=[engine], rendering=engine_policy) as direct:
        reply = await direct.ask([user("go")])
        assert reply.message.content == "one"
        assert (reply.call.grade, reply.call.logprob_source) == ("logprobs", "none")
        assert len(direct.store.payload(reply.call).sampled_ids) == 0
        (node,) = direct.trace().nodes
        assert not node.trainable
        assert node.excluded


async def test_a_chat_turn_that_breaks_off_ends_in_an_error_and_is_recorded_with_it(make_direct, renderer):
    engine = Chatting(renderer, ["a whole answer", "another one"], reset=2)
    async with make_direct(engines=[engine], reports=TEXT_ONLY) as direct:
        with pytest.raises(EngineError, match="broke off in mid-turn"):
            await direct.ask([user("go")])
        (call,) = direct.calls()
        assert (call.finish_reason, call.delivered) == ("error", False)
        assert "broke off" in call.error


async def test_the_policy_engine_with_an_engine_that_cannot_chat_is_told(make_direct, engine_policy):
    async with make_direct(["one"], rendering=engine_policy) as direct:
        with pytest.raises(EngineError, match="no chat endpoint"):
            await direct.ask([user("go")])
