"""An agent of smolagents (pip install 'smolagents[openai]')."""

from smolagents import OpenAIServerModel, ToolCallingAgent, tool


def solve(context):
    """One run of a tool-calling agent, over chat completions."""

    @tool
    def bash(command: str) -> str:
        """Execute a bash command.

        Args:
            command: the command
        """
        return context.run(command).output

    model = OpenAIServerModel(model_id=context.model, api_base=context.base_url, api_key=context.api_key)
    agent = ToolCallingAgent(tools=[bash], model=model, max_steps=context.step_limit or 1000)
    return agent.run(context.instruction)
