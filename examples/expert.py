"""A stand-in for a strong model, so that the examples run without one: it knows the solutions of the tasks that it is shown.

    python examples/expert.py TASKS... --port 8077

It is an endpoint that speaks OpenAI's chat-completions, as any hosted model is, so a grid evaluates it through real harnesses,
and what it did there can be exported and learned from. It finds the task by its instruction, counts its own turns in the
request, and says the next command: as a call of the first tool that is offered, or as a fenced block where there is none.

What it types comes from the task's directory:

- a repair (`solution/fixed`): look at each file, replace the lines that differ, submit;
- a corpus (`environment/shared/corpus.jsonl`): from the documents that the question names, by the names in them, to one that
  holds the answer, each searched for and read; then the answer is handed in;
- otherwise `solution/solve.sh`, line by line.
"""

from __future__ import annotations

import argparse
import difflib
import itertools
import json
import re
import shlex
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

Known = dict[str, list["Way"]]  # by instruction: tasks may share one, and differ in what lies in their sandboxes
DONE = "done"


@dataclass(frozen=True)
class Way:
    """What the expert types for a task, in order, and lines that only a sandbox like this task's prints."""

    typed: list[str]
    printed: frozenset[str]


def repair(task: Path) -> list[str]:
    """Commands that put the repaired files in place of the broken ones, line by line."""
    typed = []
    for fixed in sorted(path for path in (task / "solution/fixed").rglob("*") if path.is_file()):
        name = str(fixed.relative_to(task / "solution/fixed"))
        old = (task / "environment/files" / name).read_text().splitlines()
        new = fixed.read_text().splitlines()
        typed += [f"cat {shlex.quote(name)}"] if old != new else []
        for kind, first, end, start, stop in reversed(difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()):
            text = "\\\n".join(line.replace("\\", "\\\\") for line in new[start:stop])
            edit = {
                "replace": f"{first + 1},{end}c\\\n{text}",
                "delete": f"{first + 1},{end}d",
                "insert": f"{first}a\\\n{text}",
            }
            if kind != "equal":
                typed.append(f"sed -i {shlex.quote(edit[kind])} {shlex.quote(name)}")
    return [*typed, "submit"]


def search(task: Path) -> list[str]:
    """Commands that read from what the question names to the answer, by the names in the documents on the way."""
    lines = (task / "environment/shared/corpus.jsonl").read_text().splitlines()
    documents = [json.loads(line) for line in lines]
    question = (task / "instruction.md").read_text()
    wanted = json.loads((task / "tests/wanted.json").read_text())
    answer = str(wanted.get("text", wanted.get("number")))
    ways = deque([document] for document in documents if document["title"] in question)
    seen = [way[0]["id"] for way in ways]
    while ways:
        way = ways.popleft()
        if answer in way[-1]["text"]:
            typed = [(f"search {document['title']}", f"read_doc {document['id']}") for document in way]
            return [*itertools.chain(*typed), f"submit {answer}"]
        for document in documents:
            if document["title"] in way[-1]["text"] and document["id"] not in seen:
                seen.append(document["id"])
                ways.append([*way, document])
    return [f"submit {answer}"]


def script(task: Path) -> list[str]:
    """The lines of the solution."""
    lines = (task / "solution/solve.sh").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#!") and line != "set -e"]


def commands(task: Path) -> list[str]:
    """What the expert types for a task, in order."""
    if (task / "solution/fixed").is_dir():
        return repair(task)
    if (task / "environment/shared/corpus.jsonl").is_file():
        return search(task)
    return script(task)


def printed(task: Path) -> frozenset[str]:
    """Lines of `search` in a corpus whose documents are short."""
    corpus = task / "environment/shared/corpus.jsonl"
    documents = [json.loads(line) for line in corpus.read_text().splitlines()] if corpus.is_file() else []
    return frozenset(f"{document['id']}  {document['title']}: {document['text']}" for document in documents)


def read_tasks(directories: list[Path]) -> Known:
    """What to type in every task below the directories, by the task's instruction."""
    known: Known = {}
    for task in (path.parent for directory in directories for path in sorted(directory.glob("*/task.toml"))):
        instruction = (task / "instruction.md").read_text().strip()
        known.setdefault(instruction, []).append(Way(commands(task), printed(task)))
    return known


def next_command(known: Known, messages: list[dict[str, Any]]) -> str:
    """The command that this conversation has not had yet; "" once there is none, or for a task that is not known. Of tasks with
    one instruction it takes that whose lines, or next words, are on the screen, as an answer that was just printed is."""
    said = "\n".join(str(message.get("content")) for message in messages if message["role"] == "user")
    shown = "\n".join(str(message.get("content")) for message in messages)
    taken = sum(message["role"] == "assistant" for message in messages)
    several = next((ways for instruction, ways in known.items() if instruction in said), [])

    def likeness(way: Way) -> tuple[int, int, int]:
        words, seen = (set(re.findall(r"\w+", text)) for text in (way.typed[taken], shown))
        return len(way.printed.intersection(shown.splitlines())), -len(words - seen), len(words & seen)

    possible = [way for way in several if taken < len(way.typed)]
    return max(possible, key=likeness).typed[taken] if possible else ""


def turn(command: str, tools: list[dict[str, Any]]) -> dict[str, Any]:
    """The assistant's message: a call of the first tool with the command as its first argument, or text."""
    if not command:
        return {"role": "assistant", "content": DONE}
    if not tools:
        return {"role": "assistant", "content": f"```mswea_bash_command\n{command}\n```"}
    tool = tools[0]["function"]
    argument = next(iter(tool["parameters"]["properties"]))
    function = {"name": tool["name"], "arguments": json.dumps({argument: command})}
    return {"role": "assistant", "tool_calls": [{"index": 0, "id": "call_0", "type": "function", "function": function}]}


def application(known: Known) -> web.Application:
    """The endpoint. It streams, which is all that a grid asks for."""

    async def complete(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        delta = turn(next_command(known, body["messages"]), body.get("tools") or [])
        choice = {"index": 0, "delta": delta, "finish_reason": "tool_calls" if "tool_calls" in delta else "stop"}
        chunk = {"id": "expert", "object": "chat.completion.chunk", "model": body["model"], "choices": [choice]}
        usage = {"prompt_tokens": 0, "completion_tokens": 1, "total_tokens": 1}
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(f"data: {json.dumps(chunk | {'usage': usage})}\n\ndata: [DONE]\n\n".encode())
        return response

    app = web.Application(client_max_size=64 << 20)
    app.router.add_post("/v1/chat/completions", complete)
    return app


def main() -> None:
    """Serve until it is ended."""
    parser = argparse.ArgumentParser(description="An expert that knows the solutions of the tasks below some directories.")
    parser.add_argument("tasks", type=Path, nargs="+", metavar="TASKS", help="directory whose sub-directories are tasks")
    parser.add_argument("--port", type=int, default=8077)
    arguments = parser.parse_args()
    web.run_app(application(read_tasks(arguments.tasks)), host="127.0.0.1", port=arguments.port, print=None)


if __name__ == "__main__":
    main()
