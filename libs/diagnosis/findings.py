"""What a diagnosis says: plain values that text and JSON are made of."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Stage(enum.Enum):
    """Where it binds; a closed set."""

    SILENT = "a process that does not answer"
    EDGE_CONNECTIONS = "edge connections"
    GATEWAY_CPU = "gateway CPU"
    LIMITER = "limiter shard"
    SAFETY = "safety"
    DECISION_CPU = "a deciding service's CPU"
    COLD_MODEL = "cold model"
    HOST_CPU = "worker CPU, accelerator idle"
    PLACEMENT = "skewed placement"
    TENANT = "one tenant"
    KV = "KV memory"
    PREFILL = "prefill"
    DECODE = "decode"
    SLOW_READER = "slow reader"


class Evidence(NamedTuple):
    """A number that speaks for it."""

    what: str
    value: float
    unit: str
    limit: float | None = None
    """What it was compared with."""


class Cost(enum.IntEnum):
    """What a remedy takes, from the cheapest on."""

    NOTHING = 0
    """A setting, or a word with somebody."""
    PROCESS = 1
    """One more process on processors that the price book does not price."""
    ACCELERATOR = 2
    """One more worker."""


class Remedy(NamedTuple):
    """Something to do."""

    what: str
    cost: Cost
    usd_per_hour: float | None = None
    """At the price book; None where it has no price for it."""


class Finding(NamedTuple):
    """A stage that binds."""

    stage: Stage
    whom: Mapping[str, str]
    """By "pool", "worker", "version", "tenant", "process", "zone": what is known of whom it binds for."""
    evidence: tuple[Evidence, ...]
    since: float
    """It has held at least since then, seconds since the epoch: what was before the first scrape is not known."""
    remedies: tuple[Remedy, ...]
    workers: tuple[str, ...] = ()
    """Whose tokens another worker like them is priced by."""

    @property
    def key(self) -> tuple[object, ...]:
        """What makes it the same finding in the next window."""
        return self.stage, tuple(sorted(self.whom.items()))


def remembered(now: Iterable[Finding], earlier: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings that the window before had too have held since that one."""
    known = {each.key: each.since for each in earlier}
    return tuple(each._replace(since=min(each.since, known.get(each.key, each.since))) for each in now)
