"""What idempotency keys stand for: claims and sealed answers. Everything here blocks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import Enum
from typing import Any, NamedTuple

import sqlalchemy as sa

from services.records.schema import answers

MOST_KEYS = 1000
"""Of a tenant."""
MOST_RUNNING = 512
"""Of those, claims."""
MOST_BYTES = 64 * 2**20
"""Of a tenant's answers."""
_TRIES = 3


class State(Enum):
    """What a key stands for, once it was asked for."""

    BEGUN = "begun"
    RUNNING = "running"
    ENDED = "ended"
    CONFLICT = "conflict"


class FullError(Exception):
    """A tenant has too many claims."""


class Claim(NamedTuple):
    """Who asks for what. Times in milliseconds."""

    tenant: str
    key: bytes
    body: bytes
    holder: str
    lease: int
    life: int
    take_over: bool = False


class Answers:
    """The table. Any number of threads and processes."""

    def __init__(self, begin: Callable[[], AbstractContextManager[sa.Connection]], insert: Callable[..., Any]) -> None:
        """:param begin: a transaction that may write.
        :param insert: as the database's dialect has it, with `on_conflict_do_nothing`."""
        self._begin = begin
        self._insert = insert

    def begin(self, claim: Claim, now: int) -> tuple[State, bytes]:
        """Claims a key where it stands for nothing, and says what it stands for.

        :raises FullError: the tenant has too many claims.
        :raises StoreAwayError: the database cannot be used.
        """
        for _ in range(_TRIES):
            with self._begin() as connection:
                found = connection.execute(sa.select(answers).where(_is(claim.tenant, claim.key))).one_or_none()
                if found is not None and found.ends <= now and (found.answer is not None or found.held <= now):
                    connection.execute(answers.delete().where(_is(claim.tenant, claim.key), answers.c.ends <= now))
                    found = None
                if found is None:
                    if self._put(connection, claim, now):
                        return State.BEGUN, b""
                    continue  # another process was quicker
                if found.body != claim.body:
                    return State.CONFLICT, b""
                if found.answer is not None:
                    return State.ENDED, found.answer
                if found.held > now and found.holder != claim.holder and not claim.take_over:
                    return State.RUNNING, b""
                # The process that had it is gone, or this is that process, in another life.
                same = (answers.c.holder == found.holder, answers.c.held == found.held, answers.c.answer.is_(None))
                moved = connection.execute(
                    answers.update()
                    .where(_is(claim.tenant, claim.key), *same)
                    .values(holder=claim.holder, held=now + claim.lease)
                )
                if moved.rowcount == 1:
                    return State.BEGUN, b""
        return State.RUNNING, b""

    def keep(self, tenant: str, key: bytes, holder: str, answer: bytes) -> bool:
        """The answer, if the claim is still the holder's.

        :raises StoreAwayError: see `begin`.
        """
        with self._begin() as connection:
            kept = connection.execute(
                answers.update()
                .where(_is(tenant, key), answers.c.holder == holder, answers.c.answer.is_(None))
                .values(answer=answer, size=len(answer))
            )
            if kept.rowcount:
                self._trim(connection, tenant)
        return bool(kept.rowcount)

    def drop(self, tenant: str, key: bytes, holder: str) -> None:
        """The claim, if it is still the holder's.

        :raises StoreAwayError: see `begin`.
        """
        with self._begin() as connection:
            connection.execute(
                answers.delete().where(_is(tenant, key), answers.c.holder == holder, answers.c.answer.is_(None))
            )

    def hold(self, holder: str, until: int) -> int:
        """Every claim of a process holds until then; how many they are.

        :raises StoreAwayError: see `begin`.
        """
        with self._begin() as connection:
            held = connection.execute(
                answers.update().where(answers.c.holder == holder, answers.c.answer.is_(None)).values(held=until)
            )
        return held.rowcount

    def sweep(self, now: int, *, most_bytes: int, at_once: int = 1000) -> int:
        """Forgets what is over, and the oldest answers beyond so many bytes; how many it forgot.

        :raises StoreAwayError: see `begin`.
        """
        with self._begin() as connection:
            over = (answers.c.ends <= now, answers.c.held <= now)
            gone = connection.execute(answers.delete().where(*over)).rowcount
            size = connection.execute(sa.select(sa.func.coalesce(sa.func.sum(answers.c.size), 0))).scalar_one()
            oldest = sa.select(answers.c.tenant, answers.c.key, answers.c.size).where(answers.c.answer.is_not(None))
            for tenant, key, bytes_ in connection.execute(oldest.order_by(answers.c.since).limit(at_once)).all():
                if size <= most_bytes:
                    break
                connection.execute(answers.delete().where(_is(tenant, key)))
                size, gone = size - bytes_, gone + 1
        return gone

    def _put(self, connection: sa.Connection, claim: Claim, now: int) -> bool:
        own = answers.c.tenant == claim.tenant
        count, running = connection.execute(
            sa.select(sa.func.count(), sa.func.count().filter(answers.c.answer.is_(None))).where(own)
        ).one()
        if running >= MOST_RUNNING:
            raise FullError
        if count >= MOST_KEYS:
            ended = (
                sa.select(answers.c.key).where(own, answers.c.answer.is_not(None)).order_by(answers.c.since).limit(1)
            )
            connection.execute(answers.delete().where(own, answers.c.key.in_(ended.scalar_subquery())))
        made = connection.execute(
            self._insert(answers)
            .values(
                tenant=claim.tenant,
                key=claim.key,
                body=claim.body,
                holder=claim.holder,
                since=now,
                ends=now + claim.life,
                held=now + claim.lease,
                size=0,
            )
            .on_conflict_do_nothing()
        )
        return bool(made.rowcount == 1)

    def _trim(self, connection: sa.Connection, tenant: str) -> None:
        """The oldest answers go where a tenant has more than its bytes."""
        own = (answers.c.tenant == tenant, answers.c.answer.is_not(None))
        size = connection.execute(sa.select(sa.func.sum(answers.c.size)).where(*own)).scalar_one() or 0
        if size <= MOST_BYTES:
            return
        oldest = sa.select(answers.c.key, answers.c.size).where(*own).order_by(answers.c.since)
        for key, bytes_ in connection.execute(oldest).all():
            if size <= MOST_BYTES:
                return
            connection.execute(answers.delete().where(_is(tenant, key)))
            size -= bytes_


def _is(tenant: str, key: bytes) -> sa.ColumnElement[bool]:
    return sa.and_(answers.c.tenant == tenant, answers.c.key == key)
