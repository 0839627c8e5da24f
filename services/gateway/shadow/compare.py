"""How the answer to a mirrored request differs from the user's. Pure; token by token, never by text.

    exact     1 when every choice has the same tokens and the same end, else 0
    length    the shorter's share of the longer's length, 0 to 1
    logprob   mean |Δ| of the tokens' log-probabilities, over the tokens before the first difference of each choice

Tokens can be compared when both versions mean the same by them, and exactness says something when nothing but the
versions could make the answers differ: without chance, or with the same seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from services.gateway.policy.events import Finish
from services.gateway.policy.finals import FinalAnswer, FinalChoice
from services.gateway.policy.spec import BoundParameters

EXACT, LENGTH, LOGPROB = "shadow_exact", "shadow_length", "shadow_logprob"
"""The scores' names, as in `weir.rollout.v1.ArmOutcomes.scores`."""
_WHOLE = frozenset({Finish.STOP, Finish.LENGTH})
_NO_CHOICE = FinalChoice((), (), Finish.STOP)


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two answers have in common."""

    exact: bool | None
    """None: it would say nothing."""
    length: float
    same_finish: bool
    """Every choice ended for the same reason."""
    logprob: float | None
    """None when either's log-probabilities are not known, or no token is common."""
    first_difference: int | None
    """The least position, over the choices, of a token that differs or is there in one only; None when none does."""

    def scores(self) -> Iterator[tuple[str, float]]:
        """What is known, by name."""
        if self.exact is not None:
            yield EXACT, 1.0 if self.exact else 0.0
        yield LENGTH, self.length
        if self.logprob is not None:
            yield LOGPROB, self.logprob


def repeatable(parameters: BoundParameters) -> bool:
    """Whether chance plays no part, or the same part each time."""
    return parameters.temperature == 0 or parameters.seed is not None


def comparable(answer: FinalAnswer) -> bool:
    """Whether the answer is whole and of one version: one that was cut short says nothing of the rest."""
    return not answer.moved and all(choice.finish in _WHOLE for choice in answer.choices)


def compare(users: FinalAnswer, copy: FinalAnswer, *, exactness: bool) -> Comparison:
    """The comparison of two answers that are `comparable`; `exactness`: the request was `repeatable`."""
    pairs = list(zip_longest(users.choices, copy.choices, fillvalue=_NO_CHOICE))
    differences = [_first_difference(a.tokens, b.tokens) for a, b in pairs]
    known = [each for each in differences if each is not None]
    same_finish = len(users.choices) == len(copy.choices) and all(a.finish is b.finish for a, b in pairs)
    return Comparison(
        exact=not known and same_finish if exactness else None,
        length=_length_ratio(users.choices, copy.choices),
        same_finish=same_finish,
        logprob=_distance(pairs, differences),
        first_difference=min(known, default=None),
    )


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    if one == other:
        return None
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return min(len(one), len(other))


def _length_ratio(one: Sequence[FinalChoice], other: Sequence[FinalChoice]) -> float:
    lengths = sorted((sum(len(c.tokens) for c in one), sum(len(c.tokens) for c in other)))
    return lengths[0] / lengths[1] if lengths[1] else 1.0


def _distance(pairs: Sequence[tuple[FinalChoice, FinalChoice]], differences: Sequence[int | None]) -> float | None:
    total, count = 0.0, 0
    for (one, other), difference in zip(pairs, differences, strict=True):
        for a, b in zip(one.logprobs[:difference], other.logprobs[:difference], strict=False):
            if math.isfinite(a) and math.isfinite(b):
                total += abs(a - b)
                count += 1
    return total / count if count else None
