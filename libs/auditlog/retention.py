"""How long which kind of record is kept. Pure.

Keys go by class and month: when a month's last day is older than its class's days, its keys are destroyed and a
tombstone says so. Records go from the log's beginning on, by whole segments, once every record of them is older than
its class's days: an older record that is kept keeps those behind it, whose payloads nobody can open any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

from libs.auditlog.frame import CLEAR, EVENTS, Header
from libs.sealing.scope import month_of

_DAY = 86_400.0
CLASSES = frozenset(EVENTS) - CLEAR
_AS = {"tombstone": "admin", "gap": "admin"}
"""What is kept as long as something else. A tombstone is about records before it, and the vault has it, too."""
_NOTHING = "marks"
"""Holds no data of its own; each segment begins with the newest."""


def check_days(days: Mapping[str, int]) -> str:
    """What is wrong with a table of days by class; "" if nothing is."""
    unknown = sorted(days.keys() - CLASSES)
    if unknown:
        return f"retention_days: no class {unknown[0]!r}; there are {', '.join(sorted(CLASSES))}"
    short = sorted(name for name, kept in days.items() if kept < 1)
    return f"retention_days: {short[0]} must be kept at least a day" if short else ""


def now_by(own: float, told: str) -> float:
    """The moment by which something is too old: this process's clock, but no later than the end of the newest month
    that a writer's record was of. So a clock that jumps ahead alone destroys nothing.

    :param own: Unix seconds.
    :param told: the month, "2026-11"; empty: none was, and nothing is too old.
    """
    if not told:
        return 0.0
    first = datetime.strptime(told, "%Y-%m").replace(tzinfo=UTC)
    return min(own, (first + timedelta(days=32)).replace(day=1).timestamp())


def first_kept_month(days: int, now: float) -> str:
    """Every month before this one is over for at least so many days."""
    return month_of(max(0.0, now - days * _DAY))


def expired(headers: Iterable[Header], days: Mapping[str, int], now: float) -> bool:
    """Whether all records are older than their classes' days; one of a class that is kept for ever is not, nor one
    whose time cannot be read."""
    oldest = {name: datetime.fromtimestamp(max(0.0, now - kept * _DAY), UTC) for name, kept in days.items()}
    for header in headers:
        kept_as = _AS.get(header.data_class, header.data_class)
        if kept_as == _NOTHING:
            continue
        limit = oldest.get(kept_as)
        try:
            if limit is None or datetime.fromisoformat(header.time) >= limit:
                return False
        except (ValueError, TypeError):
            return False
    return True
