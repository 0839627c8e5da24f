"""The store: SQLite or PostgreSQL, the same statements. Everything here blocks; `pools.py` calls it from threads."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from sqlalchemy.dialects import postgresql, sqlite

from libs.auditlog.chain import ZERO, Entry, decode_entry, follow
from libs.auditlog.frame import header_of
from libs.usage import Counts, Fold, Key, Unsettled, Used, read
from libs.usage.totals import milliseconds_of
from services.records.answers import Answers
from services.records.queries import Page, Question, Sums, Wanted
from services.records.schema import COUNTS, KEY, leases, position, requests, unsettled, usage, users

_MIGRATING = 0x77656972
"""The lock of PostgreSQL under which one process at a time changes the schema."""


_ALEMBIC = threading.Lock()
"""What it works on it keeps in globals."""
_WRITES = "weir_writes"
"""An option of a connection: what it reads is the newest, because nobody else writes meanwhile (SQLite)."""


class StoreAwayError(Exception):
    """The database cannot be used now."""


class ForkError(Exception):
    """What is to be projected does not continue what was; the message says how."""


class TakenError(Exception):
    """Another process projected the same records first."""


class Position(NamedTuple):
    """How far the log is projected."""

    sequence: int = 0
    """The last record, from 1."""
    hash: str = ZERO.hex()
    """Its hash, 64 hex digits."""
    base: int = 0
    """Records that were truncated before this store ever had them."""
    since: int = 0
    """Then: the first hour of which all is in the sums."""


class Store:
    """The tables. Any number of threads and processes may ask; of several that project, one is first, each time."""

    def __init__(self, url: str, *, statement_seconds: float) -> None:
        """:param url: as SQLAlchemy has it, "sqlite:////path" or "postgresql+psycopg://…".
        :param statement_seconds: after which PostgreSQL gives a statement up.
        :raises ValueError: it is neither.
        """
        try:
            parsed = sa.make_url(url)
        except sa.exc.ArgumentError as error:
            raise ValueError("database: it is no URL") from error
        self._sqlite = parsed.get_backend_name() == "sqlite"
        if self._sqlite:
            self._engine = sa.create_engine(parsed, connect_args={"timeout": 5.0})
            sa.event.listen(self._engine, "connect", _configure)
            sa.event.listen(self._engine, "begin", _begin)
            self._insert: Any = sqlite.insert
        elif parsed.drivername == "postgresql+psycopg":
            options = f"-c statement_timeout={int(statement_seconds * 1000)} -c timezone=UTC"
            self._engine = sa.create_engine(
                parsed, pool_pre_ping=True, pool_timeout=2.0, connect_args={"connect_timeout": 3, "options": options}
            )
            self._insert = postgresql.insert
        else:
            raise ValueError("database: sqlite:////PATH or postgresql+psycopg://USER@HOST/NAME")
        # SQLite's transactions see one moment anyway.
        level = {} if self._sqlite else {"isolation_level": "REPEATABLE READ"}
        self._snapshots = self._engine.execution_options(**level)

    def open(self) -> Position:
        """Brings the schema up to date.

        :raises StoreAwayError: the database cannot be used.
        """
        config = Config()
        config.set_main_option("script_location", "services.records:migrations")
        with self._begin() as connection:
            if not self._sqlite:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATING)))
            config.attributes["connection"] = connection
            with _ALEMBIC:
                command.upgrade(config, "head")
        return self.position()

    def close(self) -> None:
        """Closes what it holds."""
        self._engine.dispose()

    def position(self) -> Position:
        """How far the log is projected.

        :raises StoreAwayError: see `open`.
        """
        with self._begin(reading=True) as connection:
            return _position(connection)

    def project(self, at: Position, lines: Sequence[bytes], *, segment: int, base: int) -> Position:
        """Puts what follows in, whole or not at all, and says where that leaves it.

        :param lines: the log's, of one segment, whose first record is `segment`.
        :param base: how many records the log has before its first.
        :raises ForkError: they do not follow.
        :raises LineError: a line does not hold.
        :raises TakenError: the store is elsewhere by now.
        :raises StoreAwayError: see `open`.
        """
        entries = list(follow(lines, **_from(at, lines, base)))
        found = [(entry.sequence, used) for entry in entries if (used := read(entry.record)) is not None]
        there = Position(entries[-1].sequence, entries[-1].hash.hex(), at.base, at.since)
        if at.sequence == 0 and base:  # nothing is known of what was truncated
            there = there._replace(base=base, since=_first_whole_hour(entries))
        with self._begin() as connection:
            # First, so that another process waits here, and then finds that it is too late.
            moved = connection.execute(
                position.update()
                .where(position.c.sequence == at.sequence, position.c.hash == at.hash)
                .values(there._asdict())
            )
            if moved.rowcount != 1:
                raise TakenError
            self._put(connection, found, segment)
        return there

    def reset(self, base: int, before: str) -> Position:
        """Drops what lies in the log's records behind `base`, whose last one's hash is `before`.

        :raises StoreAwayError: see `open`.
        """
        with self._begin() as connection:
            was = _position(connection)
            there = Position(base, before, was.base, was.since)
            if not base:
                there = Position()
            connection.execute(position.update().values(there._asdict()))
            for table in (requests, unsettled, leases, users):
                connection.execute(table.delete().where(table.c.sequence > base))
            connection.execute(usage.delete().where(usage.c.segment > base))
        return there

    def page(self, wanted: Wanted) -> Page:
        """A page of requests.

        :raises StoreAwayError: see `open`.
        """
        with self._begin(reading=True) as connection:
            upto = _position(connection).sequence
            found = [row._asdict() for row in connection.execute(wanted.statement())]
            edge = None
            if len(found) <= wanted.size and (statement := wanted.edge()) is not None:
                edge = connection.execute(statement).one_or_none()
        return wanted.page(found, (edge[0], edge[1]) if edge else None, upto)

    def sums(self, question: Question) -> Sums:
        """Sums, by the values of what was asked for.

        :raises StoreAwayError: see `open`.
        """
        with self._begin(reading=True) as connection:
            at = _position(connection)
            rows = list(connection.execute(question.statement()))
        names = len(question.by)
        return Sums(
            [(tuple(row[:names]), Counts(*map(int, row[names:]))) for row in rows],
            at.sequence,
            at.since if at.base else 0,
        )

    def everything(self) -> tuple[Position, dict[tuple[Key, int], Counts]]:
        """How far it is, and every sum by its key and segment.

        :raises StoreAwayError: see `open`.
        """
        with self._begin(reading=True) as connection:
            at = _position(connection)
            rows = connection.execute(sa.select(usage)).all()
        width = len(KEY)
        return at, {(Key(*row[:width]), row[width]): Counts(*row[width + 1 :]) for row in rows}

    def newest_of(self, names: Iterable[str]) -> dict[str, int]:
        """By the name of a key, a record that it sealed.

        :raises StoreAwayError: see `open`.
        """
        with self._begin(reading=True) as connection:
            statement = sa.select(users.c.name, users.c.sequence).where(users.c.name.in_(list(names)))
            return {row[0]: row[1] for row in connection.execute(statement)}

    def retain(self, *, before: int, hour: int, most: int) -> int:
        """Drops requests of before a moment (milliseconds), at most so many, and how many those were; and all sums of
        before an hour.

        :raises StoreAwayError: see `open`.
        """
        with self._begin() as connection:
            old = sa.select(requests.c.sequence).where(requests.c.time < before).order_by(requests.c.time).limit(most)
            last = connection.execute(sa.select(sa.func.max(old.subquery().c.sequence))).scalar()
            gone = connection.execute(requests.delete().where(requests.c.sequence.in_(old))).rowcount
            if last is not None:  # nobody settles what is as old as that
                connection.execute(leases.delete().where(leases.c.sequence <= last))
            if hour:
                connection.execute(usage.delete().where(usage.c.hour < hour))
        return gone

    def _put(self, connection: sa.Connection, found: Sequence[tuple[int, Used]], segment: int) -> None:
        if not found:
            return
        fold = self._fold(connection, found)
        before, drawn = dict(fold.unsettled), dict(fold.drawn)
        told: dict[str, int] = {}
        for sequence, used in found:
            fold.add(used)
            told[used.id] = told[used.event.lease] = sequence
        connection.execute(requests.insert(), [_row(sequence, used) for sequence, used in found])
        self._add(connection, fold, segment)
        self._upsert(
            connection,
            leases,
            [
                {"id": name, "sequence": told[name], "rows": rows}
                for name, rows in fold.drawn.items()
                if drawn.get(name) != rows
            ],
        )
        if gone := [name for name in before if fold.unsettled.get(name) != before[name]]:
            connection.execute(unsettled.delete().where(unsettled.c.id.in_(gone)))
        left = {name: each for name, each in fold.unsettled.items() if before.get(name) != each}
        if left:
            connection.execute(
                unsettled.insert(),
                [
                    {"id": name, "sequence": told[name], **each.key._asdict(), "tokens": each.tokens, "rows": each.rows}
                    for name, each in left.items()
                ],
            )
        sealed = {used.sealed_by: sequence for sequence, used in found if used.sealed_by}
        self._upsert(connection, users, [{"name": name, "sequence": at} for name, at in sealed.items()])

    def _fold(self, connection: sa.Connection, found: Sequence[tuple[int, Used]]) -> Fold:
        """What was known of these requests and their leases."""
        ids = {used.id for _, used in found}
        named = ids | {used.event.lease for _, used in found if used.event.lease}
        open_ = connection.execute(sa.select(unsettled).where(unsettled.c.id.in_(named)))
        said = [used.id for _, used in found if used.unknown]
        known: Iterable[str] = ()
        if said:
            ran = requests.c.outcome != "usage_unknown"
            known = connection.execute(sa.select(requests.c.id).where(requests.c.id.in_(said), ran)).scalars()
        asked = {used.event.lease for _, used in found if used.event.lease} | set(said)
        drawn = connection.execute(sa.select(leases.c.id, leases.c.rows).where(leases.c.id.in_(asked))) if asked else ()
        return Fold(
            known=known,
            unsettled=[(row[0], Unsettled(Key(*row[2 : 2 + len(KEY)]), row[-2], row[-1])) for row in open_],
            drawn=((name, rows) for name, rows in drawn),
        )

    def _add(self, connection: sa.Connection, fold: Fold, segment: int) -> None:
        rows = [
            {**key._asdict(), "segment": segment, **{name: getattr(counts, name) for name in COUNTS}}
            for key, counts in fold.sums.items()
        ]
        if not rows:
            return
        statement = self._insert(usage)
        more = {name: usage.c[name] + statement.excluded[name] for name in COUNTS}
        connection.execute(
            statement.on_conflict_do_update(index_elements=[*KEY, "segment"], set_=more),
            # In one order, so that no two processes wait for one another.
            sorted(rows, key=lambda row: [row[name] for name in KEY]),
        )

    def _upsert(self, connection: sa.Connection, table: sa.Table, rows: Sequence[dict[str, Any]]) -> None:
        if rows:
            statement = self._insert(table)
            [key], others = table.primary_key.columns, [each for each in table.columns if not each.primary_key]
            changed = {each.name: statement.excluded[each.name] for each in others}
            connection.execute(statement.on_conflict_do_update(index_elements=[key], set_=changed), rows)

    def answers(self) -> Answers:
        """What idempotency keys stand for, in the same database."""
        writing = self._engine.execution_options(**{_WRITES: True})
        return Answers(lambda: self._begin(engine=writing), self._insert)

    @contextmanager
    def _begin(self, *, reading: bool = False, engine: sa.Engine | None = None) -> Iterator[sa.Connection]:
        """A transaction; of one that reads, everything is as of one moment."""
        try:
            with (engine or (self._snapshots if reading else self._engine)).begin() as connection:
                yield connection
        except (sa.exc.DBAPIError, sa.exc.TimeoutError) as error:
            raise StoreAwayError(
                type(error.orig if isinstance(error, sa.exc.DBAPIError) else error).__name__
            ) from error


def _configure(connection: Any, _: object) -> None:
    """A reader waits for no writer; what a power cut takes is projected again."""
    connection.isolation_level = None  # it begins as it is told to, also what only reads
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "temp_store=MEMORY", "cache_size=-65536"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin(connection: sa.Connection) -> None:
    now = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if now else "BEGIN")


def _position(connection: sa.Connection) -> Position:
    columns = [position.c[name] for name in Position._fields]
    return Position(*connection.execute(sa.select(*columns)).one())


def _from(at: Position, lines: Sequence[bytes], base: int) -> dict[str, Any]:
    """Where the chain goes on."""
    if at.sequence >= base:
        return {"prev": bytes.fromhex(at.hash), "sequence": at.sequence}
    if at.sequence:
        raise ForkError(f"records {at.sequence + 1} to {base} are not in the log any more")
    return {"prev": decode_entry(lines[0]).prev, "sequence": base}


def _first_whole_hour(entries: Sequence[Entry]) -> int:
    """What was cut off had been written before the first record, and is of no later day."""
    return (milliseconds_of(header_of(entries[0].record).time) // 86_400_000 + 1) * 24


def _row(sequence: int, used: Used) -> dict[str, Any]:
    event = used.event
    return {
        "sequence": sequence,
        "id": used.id,
        "time": milliseconds_of(used.time),
        "tenant": event.tenant,
        "key": event.key_id,
        "user": used.sealed_by,
        "model": event.model,
        "version": event.model_version,
        "queue_class": event.queue_class,
        "operation": event.operation,
        "outcome": event.outcome,
        "prompt": event.prompt_tokens,
        "cached": event.cached_prompt_tokens,
        "completion": event.completion_tokens,
        "microusd": event.spend_microusd,
        "rows": event.rows,
        "at_most": event.at_most_tokens,
        "at_most_rows": event.at_most_rows,
    }
