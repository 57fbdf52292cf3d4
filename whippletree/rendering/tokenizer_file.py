"""What is read of a `tokenizer.json` beside the tokenizer itself, and the byte table of byte-level vocabularies."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from whippletree.types import Struct


class AddedToken(Struct):
    """An entry of `added_tokens`. `lstrip` and `rstrip` swallow the white space beside the token; a `single_word` is found only
    between words; a `normalized` one is looked for after the tokenizer has rewritten the text.

    Example: AddedToken(id=2, content="<|im_end|>")
    """

    id: int
    content: str
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False

    @property
    def plain(self) -> bool:
        """True when the text beside the token plays no part."""
        return not (self.lstrip or self.rstrip or self.single_word)


class ModelSpec(Struct):
    """How pieces of text become tokens.

    Example: ModelSpec(type="BPE")
    """

    type: str = ""
    dropout: float | None = None
    byte_fallback: bool | None = False


class TokenizerSpec(Struct):
    """The parts of a `tokenizer.json` that decide how text becomes pieces, and ids become text.

    Example: TokenizerSpec(added_tokens=(AddedToken(id=2, content="<|im_end|>"),), decoder={"type": "ByteLevel"})
    """

    added_tokens: tuple[AddedToken, ...] = ()
    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None
    model: ModelSpec = ModelSpec()
    decoder: dict[str, Any] | None = None


@lru_cache(maxsize=1)
def byte_of() -> dict[str, int]:
    """Character → byte: printable Latin-1 stands for itself, every other byte in order for U+0100 onwards (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + place): byte for place, byte in enumerate(others)}
