"""Small real models' files for tests, and the gateway's part of a conversation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from whippletree.protocols import Recorded, Renderer, StreamDelta
from whippletree.types import ParsedMessage, ToolSpec

TEMPLATES = Path(__file__).parent / "templates"
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKS = ["<tool_call>", "</tool_call>", "<think>", "</think>"]
CORPUS = [
    'You can run commands. <|im_start|>user Start at amber and submit the code. {"command": "cat amber"} ',
    '{"name": "bash", "arguments": {"command": "submit 17"}} {"next": "birch"} no such file: cedar. ',
    "Grüße aus 東京 🙂 naïve café — done.\n\nthe cat sat on the mat and looked at the next file\n",
] * 8


def write_model(
    directory: Path,
    template: str = "",
    *,
    normalise: bool = False,
    strip: bool = False,
    marks: Sequence[str] = (),
    ends: Sequence[str] = ("<|endoftext|>",),
) -> Path:
    """Write tokenizer.json, tokenizer_config.json and generation_config.json (no weights) and return the directory.

    `marks` are tokens beside those of every model here, `ends` the tokens that generation_config.json calls the end.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    if normalise:
        tokenizer.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=SPECIALS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken(mark, normalized=False, special=False, rstrip=strip) for mark in [*MARKS, *marks]])
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "bos_token": {"__type": "AddedToken", "content": "<|endoftext|>"},
        "eos_token": "<|im_end|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    if template:
        config["chat_template"] = (TEMPLATES / f"{template}.jinja").read_text()
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [tokenizer.token_to_id(end) for end in ends]})
    )
    return directory


QWEN_MARKS = ["<tool_response>", "</tool_response>"]
GLM_MARKS = [
    *("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
]


def record(renderer: Renderer, prompt: Sequence[int], sampled: Sequence[int], messages: int) -> Recorded:
    """A call as the gateway hands it to the bridge."""
    return Recorded(
        prompt=np.asarray(prompt, dtype=np.int32),
        sampled=np.asarray(sampled, dtype=np.int32),
        text=renderer.to_bytes([*prompt, *sampled]),
        messages=messages,
    )


def joined(recorded: Recorded, rest: Sequence[int]) -> list[int]:
    """The whole prompt that a bridge gives."""
    return [*recorded.prompt.tolist(), *recorded.sampled.tolist(), *rest]


def read_turn(
    renderer: Renderer, sampled: Sequence[int], tools: Sequence[ToolSpec], reason: str = "stop", stops: Sequence[str] = ()
) -> ParsedMessage:
    """Parse a turn id by id, and check that the deltas are the message."""
    parser = renderer.parser(tools, stops)
    deltas = [delta for index in sampled for delta in parser.feed([index])]
    rest, message = parser.finish(reason)
    assert_joined(deltas + rest, message)
    return message


def assert_joined(deltas: Sequence[StreamDelta], message: ParsedMessage) -> None:
    """The deltas, joined, are the message; pieces of a call come together and begin with its id and name."""
    assert "".join(delta.content for delta in deltas) == message.content
    assert "".join(delta.reasoning for delta in deltas) == message.reasoning
    pieces = [delta for delta in deltas if delta.tool_index >= 0]
    begun = [(delta.tool_index, delta.tool_id, delta.tool_name) for delta in pieces if delta.tool_id]
    assert begun == [(n, call.id, call.name) for n, call in enumerate(message.tool_calls)]
    assert [delta.tool_index for delta in pieces] == sorted(delta.tool_index for delta in pieces)
    for index, call in enumerate(message.tool_calls):
        assert "".join(delta.arguments for delta in pieces if delta.tool_index == index) == call.arguments
