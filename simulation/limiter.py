"""The limiter's ledger under virtual time: libs.quota, called as the rate-limit service calls it.

One ledger stands for all replicas of the limiter: in the mesh each tenant has one owner too.
"""

from __future__ import annotations

from collections.abc import Mapping

from libs.quota import ALL_MODELS, REASONS, Admitted, Ask, Denied, Ledger, LimitSpec
from simulation.workload import Arrival

_LEASE = 30.0  # seconds beyond the request's deadline
_LONGEST = 3600.0


class Limiter:
    """Reserve and settle. Times in seconds."""

    def __init__(self, limits: Mapping[str, LimitSpec], *, model: str, over_quota: frozenset[str]) -> None:
        """`limits` by tenant; tenants in `over_quota` are served beyond them when nobody else waits."""
        self._ledger = Ledger(settled_retention_ns=_nanoseconds(_LONGEST))
        self._ledger.apply_limits({(tenant, ALL_MODELS): spec for tenant, spec in limits.items()}, 0)
        self._limited = frozenset(limits)
        self._model = model
        self._over_quota = over_quota

    def reserve(self, arrival: Arrival, now: float) -> tuple[bool, str, float | None]:
        """Whether the request is over its quota, or the reason of its refusal (empty: none) and when to come back."""
        if arrival.tenant not in self._limited:
            return False, "", None
        ask = Ask(
            arrival.tenant,
            self._model,
            arrival.request_id,
            arrival.prompt_tokens + arrival.max_tokens,
            context=arrival.prompt_tokens + arrival.max_tokens,
            output=arrival.max_tokens,
            over_quota_allowed=arrival.tenant in self._over_quota,
        )
        answer = self._ledger.reserve(ask, lease_ns=_nanoseconds(arrival.timeout + _LEASE), now=_nanoseconds(now))
        if isinstance(answer, Denied):
            retry = None if answer.retry_after_ns is None else answer.retry_after_ns / 1e9
            return False, REASONS[answer.kind].name, retry
        return isinstance(answer, Admitted) and answer.over_quota, "", None

    def settle(self, arrival: Arrival, tokens: int, now: float) -> None:
        """The request has ended after so many tokens, the prompt's among them."""
        if arrival.tenant in self._limited:
            self._ledger.settle(arrival.tenant, self._model, arrival.request_id, tokens, _nanoseconds(now))


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
