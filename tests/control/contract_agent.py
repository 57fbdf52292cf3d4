"""A small agent, as a program: `python agent.py MODE STEPS < instruction`, with BASE_URL and KEY. Standard library only.

Modes: "" does its job; "nosy" looks a name up and knocks elsewhere; "careless" leaves a process; "hasty" asks nothing a second
time; "forgetful" keeps only the last messages; "tireless" knows no limit of steps.
"""

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import time
import urllib.parse
from pathlib import Path

TOOL = {
    "type": "function",
    "function": {
        "name": "sh",
        "description": "run a command",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}


def ask(messages: list, tries: int) -> dict:
    place = urllib.parse.urlsplit(os.environ["BASE_URL"])
    body = json.dumps({"model": "policy", "messages": messages, "tools": [TOOL]})
    headers = {"Authorization": f"Bearer {os.environ['KEY']}", "Content-Type": "application/json"}
    last = "nothing"
    for _ in range(tries):
        try:
            connection = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
            connection.request("POST", place.path + "/chat/completions", body, headers)
            reply = connection.getresponse()
            text = reply.read()
            if reply.status == 200:
                return json.loads(text)["choices"][0]["message"]
            last = text.decode()
            if reply.status == 400:
                break
            time.sleep(float(reply.headers.get("Retry-After", "0.1")))
        except (OSError, http.client.HTTPException) as error:
            last = repr(error)
    sys.exit(f"error: {last}")


def run(call: dict) -> str:
    try:
        command = json.loads(call["function"]["arguments"])["command"]
    except (ValueError, KeyError):
        return "the arguments are no JSON"
    return subprocess.run(command, shell=True, capture_output=True, text=True, check=False).stdout


def main(mode: str, limit: int) -> None:
    if mode == "nosy":
        for knock in (
            lambda: socket.getaddrinfo("updates.example", 443),
            lambda: socket.create_connection(("198.51.100.7", 443), 2),
        ):
            with contextlib.suppress(OSError):
                knock()
    if mode == "careless":
        subprocess.Popen(["sleep", "300"], start_new_session=True)
    messages = [{"role": "system", "content": "You run commands."}, {"role": "user", "content": sys.stdin.read()}]
    turns = []
    while True:
        message = ask(messages, 1 if mode == "hasty" else 4)
        turns.append(message)
        calls = message.get("tool_calls") or []
        messages.append(message)
        results = [{"role": "tool", "tool_call_id": call["id"], "content": run(call)} for call in calls]
        messages += results
        if mode == "forgetful":
            messages = [messages[1], *messages[-1 - len(results) :]]
        (Path.home() / "turns.json").write_text(json.dumps(turns))
        if not calls:
            print("done")
            return
        if len(turns) == limit and mode != "tireless":
            sys.exit(75)


main(sys.argv[1] if len(sys.argv) > 1 else "", int(sys.argv[2]) if len(sys.argv) > 2 else 0)
