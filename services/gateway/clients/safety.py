"""Safety over the multiplexed stream: the check of an input. What becomes of outputs is in output_filters.py."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weir.safety.v1 import safety_pb2 as pb

from libs.deadlines import Deadline
from libs.errors import Reason, WeirError
from services.gateway.clients.decision import start_decision
from services.gateway.clients.output_filters import OutputFilters
from services.gateway.policy.turnover import jittered
from services.gateway.ports import InputCheck

_REPLACED = (pb.ACTION_REDACT, pb.ACTION_TOKENISE)


@dataclass(eq=False, kw_only=True)
class SafetyClient(OutputFilters):
    """Implements `SafetyPort`."""

    decide_timeout: float
    """Seconds for one check."""
    chance: Callable[[], float]
    """Gives numbers in [0, 1), for jitter."""

    def start_check(
        self,
        *,
        tenant: str,
        policies: Sequence[str],
        texts: Sequence[str],
        request_id: str,
        deadline: Deadline,
        traceparent: str,
    ) -> Future[InputCheck]:
        """See `SafetyPort`."""
        check = pb.CheckInput(tenant=tenant, policies=policies, texts=texts, request_id=request_id)
        asked = tuple(policies)

        def away() -> InputCheck:
            if self.fail_closed(tenant):
                retry = jittered(1.0, self.chance)
                raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "the safety service is away", retry_after=retry)
            return InputCheck(None, skipped=True, asked=asked, policies=asked)

        def read(reply: pb.SafetyReply) -> InputCheck:
            for found in reply.input.interventions:
                self.tell_found(tenant, request_id, "input", found)
            return _input_check(reply.input, asked)

        return start_decision(
            self.mux,
            pb.SafetyCall(check_input=check),
            deadline=Deadline.after(self.decide_timeout, self.clock).earlier(deadline),
            traceparent=traceparent,
            read=read,
            fallback=away,
            wait=self.mux.away < self.grace,  # as long as a restart takes
        )


def _input_check(verdict: pb.InputVerdict, asked: tuple[str, ...]) -> InputCheck:
    if verdict.action == pb.ACTION_BLOCK:
        raise WeirError.from_rejection(verdict.rejection)
    return InputCheck(
        tuple(verdict.texts) if verdict.action in _REPLACED else None,
        tuple(found.category for found in verdict.interventions),
        asked=asked,
        policies=tuple(verdict.policies),
        alters_output=verdict.alters_output,
        values={value.token: value.value for value in verdict.values},
    )
