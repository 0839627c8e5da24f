"""What both faces do with a generation, and what both tell its caller."""

from __future__ import annotations

from typing import Protocol

from libs.errors import WeirError
from services.gateway.embed import Embedded
from services.gateway.policy.events import Accepted, ChoiceUpdate, End, Finish
from services.gateway.policy.limits import Header, limit_headers
from services.gateway.refusals import Refused


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
        return limit_headers(told.request_limit, told.token_limit)
    return limit_headers(told.requests, told.tokens) if isinstance(told, Refused) else []
