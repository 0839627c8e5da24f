"""What one limits entry covers, and a reservation in it: the parts that a ledger is made of."""

from collections.abc import Iterable

from libs.gcra.bucket import NEVER, Bucket, BucketState, LimitReport
from libs.gcra.types import Admitted, Denied, LeaseState, LimitKind, LimitSpec, ScopeState

UNLIMITED = LimitReport(0, 0, 0)
"""The report where no limit is set."""


class Scope:
    """The buckets and the slot count of one limits entry; `None` where it sets no limit."""

    __slots__ = ("concurrency", "in_use", "model", "requests", "tenant", "tokens")

    def __init__(self, tenant: str, model: str) -> None:
        self.tenant = tenant
        self.model = model
        self.requests: Bucket | None = None
        self.tokens: Bucket | None = None
        self.concurrency = 0
        self.in_use = 0

    @classmethod
    def restored(cls, state: ScopeState, elapsed_ns: int, now: int) -> "Scope":
        """A scope that goes on from `state`, written `elapsed_ns` ago."""
        scope = cls(state.tenant, state.model)
        scope.requests = _restored(state.requests, elapsed_ns, now)
        scope.tokens = _restored(state.tokens, elapsed_ns, now)
        scope.concurrency = state.concurrency
        return scope

    def apply(self, spec: LimitSpec, burst_seconds: int, now: int) -> None:
        """Makes `spec` its limits; what was consumed stays consumed."""
        self.requests = _rescaled(self.requests, spec.requests_per_minute, burst_seconds, now)
        self.tokens = _rescaled(self.tokens, spec.tokens_per_minute, burst_seconds, now)
        self.concurrency = spec.concurrency

    def idle(self, now: int) -> bool:
        """Nothing would be forgotten by dropping it."""
        full = all(bucket is None or bucket.tat <= now for bucket in (self.requests, self.tokens))
        return full and self.in_use == 0

    def state(self, now: int) -> ScopeState:
        """The scope at rest."""
        return ScopeState(
            self.tenant,
            self.model,
            self.requests.state(now) if self.requests else None,
            self.tokens.state(now) if self.tokens else None,
            self.concurrency,
        )

    def check(self, requests: int, tokens: int, slots: int, now: int, slot_retry_ns: int = 0) -> Denied | None:
        """The denial that takes longest to lift; None when everything fits. Takes nothing.

        Zero requests or slots are not asked about.
        """
        denied: Denied | None = None
        bucket = self.requests
        if requests and bucket is not None and (wait := bucket.wait(requests, now)):
            denied = self._denied(LimitKind.REQUESTS, bucket.report(now), requests, wait)
        bucket = self.tokens
        if bucket is not None and (wait := bucket.wait(tokens, now)):
            denied = worse(denied, self._denied(LimitKind.TOKENS, bucket.report(now), tokens, wait))
        if slots and self.concurrency and self.in_use >= self.concurrency:
            report = LimitReport(self.concurrency, 0, 0)
            denied = worse(denied, self._denied(LimitKind.CONCURRENCY, report, slots, slot_retry_ns))
        return denied

    def _denied(self, kind: LimitKind, report: LimitReport, cost: int, wait: int) -> Denied:
        return Denied(kind, self.model, report, cost, None if wait == NEVER else wait)


class Lease:
    """A live reservation. It keeps the buckets it charged, so a limit that appears later is never refunded."""

    __slots__ = ("charged", "expires", "key", "model", "open", "scopes", "tokens")

    def __init__(
        self, key: tuple[str, str], model: str, tokens: int, expires: int, scopes: list[Scope], charged: list[Bucket]
    ) -> None:
        self.key = key
        self.model = model
        self.tokens = tokens
        self.expires = expires
        self.scopes = scopes
        self.charged = charged
        self.open = True

    def __lt__(self, other: "Lease") -> bool:
        return self.expires < other.expires

    def state(self, now: int) -> LeaseState:
        """The lease at rest."""
        tenant, request_id = self.key
        return LeaseState(tenant, request_id, self.model, self.tokens, self.expires - now)


def worse(one: Denied | None, other: Denied | None) -> Denied | None:
    """The denial that takes longer to lift; the first on a tie."""
    if one is None or other is None:
        return one or other
    return other if other.outlasts(one) else one


def tightest(scopes: Iterable[Scope], now: int) -> Admitted:
    """Of each kind of limit, the report with the least left."""
    requests = tokens = slots = UNLIMITED
    for scope in scopes:
        bucket = scope.requests
        if bucket is not None:
            report = bucket.report(now)
            if not requests.limit or report.remaining < requests.remaining:
                requests = report
        bucket = scope.tokens
        if bucket is not None:
            report = bucket.report(now)
            if not tokens.limit or report.remaining < tokens.remaining:
                tokens = report
        if scope.concurrency:
            left = max(0, scope.concurrency - scope.in_use)
            if not slots.limit or left < slots.remaining:
                slots = LimitReport(scope.concurrency, left, 0)
    return Admitted(requests, tokens, slots)


def _rescaled(bucket: Bucket | None, limit: int, burst_seconds: int, now: int) -> Bucket | None:
    if limit == 0:
        return None
    burst = max(1, limit * burst_seconds // 60)
    if bucket is None:
        return Bucket(limit, burst)
    bucket.rescale(limit, burst, now)
    return bucket


def _restored(state: BucketState | None, elapsed_ns: int, now: int) -> Bucket | None:
    if state is None:
        return None
    bucket = Bucket(state.limit, state.burst)
    bucket.restore(state, elapsed_ns, now)
    return bucket
