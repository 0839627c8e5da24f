"""The last step of an answer that no worker gives: one from the cache, or the plan's fixed text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from libs.clock import Clock
from services.gateway.acquire import Held, accepted_of
from services.gateway.output_buffer import OutputBuffer, SlowReaders
from services.gateway.parts import Parts
from services.gateway.policy.answers import Answer, restored
from services.gateway.policy.events import Breakdown, Usage, worst
from services.gateway.policy.spec import is_json
from services.gateway.request import Prepared, Request, Served


async def replay(
    parts: Parts, request: Request, prepared: Prepared, held: Held, hand: Callable[[OutputBuffer], None]
) -> Served:
    """Hand on the answer with the words of whoever gets it."""
    candidate, answer = prepared.candidate, prepared.answer
    if answer is None:
        raise RuntimeError("there is no answer")
    if candidate.check.values:
        answer = restored(answer, candidate.check.values, json=is_json(candidate.bound.structure))
    buffer = Replay(
        answer,
        request_id=request.id,
        clock=parts.clock,
        arrived=request.arrived,
        readers=parts.readers,
        degraded=prepared.degraded,
    )
    buffer.accepted = accepted_of(request, prepared, held, parts.clock.time())
    buffer.breakdown.preprocess = prepared.tokenised - request.arrived
    buffer.breakdown.decide = prepared.decided - prepared.tokenised
    buffer.breakdown.queue = request.arrived + buffer.breakdown.total - prepared.decided
    hand(buffer)
    first = buffer.breakdown.time_to_first_token
    return Served(candidate=candidate, accepted=buffer.accepted, end=buffer.ended, ran=False, first=first)


class Replay(OutputBuffer):
    """It has ended when it begins."""

    def __init__(
        self,
        answer: Answer,
        *,
        request_id: str,
        clock: Clock,
        arrived: float,
        readers: SlowReaders,
        degraded: Sequence[str],
    ) -> None:
        super().__init__(
            request_id=request_id, choices=len(answer.choices), clock=clock, arrived=arrived, readers=readers
        )
        self.usage = Usage(prompt_tokens=answer.prompt_tokens, completion_tokens=answer.completion_tokens)
        self.degraded = list(degraded)
        passed = clock.monotonic() - arrived
        self.breakdown = Breakdown(time_to_first_token=passed, total=passed)
        for index, (text, finish) in enumerate(answer.choices):
            self._put(index, text, None, finish)
        finishes = [finish for _, finish in answer.choices]
        self._close(worst(finishes), finishes)
