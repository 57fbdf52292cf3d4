"""Runs one conversation of the OpenHands SDK, unmodified, from a request file: a copy of this file runs inside the sandbox.

`python openhands_driver.py REQUEST.json` with the key in WHIPPLETREE_KEY. The SDK is a library without a command of its own, so
this is the command: it builds the agent from the request, lets it run, and writes how it ended beside the request. It needs the
SDK and Python's own library only.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

KEY = "WHIPPLETREE_KEY"
ENDING = "ending.json"
BUILT_IN = {"finish": "FinishTool", "think": "ThinkTool"}


def build(request: dict[str, Any], key: str) -> Any:
    """The agent that the request describes."""
    from openhands.sdk import LLM, Agent
    from openhands.sdk.context.condenser import LLMSummarizingCondenser
    from openhands.sdk.tool import Tool
    from openhands.tools.preset.default import register_default_tools
    from pydantic import SecretStr

    register_default_tools(enable_browser=False)
    llm = LLM(
        usage_id="agent",
        api_key=SecretStr(key),
        input_cost_per_token=0,
        output_cost_per_token=0,
        **request["llm"],
    )
    condenser = None
    if request["condense_at"]:
        summarises = llm.model_copy(update={"usage_id": "condenser"})
        condenser = LLMSummarizingCondenser(llm=summarises, max_size=request["condense_at"], keep_first=2)
    prompt = {"system_prompt": request["system_prompt"]} if request["system_prompt"] else {}
    return Agent(
        llm=llm,
        tools=[Tool(name=name) for name in request["tools"] if name not in BUILT_IN],
        include_default_tools=[BUILT_IN[name] for name in request["tools"] if name in BUILT_IN],
        system_prompt_kwargs={"cli_mode": True},
        condenser=condenser,
        **prompt,
    )


def converse(request: dict[str, Any], folder: Path, key: str) -> dict[str, Any]:
    """The conversation to its end, and how it ended. Errors of the run are part of that."""
    from openhands.sdk import Conversation
    from openhands.sdk.conversation.exceptions import ConversationRunError
    from openhands.sdk.event.conversation_error import ConversationErrorEvent

    errors: list[ConversationErrorEvent] = []
    conversation = Conversation(
        agent=build(request, key),
        workspace=request["workdir"],
        persistence_dir=str(folder / "conversation"),
        max_iteration_per_run=request["step_limit"],
        callbacks=[lambda event: errors.append(event) if isinstance(event, ConversationErrorEvent) else None],
        visualizer=None,
    )
    conversation.send_message(request["instruction"])
    raised = ""
    try:
        conversation.run()
    except ConversationRunError as error:
        raised = str(error)
    metrics = conversation.state.stats.usage_to_metrics
    ending = {
        "status": conversation.state.execution_status.value,
        "error": errors[-1].code if errors else "",
        "detail": errors[-1].detail if errors else raised,
        "usages": counted(metrics["agent"]),
        "summing_up": counted(metrics["condenser"]) if "condenser" in metrics else [],
    }
    conversation.close()
    return ending


def counted(metrics: Any) -> list[dict[str, Any]]:
    """The tokens of each response, by its id."""
    names = ("response_id", "prompt_tokens", "completion_tokens", "cache_read_tokens")
    return [{name: getattr(usage, name) for name in names} for usage in metrics.token_usages]


def main(path: Path) -> int:
    """Run the request; 0 where the agent finished, 3 where something else ended it."""
    request = json.loads(path.read_text(encoding="utf-8"))
    ending = converse(request, path.parent, os.environ.pop(KEY))
    (path.parent / ENDING).write_text(json.dumps(ending), encoding="utf-8")
    return 0 if ending["status"] == "finished" else 3


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
