"""What happens once a request is over: settle, release, report, record; and, for the report, that it begins. Nothing
here waits or fails."""

from __future__ import annotations

from weir.admission.v1 import admission_pb2

from libs.breaker import is_fault
from libs.clock import Clock
from libs.errors import Reason, WeirError
from libs.routing import Route
from services.gateway import metrics, records
from services.gateway.catalog import Catalog
from services.gateway.outcomes import Outcomes
from services.gateway.policy.events import Accepted, End, Finish, Usage
from services.gateway.policy.lengths import AnswerLengths
from services.gateway.policy.plans import DEFAULT_ANSWER
from services.gateway.ports import AdmissionPort, AuditPort, QuotaPort, RouterPort
from services.gateway.refusals import RefusalLog, outcome_of
from services.gateway.request import Candidate, Request, accepted_of, settle

_OWN_ENDS = frozenset({Finish.STOP, Finish.LENGTH})
"""Whoever ended so was as long as it wanted to be."""


class Closing:
    """Ends requests, each exactly once."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        quota: QuotaPort,
        admission: AdmissionPort,
        router: RouterPort,
        audit: AuditPort,
        outcomes: Outcomes,
        lengths: AnswerLengths,
        clock: Clock,
        source: str,
    ) -> None:
        self._catalog = catalog
        self._quota = quota
        self._admission = admission
        self._router = router
        self._audit = audit
        self._outcomes = outcomes
        self._lengths = lengths
        self._clock = clock
        self._source = source
        self.refusals = RefusalLog()

    def began(self, request: Request, candidate: Candidate) -> None:
        """The request was given this candidate; `ended` or `rejected` follows."""
        request.begun = self._outcomes.began(
            candidate.arm,
            request.question(self._catalog, candidate.model),
            given=request.given,
            model_version=candidate.route.model_version,
            route=request.route,
            tier=candidate.version.tier,
        )

    def ended(self, request: Request) -> None:
        """A generation or a replayed answer has ended, whatever way."""
        mailbox = request.mailbox
        if mailbox is None or mailbox.end is None:
            raise RuntimeError("ended before it began")
        end, identity, granted = mailbox.end, request.identity, request.granted
        settle(self._quota, request, end.usage)
        served = _served(end)
        if granted is not None:
            failed = end.error_reason == Reason.ENGINE_ERROR.name
            self.release(request, failed=failed, cut_short=end.finish not in _OWN_ENDS)
            if served is not None:
                self.outcome(request, granted.zone, ok=served)
            self._learn(request)
        accepted = mailbox.accepted
        if accepted is None:  # ended in the very tick of its submission
            accepted = accepted_of(request, (), self._clock.time())
        self._audit.write(
            records.completed(
                now=self._clock.time(),
                source=self._source,
                identity=identity,
                spec=request.spec,
                model=self._catalog.told(request.spec.model),
                accepted=accepted,
                end=end,
                worker=granted.worker if granted else "",
                training=request.tenant.training_allowed,
                policies=request.policies,
            ),
            traceparent=request.span.traceparent,
        )
        records.observe(request.spec.operation, accepted, end)
        if request.candidate is not None and DEFAULT_ANSWER not in end.degraded:  # which is quick and no service
            self._judge(request, request.candidate, end)
        self._outcomes.over(request.begun)
        _end_span(request, self._catalog.told(request.spec.model), accepted, end)

    def _learn(self, request: Request) -> None:
        generation = request.generation
        for choice in generation.choices if generation is not None else ():
            self._lengths.learn(
                request.identity.tenant,
                request.model_version,
                choice.completion_tokens,
                cut=choice.finish is not Finish.STOP,
            )

    def _judge(self, request: Request, candidate: Candidate, end: End) -> None:
        generation, first, longest, arm = request.generation, end.breakdown.time_to_first_token, 0, None
        mean = None
        if generation is not None:
            if request.spec.whole:
                first = generation.first_after  # its text leaves in groups of tokens, which nobody waits for
            longest = max((choice.completion_tokens for choice in generation.choices), default=0)
            arm = candidate.arm  # an answer given before is no arm's work
            if generation.observed and not request.moved:
                mean = generation.mean_logprob
        self._outcomes.ended(
            route=request.route,
            tier=candidate.version.tier,
            end=end,
            error=generation.error if generation is not None else None,
            given=request.given,
            first=first,
            longest=longest,
            model_version=candidate.route.model_version,
            model=candidate.model,
            arm=arm,
            mean_logprob=mean,
            begun=request.begun,
        )

    def rejected(self, request: Request, error: WeirError) -> None:
        """A request was refused before it ran."""
        if request.reserved:
            settle(self._quota, request, Usage())
        metrics.outcome(request.spec.operation, outcome_of(error), error.reason.name).inc()
        self.refusals.note(request.spec.operation, error)
        self._outcomes.refused(
            route=request.route,
            model=request.spec.model,
            asked=self._asked(request),
            error=error,
            given=request.given,
            over_quota=request.queue_class == admission_pb2.QUEUE_CLASS_OVER_QUOTA,
            begun=request.begun,
        )
        self._audit.write(
            records.rejected(
                now=self._clock.time(),
                source=self._source,
                identity=request.identity,
                spec=request.spec,
                model=self._catalog.told(request.spec.model),
                request_id=request.id,
                error=error,
                trace_id=request.span.traceparent[3:35],
                policies=request.policies,
            ),
            traceparent=request.span.traceparent,
        )
        request.span.end(error.reason.name)

    def _asked(self, request: Request) -> Route | None:
        """What a refused request would have got; None when that is nothing."""
        if request.candidate is not None:
            return request.candidate.route
        if request.routed is not None:
            return request.routed
        try:
            return self._catalog.resolve(request.question(self._catalog, request.spec.model))
        except WeirError:
            return None

    def release(self, request: Request, *, failed: bool, cut_short: bool, refused: bool = False) -> None:
        """The request is done with its present grant; one that its worker `refused` cost nothing and teaches nothing,
        unless another choice ran on it."""
        admit, generation = request.admit, request.generation
        if admit is None or generation is None:
            raise RuntimeError("released before it was granted")
        leg = generation.leg
        output_tokens = generation.delivered - leg.tokens_before
        self._admission.release(
            request.admission_id,
            pool=admit.pool,
            output_tokens=output_tokens,
            unused=refused and not output_tokens,
            failed=failed,
            first_token=leg.first_token,
            cached_prompt_tokens=leg.cached_prompt_tokens,
            cut_short=cut_short,
        )

    def outcome(self, request: Request, zone: str, *, ok: bool) -> None:
        """Feed the breaker of the version and zone that served."""
        admit = request.admit
        if admit is not None:
            self._router.outcome(pool=admit.pool, model_version=admit.model_version, zone=zone, ok=ok)


def _served(end: End) -> bool | None:
    """Whether the zone did its part; None when the end says nothing about the zone."""
    if end.finish in (Finish.CANCELLED, Finish.DEADLINE):
        return None  # the caller's doing: its deadline may have been too short for anybody
    if end.finish is not Finish.ERROR:
        return True
    return False if is_fault(Reason.parse(end.error_reason)) else None


def _end_span(request: Request, model: str, accepted: Accepted, end: End) -> None:
    trace = request.span
    trace.set("gen_ai.operation.name", request.spec.operation)
    trace.set("gen_ai.request.model", model)
    trace.set("gen_ai.response.model", accepted.model_version)
    trace.set("gen_ai.response.finish_reasons", [finish.label for finish in end.choices])
    trace.set("gen_ai.usage.input_tokens", end.usage.prompt_tokens)
    trace.set("gen_ai.usage.output_tokens", end.usage.completion_tokens)
    trace.set("weir.tenant", request.identity.tenant)
    trace.set("weir.simulated", accepted.simulated)
    trace.end(end.error_reason if end.finish is Finish.ERROR else "")
