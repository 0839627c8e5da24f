"""What both faces do with a generation, and what both tell its caller."""

from __future__ import annotations

import math
from typing import Protocol

from libs.errors import WeirError
from libs.quota import UNLIMITED, Header, LimitReport, limit_headers, retry_headers
from services.gateway.embed import Embedded
from services.gateway.policy.events import Accepted, ChoiceUpdate, End, Finish
from services.gateway.refusals import WINDOW, Refused, State

_SECOND = 1_000_000_000


class Answer(Protocol):
    """What a face reads: an `OutputBuffer`, or several as one."""

    width: int

    async def take(self) -> tuple[list[ChoiceUpdate], bool, End | None]:
        """See `OutputBuffer`."""

    def stop(self, finish: Finish) -> None:
        """See `OutputBuffer`."""


async def collect(generation: Answer) -> tuple[list[ChoiceUpdate], End]:
    """Read a generation to its end; every choice as one update, by index. Cancelling this stops the generation."""
    whole = [ChoiceUpdate(index) for index in range(generation.width)]
    try:
        while True:
            updates, _, end = await generation.take()
            for update in updates:
                choice = whole[update.index]
                choice.text += update.text
                choice.finish = update.finish
                if update.logprobs is not None:
                    choice.logprobs = choice.logprobs or []
                    choice.logprobs += update.logprobs
            if end is not None:
                return whole, end
    finally:
        generation.stop(Finish.CANCELLED)


def limits_of(told: Accepted | Embedded | WeirError) -> list[Header]:
    """The limit headers of an answer or a refusal; none where the edge has told them."""
    if isinstance(told, (Accepted, Embedded)):
        requests, tokens = told.request_limit, told.token_limit
    elif isinstance(told, Refused):
        requests, tokens = told.requests, told.tokens
    else:
        return []
    return limit_headers(_report(requests), _report(tokens))


def retry_of(error: WeirError) -> list[Header]:
    """When to come back, where the refusal knows a time."""
    return retry_headers(None if error.retry_after is None else math.ceil(error.retry_after * _SECOND))


def _report(state: State | None) -> LimitReport:
    if state is None:
        return UNLIMITED
    limit, remaining, reset = state
    return LimitReport(limit, remaining, math.ceil(reset * _SECOND), WINDOW * _SECOND)
