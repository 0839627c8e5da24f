"""What Envoy's descriptors ask for.

[("tenant", T)]                      one request of tenant T
[("tenant", T), ("kind", "tokens")]  an estimate of tokens, in the descriptor's (or request's) hits addend
[("tenant", T), ("pool", P)]         the pool that the request will use, where somebody knows it
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from libs.quota import Admitted, LimitKind, LimitReport

TENANT = "tenant"
UNITS = ("unit", "kind")
"""Names of the second entry, which says what is counted."""
TOKENS = "tokens"
POOL = "pool"


class Entry(Protocol):
    """A key and a value; Envoy's own message fits."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class EdgeQuestion:
    """One request at the edge."""

    tenant: str
    requests: int
    """To take."""
    tokens: int
    """To look for."""
    kinds: tuple[LimitKind | None, ...]
    """What each descriptor asks about, in order; None for one that asks about no limit."""
    pool: str = ""
    """Where it will be served, when that is known."""


def edge_question(descriptors: Iterable[tuple[Sequence[Entry], int]]) -> EdgeQuestion:
    """The question that (entries, hits) pairs ask; hits is 0 where none are given.

    :raises ValueError: no tenant, or two different ones.
    """
    tenant = pool = ""
    requests = tokens = 0
    kinds: list[LimitKind | None] = []
    for entries, hits in descriptors:
        if not entries or entries[0].key != TENANT or not entries[0].value:
            kinds.append(None)
            continue
        if tenant and tenant != entries[0].value:
            raise ValueError("descriptors of one request name two tenants")
        tenant = entries[0].value
        if len(entries) == 1:
            requests = 1
            kinds.append(LimitKind.REQUESTS)
        elif len(entries) == 2 and entries[1].key in UNITS and entries[1].value == TOKENS:
            tokens = max(tokens, hits or 1)
            kinds.append(LimitKind.TOKENS)
        else:
            kinds.append(None)
            if len(entries) == 2 and entries[1].key == POOL:
                pool = entries[1].value
    if not tenant:
        raise ValueError("no descriptor names a tenant")
    return EdgeQuestion(tenant, requests, tokens, tuple(kinds), pool)


def report_of(kind: LimitKind, outcome: Admitted) -> LimitReport:
    """The report of one kind."""
    return outcome.tokens if kind is LimitKind.TOKENS else outcome.requests
