"""An agent of the OpenAI Agents SDK (pip install openai-agents)."""

import asyncio

from agents import Agent, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI


async def solve(context):
    """One run of the SDK's loop, over the Responses API."""
    set_tracing_disabled(True)

    @function_tool
    async def bash(command: str) -> str:
        """Execute a bash command."""
        return (await asyncio.to_thread(context.run, command)).output

    client = AsyncOpenAI(base_url=context.base_url, api_key=context.api_key)
    model = OpenAIResponsesModel(model=context.model, openai_client=client)
    agent = Agent(name="worker", instructions="Work with the bash tool.", model=model, tools=[bash])
    result = await Runner.run(agent, context.instruction, max_turns=context.step_limit or 1000)
    return result.final_output
