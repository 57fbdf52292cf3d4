"""Aider, unmodified and headless: one message, edits written by the model as text, a commit whose message is a call of its own.

Aider offers the model no tools: its turns are edits in a text format, which it applies. It exits with 0 whatever the model's
server said, so its log of what went to the model and came back decides.

Invariants (tests/harnesses/test_aider_adapter.py): the key is in the environment alone; an attempt in which the model never
answered is a crash, whatever the exit code; every answer in the log is one step of the account, and commit messages, which the
log does not have, are none; nothing is looked up outside.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

import msgspec

from whippletree.errors import ConfigurationError
from whippletree.harnesses.atif_steps import Steps
from whippletree.harnesses.ends import crashed, last_words
from whippletree.harnesses.packages import HOME, Packaged, read_settings
from whippletree.harnesses.python_config import AiderSettings
from whippletree.protocols import AttemptSpec, HarnessFacts, HarnessResult, LaunchPlan, Package, Probe
from whippletree.traces.atif import Agent, Metrics

VERSION = "0.86.2"
FOLDER = "/logs/agent/aider"
LOG = f"{FOLDER}/llm.txt"
_SWITCHES = {
    "AIDER_ANALYTICS": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "GIT_TERMINAL_PROMPT": "0",
}
_OFF = (
    "check-update", "show-release-notes", "show-model-warnings", "detect-urls", "browser", "gitignore", "pretty", "fancy-input",
    "suggest-shell-commands", "notifications", "restore-chat-history",
)  # fmt: skip
_MARK = re.compile(r"^(TO LLM|LLM RESPONSE) (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)$")
_ERROR = re.compile(r"^litellm\.(?:exceptions\.)?(\w+)", re.MULTILINE)
_REASONING = re.compile(r"<(thinking-content-[0-9a-f]{32})>\n\n(.*?)\n\n</\1>\s*", re.DOTALL)  # as its log marks it
_RULE = "\n-------\n"
_TOKEN_LIMIT = "has hit a token limit!"


class Aider(Packaged):
    """The adapter. One object serves any number of attempts, from any thread."""

    name = "aider"
    version = VERSION
    package = Package(kind="pip", name="aider-chat", version=VERSION, size_mb=687)
    settings = AiderSettings
    facts = HarnessFacts(
        dialects=("chat",),
        streams=True,
        second_request="single",
        sampled_turn="exact without its reasoning, where it is asked to mend its edit",
        side_calls=("commit message",),
        exit_code="0 also after an error of the model's server; its log says whether the model answered.",
        fixed_prompt_chars=3_700,
        ends_at=("overflow",),
        probe=Probe(
            edit="I write the file.\n\n{path}\n```\n{text}\n```\n",
            bad_edit="I write a file.\n\n```\nwithout a name\n```\n",
            side_mark="Git commit messages",
        ),
        notes=(
            "It has no tools and runs no commands for the model; the model writes edits as text.",
            "It asks again, at most three times, where an edit cannot be applied or the model names a new file.",
            "Reasoning is not sent back, so where it asks again the prefix of a model that thinks breaks.",
            "An instruction that begins with / or ! would be a command of aider's, so it is refused.",
            "Where the working directory is no git repository it makes one.",
        ),
    )

    def plan(self, spec: AttemptSpec) -> LaunchPlan:
        """The instruction and the model's sizes as files, the key in the environment.

        Raises HarnessError where it is not installed, ConfigurationError for a setting, or an instruction that is a command.
        """
        self.check_installed()
        settings = read_settings(AiderSettings, spec, self.name)
        if spec.instruction.lstrip()[:1] in ("/", "!"):
            cause = f"harness aider: the instruction begins with {spec.instruction.lstrip()[0]}, as aider's own commands do"
            raise ConfigurationError(cause, "begin the task's instruction with a word")
        model = f"openai/{spec.model}"
        sizes = {
            "litellm_provider": "openai",
            "mode": "chat",
            "max_input_tokens": settings.context_tokens,
            "max_output_tokens": settings.output_tokens,
            "input_cost_per_token": 0,
            "output_cost_per_token": 0,
        }
        message, metadata = f"{FOLDER}/message.txt", f"{FOLDER}/models.json"
        argv = [*self.binary("aider"), "--model", model, "--weak-model", model, "--model-metadata-file", metadata]
        argv += ["--message-file", message, "--yes-always", "--analytics-disable", "--timeout", str(max(1, int(spec.timeout)))]
        argv += ["--edit-format", settings.edit_format, "--map-tokens", str(settings.map_tokens)]
        argv += ["--llm-history-file", LOG, "--chat-history-file", f"{FOLDER}/chat.md"]
        argv += ["--input-history-file", f"{FOLDER}/input.txt", "--chat-language", settings.language]
        argv += [f"--no-{name}" for name in _OFF]
        argv += ["--stream" if settings.stream else "--no-stream"]
        argv += ["--auto-commits" if settings.commits else "--no-auto-commits"]
        argv += [word for path in settings.files for word in ("--file", path)]
        return LaunchPlan(
            argv=tuple(argv),
            environment=_SWITCHES | {"HOME": HOME, "OPENAI_API_KEY": spec.api_key, "OPENAI_API_BASE": spec.base_url},
            files=((message, spec.instruction), (metadata, json.dumps({model: sizes}))),
            trajectory=LOG,
        )

    def result(self, exit_code: int, output: str, trajectory: bytes | None) -> HarnessResult:
        """What it said of errors and limits decides, and whether the model answered last."""
        answers = [text for kind, _, text in _entries(trajectory or b"") if kind == "LLM RESPONSE"]
        steps, message = sum(map(bool, answers)), last_words(output)
        errors = _ERROR.findall(output.rpartition("Retrying in ")[2])  # those that it did not get over
        if exit_code or errors:
            status = errors[-1] if errors else f"Exit{exit_code}"
            return crashed(status, steps, message)
        if _TOKEN_LIMIT in output:
            return HarnessResult(exit_status="TokenLimit", steps=steps, message=message, ran_out="budget")
        if not answers or not answers[-1]:
            return crashed("NoAnswer", steps, message)
        return HarnessResult(exit_status="Done", steps=steps, message=message)

    def account(self, output: str, records: Mapping[str, bytes]) -> bytes | None:
        """Its log as one document. Answers that were cut off have no text in it."""
        if not records.get(LOG):
            return None
        steps, told = Steps(), 0
        for kind, time, text in _entries(records[LOG]):
            if kind == "LLM RESPONSE":
                thought = _REASONING.match(text)
                if text:
                    reasoning, said = (thought[2], text[thought.end() :]) if thought else ("", text)
                    steps.turn(said, [], Metrics(), reasoning=reasoning, timestamp=time)
                continue
            messages = list(_messages(text))
            for role, said in messages[told:]:
                if role in ("SYSTEM", "USER"):
                    steps.say("system" if role == "SYSTEM" else "user", said, time)
            told = len(messages)
        return msgspec.json.encode(steps.trajectory(Agent(name=self.name, version=self.version)))


def _entries(log: bytes) -> Iterator[tuple[str, str, str]]:
    """(kind, time, text) of each entry of the log; an answer's text is without the role that begins its lines."""
    kind, time, lines = "", "", list[str]()
    for line in log.decode("utf-8", errors="replace").split("\n"):
        mark = _MARK.match(line)
        if mark is None:
            lines.append(line)
            continue
        if kind:
            yield kind, time, _plain(kind, lines)
        kind, time, lines = mark[1], mark[2], []
    if kind:
        yield kind, time, _plain(kind, lines)


def _plain(kind: str, lines: list[str]) -> str:
    if kind == "TO LLM":
        return "\n".join(lines)
    return "\n".join(line.removeprefix("ASSISTANT ") for line in lines if line.startswith("ASSISTANT ")).rstrip("\n")


def _messages(text: str) -> Iterator[tuple[str, str]]:
    """(role, text) of the messages of a request."""
    for block in text.removeprefix(_RULE[1:]).split(_RULE):
        role = block.partition(" ")[0]
        yield role, "\n".join(line.removeprefix(f"{role} ") for line in block.rstrip("\n").split("\n"))
