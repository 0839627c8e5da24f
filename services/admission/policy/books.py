"""What granted requests were charged and were foretold, until their release corrects the one and judges the other."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from services.admission.policy.backlog import Backlog
from services.admission.policy.estimates import Estimates
from services.admission.policy.limits import Limits
from services.admission.policy.model import QueueClass, Request

_PREDICTIONS = 1024  # kept until somebody takes them


@dataclass(slots=True)
class Held:
    """A granted request."""

    request: Request
    worker: str
    cost: float  # charged
    waited: float
    computed: float  # first token after the grant, by the formula
    predicted: float  # first token after the admission
    granted_at: float


class Books:
    """Of one pool."""

    def __init__(self, limits: Limits, backlog: Backlog, estimates: Estimates) -> None:
        self._limits = limits
        self._backlog = backlog
        self._estimates = estimates
        self._predictions: deque[tuple[float, float]] = deque(maxlen=_PREDICTIONS)
        self.held: dict[str, Held] = {}
        """By request id."""
        self.running = dict.fromkeys(QueueClass, 0)
        """How many, by class."""

    def open(self, held: Held) -> None:
        """A request was granted and charged."""
        self.held[held.request.request_id] = held
        self.running[held.request.queue_class] += 1

    def forget(self, request_id: str) -> Held | None:
        """Nobody will release it: what it was charged stays."""
        held = self.held.pop(request_id, None)
        if held is not None:
            self.running[held.request.queue_class] -= 1
        return held

    def settle(
        self,
        request_id: str,
        now: float,
        output_tokens: int | None,
        *,
        learn: bool,
        cut_short: bool = False,
        first_token: float | None = None,
        cached_prompt_tokens: int = 0,
    ) -> None:
        """It ended after `output_tokens` (None: it was never submitted): corrects the tenant's charge to what it really
        cost, without the prompt tokens that its worker had cached. `learn`: its length says something; of one that was
        cut, by its caller or at its cap, that it would have been longer. What cannot be (more tokens than granted, a
        first one after the end) counts as the most that can.
        Shadow requests are not charged and teach nothing."""
        held = self.forget(request_id)
        if held is None:
            return
        request = held.request
        if request.queue_class is QueueClass.SHADOW:
            return
        if output_tokens is not None:
            output_tokens = min(output_tokens, request.max_output_tokens * request.choices)
        actual = 0.0
        if output_tokens is not None:
            actual = self._limits.real_cost(request, output_tokens, cached_prompt_tokens)
        self._backlog.queue_of(request).correct(request.tenant, request.weight, actual - held.cost)
        if output_tokens is None:
            return
        if learn:
            tokens = request.resumed_tokens + output_tokens / request.choices
            cut = cut_short or output_tokens == request.max_output_tokens * request.choices
            self._estimates.lengths.learn(request.tenant, request.model_version, tokens, cut=cut)
        if first_token is not None:
            first_token = max(0.0, min(first_token, now - held.granted_at))
            self._estimates.first_tokens.learn(request, held.worker, first_token - held.computed, now)
            self._predictions.append((held.predicted, held.waited + first_token))

    def take_predictions(self) -> list[tuple[float, float]]:
        """First tokens since the last call, seconds from the admission on: as predicted there, and as they came."""
        taken = list(self._predictions)
        self._predictions.clear()
        return taken
