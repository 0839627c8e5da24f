"""Tokens that may not come next: what would end an output too early, and what would complete a bad word."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence

import torch
from torch import Tensor

from services.worker.engines.port import SamplingParams

BARRED = -1e30
"""In place of a logit: far below any that a model gives and still a number, so that where a structure leaves only
barred tokens (-inf is what it leaves out) one of them is chosen, rather than none."""


class Bans:
    """What is barred for one sequence, as its output goes on."""

    __slots__ = ("_always", "_completing", "_ends", "_left", "_tail")

    def __init__(
        self, words: Iterable[Sequence[int]], output: Sequence[int], *, ends: Collection[int], least: int
    ) -> None:
        """`ends` may not come before `least` more tokens; `words` may not come at all, in none of which the output so
        far counts but its end."""
        self._left = least
        self._ends = list(ends)
        always: dict[int, None] = {}
        # By the token before a word's last one: the tokens before both, and the last one. Most steps look at none.
        self._completing: dict[int, list[tuple[tuple[int, ...], int]]] = {}
        longest = 0
        for *start, last in words:
            if not start:
                always[last] = None
                continue
            self._completing.setdefault(start[-1], []).append((tuple(start), last))
            longest = max(longest, len(start))
        self._always = list(always)
        self._tail = deque(output[-longest:] if longest else (), maxlen=longest)

    @classmethod
    def create(cls, params: SamplingParams, output: Sequence[int], ends: Collection[int]) -> Bans | None:
        """None where nothing is barred. `output` was generated before; `ends` are the tokens that end the sequence."""
        if not params.min_tokens and not params.bad_words:
            return None
        return cls(params.bad_words, output, ends=ends, least=params.min_tokens)

    @property
    def over(self) -> bool:
        """Nothing is barred any more, whatever comes."""
        return self._left <= 0 and not self._always and not self._completing

    def add(self, token: int) -> None:
        """A token of the output."""
        self._left -= 1
        self._tail.append(token)

    def now(self) -> list[int]:
        """The tokens that may not come next; some may be there twice."""
        barred = self._always + self._ends if self._left > 0 else self._always
        found = self._completing.get(self._tail[-1]) if self._tail else None
        if found is None:
            return barred
        tail = tuple(self._tail)
        return barred + [last for start, last in found if tail[-len(start) :] == start]


def bar(logits: Tensor, bans: Sequence[Bans | None]) -> None:
    """Put `BARRED` where a row's tokens are barred; `logits` is (n, vocabulary), contiguous."""
    size = logits.shape[1]
    places = [row * size + token for row, each in enumerate(bans) if each is not None for token in each.now()]
    if places:
        logits.view(-1)[torch.tensor(places).to(logits.device)] = BARRED
