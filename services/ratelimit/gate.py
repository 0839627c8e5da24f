"""One request at the edge: shed, or asked of its tenant's owner, or decided here."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from weir.quota.v1 import quota_pb2

from libs.clock import Clock
from libs.deadlines import Deadline
from libs.errors import Reason, WeirError
from libs.limiter.wire import admitted_of
from libs.mux import MuxClient, Semantics
from libs.quota import REASONS, Admitted, Denied, Ledger, LimitKind, error_of
from services.ratelimit import metrics
from services.ratelimit.keeper import LedgerKeeper
from services.ratelimit.owners import Owners
from services.ratelimit.policy.descriptors import EdgeQuestion
from services.ratelimit.policy.headers import jittered, replaced
from services.ratelimit.policy.passing import may_pass
from services.ratelimit.ports import Nanoseconds
from services.ratelimit.rules import Rules

_SECOND = 1_000_000_000
_PER_MINUTE = frozenset({LimitKind.REQUESTS, LimitKind.TOKENS})
_KINDS = {kind.value: kind for kind in LimitKind}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the edge is told."""

    state: Admitted
    """What is left of each limit."""
    refusal: WeirError | None = None
    kind: LimitKind | None = None
    """The limit that refuses; None when the mesh is overloaded."""
    counted: bool = True
    """The request was counted, unless it is refused."""
    passing: int = 0
    """Further ones that need not be asked about, for `PASS_MS`."""


class Gate:
    """Decides requests in the header phase, before their bodies are read."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        rules: Rules,
        owners: Owners,
        keeper: LedgerKeeper,
        now: Nanoseconds,
        clock: Clock,
        rng: random.Random,
        forward_seconds: float,
    ) -> None:
        self._ledger = ledger
        self._rules = rules
        self._owners = owners
        self._keeper = keeper
        self._now = now
        self._clock = clock
        self._rng = rng
        self._forward_seconds = forward_seconds

    async def decide(self, question: EdgeQuestion, traceparent: str) -> Verdict:
        """The verdict; a request that passes was counted, one that is refused was not."""
        shed = self._rules.shed(question.tenant, question.pool, self._now())
        if shed.share and self._rng.random() < shed.share:
            metrics.EDGE_SHED.inc()
            retry = jittered(shed.retry_after_ns, self._rng.random()) or 0
            message = "The mesh is overloaded and could not serve this request in time."
            refusal = WeirError(
                Reason.REJECTED_OVERLOAD, message, limit="pool_level", retry_after=max(1, retry) / _SECOND
            )
            return Verdict(self._ledger.report(question.tenant, "*", self._now()), refusal)
        owner = self._owners.link(question.tenant)
        verdict = None if owner is None else await self._forward(owner, question, traceparent)
        if verdict is None:
            verdict = self._decide(question)
        if verdict.kind in _PER_MINUTE and self._rules.serves_over_quota(question.tenant):
            # Whether it is served at all is for the gateway and admission to say; nothing was taken for it.
            verdict = Verdict(verdict.state, counted=False)
        if verdict.kind is None:
            metrics.EDGE_OK.inc()
            if verdict.counted and not shed.share:
                verdict = replace(verdict, passing=may_pass(verdict.state))
        else:
            metrics.EDGE_DENIED[verdict.kind].inc()
        return verdict

    def _decide(self, question: EdgeQuestion) -> Verdict:
        now = self._now()
        outcome = self._ledger.admit_edge(
            question.tenant,
            requests=question.requests,
            tokens=question.tokens,
            spend=self._rules.least_spend,
            now=now,
        )
        if isinstance(outcome, Admitted):
            self._keeper.decided()
            return Verdict(outcome)
        return self._refused(outcome, replaced(self._ledger.report(question.tenant, "*", now), outcome))

    def _refused(self, denied: Denied, state: Admitted) -> Verdict:
        retry = jittered(denied.retry_after_ns, self._rng.random())
        return Verdict(state, error_of(denied, retry), denied.kind)

    async def _forward(self, owner: MuxClient, question: EdgeQuestion, traceparent: str) -> Verdict | None:
        """The owner's verdict; None when it does not come in time. The request may then count at both."""
        ask = quota_pb2.CheckEdge(tenant=question.tenant, requests=question.requests, tokens=question.tokens)
        deadline = Deadline.after(self._forward_seconds, self._clock)
        try:
            reply = await owner.call(
                quota_pb2.QuotaCall(check_edge=ask),
                deadline=deadline,
                semantics=Semantics.ONCE,
                traceparent=traceparent,
            )
        except WeirError:
            metrics.FORWARD_FAILED.inc()
            return None
        metrics.FORWARDED.inc()
        if reply.HasField("edge_passed"):
            return Verdict(admitted_of(reply.edge_passed))
        refusal = WeirError.from_rejection(reply.rejected)
        kind = _KINDS.get(refusal.limit)
        if kind is None or REASONS[kind] is not refusal.reason:
            return None
        return Verdict(self._ledger.report(question.tenant, "*", self._now()), refusal, kind)
