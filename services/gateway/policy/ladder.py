"""The degradation ladder: what to give instead of a refusal, in the plan's order.

Each step changes what the request has become so far, so a request that was capped stays capped when a smaller model
takes it. Pure; `acquire.py` carries the steps out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from libs.catalog.plans import CachedAnswer, CapOutput, CpuFallback, DefaultAnswer, SmallerModel, Step
from libs.errors import Reason

OVERLOAD = frozenset(
    {
        Reason.REJECTED_QUEUE_FULL,
        Reason.REJECTED_DEADLINE,
        Reason.REJECTED_NO_CAPACITY,
        Reason.EVICTED_SHED,
        Reason.EVICTED_TTL,
        Reason.NO_WORKERS,
        Reason.DEPENDENCY_UNAVAILABLE,
    }
)
"""Refusals of admission that less, or another pool, might escape. The caller's own faults and its quotas never lead
down the ladder."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What the ladder has to know of a request as it stands."""

    model: str
    """As the caller named it, or the last model that took its place."""
    pool: str
    max_tokens: int
    structured: bool = False
    """Its output must match something: a text that was cut or not made for it would break that promise."""
    tokens_given: bool = False
    """Its meaning hangs on one model's vocabulary (token ids, a logit bias)."""
    repeatable: bool = False
    """The same request gets the same answer: greedy or seeded, without log-probabilities."""
    logprobs: bool = False


def ahead(ladder: Sequence[Step], pressure: float, offer: Offer) -> CapOutput | None:
    """The strictest cap that holds at this pressure before anything was refused."""
    caps = [
        step
        for step in ladder
        if isinstance(step, CapOutput) and 0 < step.pressure <= pressure and applies(step, offer)
    ]
    return min(caps, key=lambda step: step.max_tokens, default=None)


def next_step(ladder: Sequence[Step], start: int, offer: Offer) -> tuple[int, Step] | None:
    """The first step from `start` on that would change something, with its place; None at the end of the ladder."""
    for place in range(start, len(ladder)):
        if applies(ladder[place], offer):
            return place, ladder[place]
    return None


def applies(step: Step, offer: Offer) -> bool:
    """Whether the step may be taken by this request and would change it."""
    match step:
        case CapOutput(max_tokens=most):
            return 0 < most < offer.max_tokens and not offer.structured
        case SmallerModel(models=models):
            return models.get(offer.model, offer.model) != offer.model and not offer.tokens_given
        case CachedAnswer():
            return offer.repeatable
        case DefaultAnswer(text=text):
            return bool(text) and not offer.structured and not offer.logprobs
        case CpuFallback(pools=pools):
            return pools.get(offer.pool, offer.pool) != offer.pool
