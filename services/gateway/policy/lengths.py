"""How long a tenant's answers by a version have lately been: what is reserved where nobody says how long one may be."""

from __future__ import annotations

from collections import OrderedDict, deque

LEAST = 64
"""Tokens of one answer that are always reserved for: less would be asked for anew too soon."""
UNKNOWN = 512
"""Tokens of one answer of which nothing is known."""
_QUANTILE = 0.95
_KNOWN, _KEPT = 8, 64
"""Answers from which on something is known, and answers that are remembered."""
_MOST = 10_000
"""Tenants and versions; the ones that were not heard of for longest are forgotten."""


class AnswerLengths:
    """By tenant and version. Pure; a guess that is too short costs a question to the limiter, never an overshoot."""

    def __init__(self) -> None:
        self._lengths: OrderedDict[tuple[str, str], deque[int]] = OrderedDict()

    def learn(self, tenant: str, version: str, tokens: int, *, cut: bool) -> None:
        """One answer had so many tokens. One that was cut would have been longer: it counts only where it is longer
        than what is expected."""
        if cut and tokens <= self.expected(tenant, version):
            return
        key = (tenant, version)
        known = self._lengths.pop(key, None) or deque(maxlen=_KEPT)
        known.append(tokens)
        self._lengths[key] = known
        if len(self._lengths) > _MOST:
            self._lengths.popitem(last=False)

    def expected(self, tenant: str, version: str) -> int:
        """Tokens that 19 of 20 answers stay within, at least `LEAST`."""
        known = self._lengths.get((tenant, version))
        if known is None or len(known) < _KNOWN:
            return max(UNKNOWN, *known) if known else UNKNOWN
        return max(LEAST, sorted(known)[int(_QUANTILE * len(known))])
