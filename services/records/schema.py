"""The tables, as queries see them; `migrations` makes them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, Integer, LargeBinary, MetaData, String, Table

from libs.usage import Counts, Key

META = MetaData()
KEY, COUNTS = Key._fields, Counts.__struct_fields__


def _number(name: str, **more: Any) -> Column[int]:
    return Column(name, BigInteger, nullable=False, **more)


def _word(name: str, **more: Any) -> Column[str]:
    return Column(name, String, nullable=False, **more)


position = Table(
    "position",
    META,
    Column("one", Integer, primary_key=True),
    _number("sequence"),
    _word("hash"),
    _number("base"),
    _number("since"),
)
"""One row: the last projected record, its hash; the records before the first that ever was, and the first hour of which
all is in the sums, where those are not none."""

requests = Table(
    "requests",
    META,
    Column("sequence", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False),
    _word("id"),
    _number("time"),
    *map(_word, ("tenant", "key", "user", "model", "version", "queue_class", "operation", "outcome")),
    *map(_number, ("prompt", "cached", "completion", "microusd", "rows", "at_most", "at_most_rows")),
)
"""One row per record of a request; `time` in milliseconds since 1970."""

usage = Table(
    "usage",
    META,
    *(_number(name, primary_key=True) if name == "hour" else _word(name, primary_key=True) for name in KEY),
    _number("segment", primary_key=True),
    *map(_number, COUNTS),
)
"""Sums by what `Key` has, and by the segment of the log that the records lie in: a part may be negative."""

unsettled = Table(
    "unsettled",
    META,
    _word("id", primary_key=True),
    _number("sequence"),
    *(_number(name) if name == "hour" else _word(name) for name in KEY),
    _number("tokens"),
    _number("rows"),
)
"""Requests of which nobody knows what they used."""

leases = Table("leases", META, _word("id", primary_key=True), _number("sequence"), _number("rows"))
"""Rows that calls drew from a lease."""

users = Table("users", META, _word("name", primary_key=True), _number("sequence"))
"""The newest record that a key sealed, in which the audit service finds whose it is."""

answers = Table(
    "answers",
    META,
    _word("tenant", primary_key=True),
    Column("key", LargeBinary, primary_key=True),
    Column("body", LargeBinary, nullable=False),
    _word("holder"),
    *map(_number, ("since", "ends", "held", "size")),
    Column("answer", LargeBinary, nullable=True),
)
"""What idempotency keys stand for; of no log, and in no backup. `key` is a digest, `body` the request's; milliseconds
since 1970: `since` it stands for that, until it `ends`; its claim is `held` until then. No `answer`: it runs. `size` in
bytes."""

__all__ = ["COUNTS", "KEY", "META", "answers", "leases", "position", "requests", "unsettled", "usage", "users"]
