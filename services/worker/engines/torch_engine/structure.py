"""Structured output: which tokens may come next so that the whole output matches a JSON Schema or a regular expression.

A `Matcher` belongs to one sequence and follows its output token by token. `allowed` computes for many of them at once
which tokens may come next; the end of sequence is among them exactly where the output may stop.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from libs.structured_output import StructureError, compile_matcher, explain
from services.worker.engines.port import EngineLoadError, Structure
from services.worker.model_files import ModelFiles

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher, LLTokenizer

__all__ = ["Matcher", "StructureError", "Structures", "accept", "allowed"]

_REMEMBERED = 64
"""Compiled structures kept per model: callers mostly ask for the same few again and again."""


class Matcher:
    """Where one sequence's output stands in its structure."""

    __slots__ = ("_end", "inner", "words")

    def __init__(self, inner: LLMatcher, end: frozenset[int], words: int) -> None:
        """`end` holds the ids that end a sequence; `words` is how many 32-bit words its allowed tokens fill."""
        self.inner = inner
        self.words = words
        self._end = end

    @property
    def error(self) -> str:
        """Why it cannot go on, fit for the caller; "" while it can. Nothing is allowed any more after an error."""
        return explain(self.inner.get_error()) if self.inner.is_error() else ""

    @property
    def complete(self) -> bool:
        """The output matches and nothing but the end of sequence can follow; also after an end of sequence."""
        return bool(self.inner.is_stopped() and not self.inner.is_error())

    def ends(self, token: int) -> bool:
        """Whether this token is an end of sequence."""
        return token in self._end

    def replay(self, tokens: Sequence[int]) -> None:
        """Follow tokens that were delivered before, elsewhere.

        :raises StructureError: the structure does not allow them.
        """
        taken = self.inner.try_consume_tokens(list(tokens))
        if taken != len(tokens):
            raise StructureError(f"the output so far does not match it from token {taken} on")


class Structures:
    """Makes matchers for the outputs of one model."""

    def __init__(self, tokenizer: LLTokenizer | EngineLoadError, eos_token_ids: Sequence[int]) -> None:
        """An error in place of the tokenizer is raised when the first structure is asked for."""
        self._tokenizer = tokenizer
        self._end = frozenset(eos_token_ids)
        self._compiled: OrderedDict[Structure, LLMatcher] = OrderedDict()

    @classmethod
    def load(cls, files: ModelFiles, *, vocabulary: int, eos_token_ids: Sequence[int]) -> Structures:
        """Read `tokenizer.json`; whether that works matters only to sequences with a structure.

        `vocabulary` is the width of the model's logits: ids beyond the tokenizer's are never allowed.
        """
        return cls(_tokenizer(files, vocabulary, sorted(set(eos_token_ids))), eos_token_ids)

    def matcher(self, structure: Structure) -> Matcher:
        """A matcher at the start of an output. What it costs at most is said in `libs/structured_output/grammar.py`;
        a structure asked for again costs microseconds.

        :raises StructureError: the structure is malformed, unsupported or too complex.
        :raises EngineLoadError: the model's tokenizer cannot be used; the message names the file.
        """
        if isinstance(self._tokenizer, EngineLoadError):
            raise self._tokenizer
        compiled = self._compiled.pop(structure, None)
        if compiled is None:
            compiled = compile_matcher(structure.kind, structure.text, self._tokenizer)
        self._compiled[structure] = compiled
        if len(self._compiled) > _REMEMBERED:
            self._compiled.popitem(last=False)
        return Matcher(compiled.deep_copy(), self._end, -(-self._tokenizer.vocab_size // 32))


def allowed(matchers: Sequence[Matcher]) -> NDArray[np.uint8]:
    """The tokens that may come next as bits, a row per matcher of the same model: bit `id % 8` of byte `id // 8`. The
    rows are computed side by side on several threads. What a failed matcher allows cannot be trusted: see
    `Matcher.error`."""
    words = matchers[0].words
    bits = np.zeros((len(matchers), words), dtype=np.uint32)
    if len(matchers) == 1:
        matchers[0].inner.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
    else:
        pairs = [(each.inner, row) for row, each in enumerate(matchers)]
        _executor().unsafe_compute_mask_ptr(pairs, bits.ctypes.data, words * 4, len(matchers))
    return bits.view(np.uint8)


def accept(matchers: Sequence[Matcher], tokens: Sequence[int]) -> None:
    """Follow each matcher's next token; one that does not fit leaves its matcher with an error."""
    if len(matchers) == 1:
        matchers[0].inner.consume_token(tokens[0])
    else:
        _executor().consume_token_par([(each.inner, token) for each, token in zip(matchers, tokens, strict=True)])


def _tokenizer(files: ModelFiles, vocabulary: int, eos: list[int]) -> LLTokenizer | EngineLoadError:
    if not eos:
        return EngineLoadError(f"{files.folder}: structured output needs a model with an end of sequence")
    try:
        from llguidance import LLTokenizer

        text = files.read("tokenizer.json").decode()
        plain = LLTokenizer(text, eos_token=eos)
        return plain if plain.vocab_size >= vocabulary else LLTokenizer(text, n_vocab=vocabulary, eos_token=eos)
    except EngineLoadError as error:
        return error
    except ImportError as error:
        return EngineLoadError(f"structured output needs llguidance: {error}")
    except ValueError as error:
        return EngineLoadError(f"{files.folder / 'tokenizer.json'}: {error}")


@cache
def _executor() -> LLExecutor:
    """The threads that compute masks, one set per process."""
    from llguidance import LLExecutor

    return LLExecutor()
