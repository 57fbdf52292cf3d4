"""A tokenizer for models behind a chat API, of which we have none: the gateway wants one to count and to show text.

The API renders and parses, so no text of the model goes through it; what it counts is bytes, which nothing is held to.
Invariants (tests/loop/test_grid_running.py): any text is encoded and comes back; it is made without a model, once.
"""

from __future__ import annotations

from pathlib import Path

from whippletree.files import write_atomically

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")


def write_stand_in(directory: Path) -> Path:
    """A directory with a tokenizer of bytes and the marks of the shipped template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    write_atomically(directory / "tokenizer.json", tokenizer.to_str().encode())
    write_atomically(directory / "tokenizer_config.json", b'{"eos_token": "<|im_end|>"}')
    return directory
