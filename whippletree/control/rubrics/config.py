"""Settings of rubrics.

Invariants (tests/control/test_rubric_config.py):
- every rubric says what earns points, or ranks; names are identifiers, and differ;
- `digest` is the same for the same rubric, and another where anything that the judge is told differs.
"""

from __future__ import annotations

import hashlib
import math
import re
from typing import Annotated, Literal

import msgspec

from whippletree.configuration import Config, Count, Seconds
from whippletree.engines.config import HostedConfig

Sees = Literal["instruction", "answer", "transcript", "verifier"]
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


class Criterion(Config):
    """One thing that a judge looks for."""

    name: str
    """Its name in the judge's answer and on record: letters, digits and underscores."""
    text: str
    """What earns the points, in words for the judge."""
    points: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1
    """Most points, which are whole numbers: 1 is a yes or no."""
    weight: Seconds = 1.0
    """Its share of the score, relative to the other criteria."""

    def __post_init__(self) -> None:
        """Raises ValueError for what is no name, text or weight; `convert` adds the key."""
        if not NAME.fullmatch(self.name):
            raise ValueError(f"a criterion's name is letters, digits and underscores, not {self.name!r}")
        if self.name == "why":
            raise ValueError("a criterion cannot be called why: the judge's reasons are")
        if not self.text.strip() or not math.isfinite(self.weight):
            raise ValueError(f"criterion {self.name} needs a text and a finite weight")


class TaskCriteria(Config):
    """The file of a task's own criteria."""

    criteria: tuple[Criterion, ...] = ()
    """Looked for in this task, after those of the rubric itself."""


class RubricConfig(Config):
    """A score that a judge model gives: `[[control.rubrics]]`."""

    name: str
    """The score's name in reward expressions and on record."""
    judge: HostedConfig
    """The judge: any endpoint with OpenAI's chat-completions, a vLLM server too. Its `context` and `logprobs` are not used."""
    criteria: tuple[Criterion, ...] = ()
    """What earns points. The score is the weighted mean of their shares, from 0 to 1."""
    task_criteria: str = ""
    """A file in each task's directory with more `[[criteria]]`, for example "tests/rubric.toml", which no agent sees; tasks
    without it have those above."""
    instructions: str = ""
    """More for the judge to know: who it is, what a good answer is, a reference."""
    template: str = ""
    """Jinja2 template of the question, in place of the default one (docs/rubrics.md)."""
    sources: tuple[str, ...] = ()
    """The sources whose rollouts it scores; empty: all."""
    sees: tuple[Sees, ...] = ("instruction", "answer")
    """What the judge sees of an attempt: the task's instruction, the agent's last message, the whole conversation, the output
    and scores of the tests. Thinking is never shown."""
    files: tuple[str, ...] = ()
    """Paths in the sandbox that it sees too; tasks must name them, or folders that hold them, as artifacts."""
    characters: Count = 12_000
    """Most characters of each of these; the middle of a longer one is left out, and the judge is told."""
    group_wise: bool = False
    """One request holds all attempts of a group, in shuffled order, so that their scores can be compared."""
    gives: Literal["points", "ranking"] = "points"
    """"points" for each criterion; or "ranking": the judge puts the attempts of a group in order, and the score is the share of
    the others that an attempt is placed before (0.5 in a group of one)."""
    explain: bool = True
    """The judge says why before it gives points: better judgement and a better record, for more tokens."""
    votes: Count = 1
    """Independent requests for each score, each with a seed of its own and, group-wise, an order of its own; all of them must
    be answered. With several, give a temperature."""
    combine: Literal["mean", "median"] = "mean"
    """What the score is of its votes."""
    temperature: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Temperature of the judge."""
    max_tokens: Count = 1024
    """Most tokens of its answer."""
    structured: Literal["auto", "off"] = "auto"
    """"auto": a JSON schema goes with the request, unless the endpoint refuses that; "off": never. In either case the last JSON
    object of the answer counts."""
    tries: Count = 3
    """Answers that may be unusable, each told to the judge with what is wrong, before there is no score."""
    at_once: Count = 8
    """Requests in flight."""
    limit: Seconds = 300.0
    """Seconds for one answer, with every retry of a busy or absent endpoint, before there is no score."""
    most_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Tokens, of prompts and answers, that this rubric may use in a run; after that it gives no score. 0: no limit."""

    def __post_init__(self) -> None:
        """Raises ValueError for settings that do not go together; `convert` adds the key."""
        if not NAME.fullmatch(self.name):
            raise ValueError(f"a rubric's name is letters, digits and underscores, not {self.name!r}")
        names = [criterion.name for criterion in self.criteria]
        if len(set(names)) < len(names):
            raise ValueError(f"rubric {self.name} has two criteria of one name")
        if self.gives == "ranking" and not self.group_wise:
            raise ValueError(f"rubric {self.name}: a ranking is of a group: set group_wise = true")
        if not (self.criteria or self.task_criteria or (self.gives == "ranking" and self.instructions)):
            raise ValueError(f"rubric {self.name} says nothing of what is good: give it criteria")
        if not self.judge.base_url or not self.judge.model:
            raise ValueError(f"rubric {self.name}: judge.base_url and judge.model say who judges")
        if not (self.sees or self.files):
            raise ValueError(f"rubric {self.name} sees nothing of an attempt")

    def digest(self) -> str:
        """Digest of everything that the judge is told, and of how its answers become a score."""
        told = (self.criteria, self.instructions, self.template, self.sees, self.files, self.characters)
        way = (self.group_wise, self.gives, self.explain, self.votes, self.combine, self.temperature, self.task_criteria)
        return hashlib.sha256(msgspec.json.encode((told, way))).hexdigest()[:12]


def check_rubrics(rubrics: tuple[RubricConfig, ...]) -> None:
    """Raises ValueError where two have one name."""
    names = [rubric.name for rubric in rubrics]
    twice = next((name for name in names if names.count(name) > 1), "")
    if twice:
        raise ValueError(f"two rubrics are called {twice!r}")
