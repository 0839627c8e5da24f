"""Incremental detokenisation.

Byte-level BPE (GPT-2, Llama 3, Qwen2 and the demo models) maps each token to bytes, so a token costs one list index
and one step of an incremental UTF-8 decoder: a character split over tokens is held until it is whole. Other tokenizers
decode the last few tokens twice, with the new one and without: what came on top is its text.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from tokenizers import Tokenizer

_utf8 = codecs.getincrementaldecoder("utf-8")
_UNFINISHED = "\ufffd"
_MOST_HELD = 8
"""Tokens that are held for the end of a character, which has four bytes at most."""


class Detokenizer(Protocol):
    """Turns one sequence's tokens into text as they come."""

    def feed(self, ids: Sequence[int]) -> str:
        """The text that these tokens complete."""

    def flush(self) -> str:
        """What is left of an incomplete character, as U+FFFD."""


class ByteDetokenizer:
    """For byte-level vocabularies; `table[id]` holds a token's bytes, empty for special tokens."""

    __slots__ = ("_decoder", "_table")

    def __init__(self, table: Sequence[bytes]) -> None:
        self._table = table
        self._decoder = _utf8("replace")

    def feed(self, ids: Sequence[int]) -> str:
        """See `Detokenizer`. An id outside the vocabulary yields nothing."""
        table = self._table
        size = len(table)
        if len(ids) == 1:
            return self._decoder.decode(table[ids[0]]) if ids[0] < size else ""
        return self._decoder.decode(b"".join([table[i] for i in ids if i < size]))

    def flush(self) -> str:
        """See `Detokenizer`."""
        return self._decoder.decode(b"", True)


class WindowDetokenizer:
    """For every other vocabulary, whatever tokens come: how one decodes hangs on those before it, which are a window
    (as in vLLM and TGI)."""

    __slots__ = ("_held", "_tokenizer", "_told", "_window")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        """Tokens whose text is out, ..."""
        self._told = ""
        """... which is this, decoded alone."""
        self._held: list[int] = []
        """Tokens behind them whose text is not."""

    def feed(self, ids: Sequence[int]) -> str:
        """See `Detokenizer`."""
        return "".join([self._step(each) for each in ids])

    def flush(self) -> str:
        """See `Detokenizer`."""
        return self._out(self._decoded()) if self._held else ""

    def _step(self, token: int) -> str:
        self._held.append(token)
        text = self._decoded()
        if len(text) <= len(self._told) or (text.endswith(_UNFINISHED) and len(self._held) < _MOST_HELD):
            if len(self._held) >= _MOST_HELD:  # special tokens, which spell nothing
                self._held = []
            return ""
        return self._out(text)

    def _decoded(self) -> str:
        return self._tokenizer.decode(self._window + self._held, skip_special_tokens=True)

    def _out(self, text: str) -> str:
        new = text[len(self._told) :]
        self._window, self._held = self._held, []
        self._told = self._tokenizer.decode(self._window, skip_special_tokens=True)
        return new


def byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes (Radford et al., 2019), as character → byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    spare = 0x100
    for byte in range(256):
        if byte not in printable:
            alphabet[chr(spare)] = byte
            spare += 1
    return alphabet
