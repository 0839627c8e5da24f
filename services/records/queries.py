"""What is asked, as statements: a page of requests, and sums. Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import sqlalchemy as sa

from libs.errors import Reason, WeirError
from libs.usage import Counts
from services.records.schema import COUNTS, requests, usage

LOOK = 10_000
"""Rows that one page looks at, at most: filters that fit few of them end a page early, and not a scan."""
MAX_PAGE = 1_000
MAX_SUMS = 100_000
"""Rows of an answer."""
DIMENSIONS: Mapping[str, sa.ColumnElement[Any]] = {
    "hour": usage.c.hour,
    "day": sa.cast(usage.c.hour - usage.c.hour % 24, sa.BigInteger),
    "tenant": usage.c.tenant,
    "key": usage.c.key,
    "user": usage.c.user,
    "model": usage.c.model,
    "version": usage.c.version,
    "class": usage.c.queue_class,
    "operation": usage.c.operation,
}
"""What sums are known by; an hour, and a day's first one, are counted since 1970."""


_LEADS = ("id", "user", "key", "tenant", "version", "model")
"""Columns that have an index; the first of these that is asked for leads."""


class Page(NamedTuple):
    """Of requests, as `schema.requests` has them."""

    rows: list[Mapping[str, Any]]
    token: str
    """Of the next; empty: there is none."""
    sequence: int
    """The last record that was looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which requests, a page of them."""

    equal: Mapping[str, str] = field(default_factory=dict)
    """By column."""
    since: int = 0
    """Milliseconds, as `until`; 0: any."""
    until: int = 0
    size: int
    behind: tuple[int, int] | None = None
    """(time, sequence) of the last of the page before."""
    after: int | None = None
    """To follow: the last record that the caller has."""

    def statement(self) -> sa.Select[Any]:
        """The page's rows, and one more where there is one."""
        looked, rest = self._looked(requests)
        if not rest:
            return looked.limit(self.size + 1)
        among = looked.limit(LOOK).subquery()
        _, rest = self._looked(among)
        return sa.select(among).where(*rest).order_by(*self._order(among)).limit(self.size + 1)

    def edge(self) -> sa.Select[Any] | None:
        """The (time, sequence) up to which `statement` looks; no row where it looks at everything, None where it finds
        whatever it looks at."""
        looked, rest = self._looked(requests)
        column = requests.c
        return looked.with_only_columns(column.time, column.sequence).offset(LOOK - 1).limit(1) if rest else None

    def page(self, found: Sequence[Mapping[str, Any]], edge: tuple[int, int] | None, upto: int) -> Page:
        """The page, of the rows of `statement`, the one of `edge`, and the last record that there is."""
        rows = list(found[: self.size])
        if len(found) > self.size:
            edge = rows[-1]["time"], rows[-1]["sequence"]
        if self.after is not None:
            return Page(rows, "", edge[1] if edge else max(upto, self.after))
        return Page(rows, _token(*edge) if edge else "", upto)

    def _order(self, table: sa.FromClause) -> list[Any]:
        column = table.c
        return [column.sequence] if self.after is not None else [column.time.desc(), column.sequence.desc()]

    def _looked(self, table: sa.FromClause) -> tuple[sa.Select[Any], list[Any]]:
        """What an index finds, in order; and what has to hold of a row beside that."""
        column = table.c
        lead = next((name for name in _LEADS if name in self.equal), "") if self.after is None else ""
        narrow: list[Any] = [column[lead] == self.equal[lead]] if lead else []
        rest = [column[name] == value for name, value in self.equal.items() if name != lead]
        times = [column.time >= self.since] * bool(self.since) + [column.time < self.until] * bool(self.until)
        if self.after is not None:
            narrow, rest = [column.sequence > self.after], [*rest, *times]
        else:
            narrow += times
        if self.behind:
            time, sequence = self.behind
            same = sa.and_(column.time == time, column.sequence < sequence)
            narrow += [column.time <= time, sa.or_(column.time < time, same)]
        return sa.select(table).where(*narrow).order_by(*self._order(table)), rest


class Sums(NamedTuple):
    """An answer."""

    rows: list[tuple[tuple[Any, ...], Counts]]
    sequence: int
    """The last record that is in it."""
    since: int
    """The first hour of which everything is in the sums; 0: of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Which sums."""

    by: Sequence[str] = ()
    tenant: str = ""
    since: int = 0
    """The first hour; 0: any."""
    until: int = 0
    """The first one that is not wanted any more; 0: none."""
    models: Sequence[str] = ()
    """Or versions."""
    keys: Sequence[str] = ()
    operations: Sequence[str] = ()

    def statement(self) -> sa.Select[Any]:
        """A row per combination of values: those, and the counts."""
        column = usage.c
        where: list[Any] = []
        if self.tenant:
            where.append(column.tenant == self.tenant)
        if self.since:
            where.append(column.hour >= self.since)
        if self.until:
            where.append(column.hour < self.until)
        if self.models:
            where.append(sa.or_(column.model.in_(self.models), column.version.in_(self.models)))
        for name, values in (("key", self.keys), ("operation", self.operations)):
            if values:
                where.append(column[name].in_(values))
        by = [DIMENSIONS[name].label(f"by_{name}") for name in self.by]
        counts = [sa.func.coalesce(sa.func.sum(column[name]), 0).label(f"n_{name}") for name in COUNTS]
        some = sa.or_(*(sa.func.sum(column[name]) != 0 for name in COUNTS))
        # By their places: an expression with a bound value is another one each time.
        places: list[Any] = [sa.literal_column(str(place + 1)) for place in range(len(by))]
        return sa.select(*by, *counts).where(*where).group_by(*places).having(some).limit(MAX_SUMS + 1)


def _token(time: int, sequence: int) -> str:
    return base64.urlsafe_b64encode(f"{time}.{sequence}".encode()).decode()


def behind(token: str) -> tuple[int, int] | None:
    """Where a page token says that the page before ended; None of an empty one.

    :raises WeirError: INVALID_REQUEST, it is no token.
    """
    if not token:
        return None
    try:
        time, sequence = base64.urlsafe_b64decode(token.encode()).decode().split(".")
        return int(time), int(sequence)
    except (ValueError, binascii.Error) as error:
        raise WeirError(Reason.INVALID_REQUEST, "it is the next_page_token of no page", limit="page_token") from error
