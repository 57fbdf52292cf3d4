"""Bring your own agent: a function that is given a task, a model and a way to run commands."""

import json

from openai import OpenAI

PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
BASH = {"name": "bash", "description": "Execute a bash command", "parameters": PARAMETERS}


def solve(context):
    """Call the model and run what it asks for, until it submits or only talks."""
    client = OpenAI(base_url=context.base_url, api_key=context.api_key)
    messages = [{"role": "system", "content": "Work with the bash tool."}, {"role": "user", "content": context.instruction}]
    while True:
        context.step()
        tools = [{"type": "function", "function": BASH}]
        turn = client.chat.completions.create(model=context.model, messages=messages, tools=tools).choices[0].message
        messages.append(turn.model_dump(exclude_none=True))
        if not turn.tool_calls:
            return turn.content
        for call in turn.tool_calls:
            output = context.run(json.loads(call.function.arguments)["command"]).output
            messages.append({"role": "tool", "tool_call_id": call.id, "content": output})
            if output == "submitted\n":
                return output
