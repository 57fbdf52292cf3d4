"""What the benchmark sends: conversations of a coding harness at given token counts, and the one answer that the engine gives.

Everything is made from a seed before anything is timed. A rollout's next request is known in advance, because the answer is
known: the harness echoes it (with a tool call id of its own, as some do) and adds the tool's output.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>"]
SAMPLED_TOKENS = 200
WORDS = 1500


def make_words(seed: int = 7) -> list[str]:
    """Pseudo-words, the same each time."""
    draw = random.Random(seed)
    syllables = [a + b for a in "bcdfghjklmnprstvw" for b in ("a", "e", "i", "o", "u", "an", "er", "is")]
    return ["".join(draw.choices(syllables, k=draw.randint(1, 3))) for _ in range(WORDS)]


def make_model(directory: Path) -> Path:
    """A model directory without weights: a byte-level BPE tokenizer with the special tokens of the shipped template."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4000,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    words, draw = make_words(), random.Random(1)
    tokenizer.train_from_iterator([" ".join(draw.choices(words, k=200)) for _ in range(300)] + [json.dumps(TOOLS)], trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def _tool(name: str, about: str, *arguments: str) -> dict[str, Any]:
    properties = {argument: {"type": "string", "description": f"the {argument} to use " * 4} for argument in arguments}
    parameters = {"type": "object", "properties": properties, "required": list(arguments)}
    return {"type": "function", "function": {"name": name, "description": about * 6, "parameters": parameters}}


TOOLS = [
    _tool("bash", "run a command in the shell of the machine and give back what it printed. ", "command", "timeout"),
    _tool("edit", "replace one piece of a file by another piece, both given whole. ", "path", "old", "new"),
    _tool("read", "read a file from a line on, so many lines. ", "path", "offset", "limit"),
    _tool("search", "look for a pattern in all files below a folder. ", "pattern", "folder"),
]


@dataclass(frozen=True)
class Answer:
    """The engine's answer: its ids end with the end-of-turn token."""

    content: str
    command: str
    ids: list[int]


class Writer:
    """Makes text of about so many tokens."""

    def __init__(self, model: Path, seed: int = 3) -> None:
        self.tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._words = make_words()
        self._draw = random.Random(seed)
        sample = " ".join(self._draw.choices(self._words, k=2000))
        self._per_word = self.count(sample) / 2000

    def count(self, text: str) -> int:
        """Tokens of a text."""
        return len(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def text(self, tokens: int) -> str:
        """Words that make about `tokens` tokens."""
        return " ".join(self._draw.choices(self._words, k=max(1, round(tokens / self._per_word))))

    def answer(self) -> Answer:
        """Exactly SAMPLED_TOKENS ids: some prose, a call of `bash`, the end of the turn."""
        command = self.text(30)
        call = '\n<tool_call>\n{"name": "bash", "arguments": {"command": "' + command + '"}}\n</tool_call><|im_end|>'
        words: list[str] = []
        while self.count(" ".join(words) + call) < SAMPLED_TOKENS:
            words.append(self._draw.choice(self._words))
        while self.count(" ".join(words) + call) > SAMPLED_TOKENS:
            words.pop()
        text = " ".join(words)
        while self.count(text + call) < SAMPLED_TOKENS:
            text += " a"
        ids = self.tokenizer.encode(text + call, add_special_tokens=False).ids
        return Answer(content=text, command=command, ids=ids[: SAMPLED_TOKENS - 1] + ids[-1:])


@dataclass(frozen=True)
class Shape:
    """Lengths in tokens: the first prompt, what a tool's output adds after each answer, and the number of calls."""

    first: int = 3300
    output: int = 60
    calls: int = 7


def shared_system(writer: Writer, tokens: int = 1500) -> str:
    """The system prompt that all rollouts of a harness share."""
    return "You are a careful engineer. " + writer.text(tokens)


def bodies(writer: Writer, answer: Answer, system: str, shape: Shape, *, stream: bool) -> list[bytes]:
    """The requests of one rollout, in order."""
    tools = writer.count(json.dumps(TOOLS))
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}]
    messages.append({"role": "user", "content": writer.text(max(20, shape.first - writer.count(system) - tools))})
    made = []
    for index in range(shape.calls):
        body = {"model": "policy", "messages": messages, "tools": TOOLS, "stream": stream, "temperature": 1.0}
        made.append(json.dumps(body).encode())
        call = {
            "id": f"call_{index}",
            "type": "function",
            "function": {"name": "bash", "arguments": json.dumps({"command": answer.command})},
        }
        messages = [
            *messages,
            {"role": "assistant", "content": answer.content, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"call_{index}", "content": writer.text(shape.output)},
        ]
    return made
