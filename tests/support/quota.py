"""What tests of the ledgers share."""

from __future__ import annotations

from collections.abc import Iterator

from libs.quota import Cursor, Joining, Ledger, Piece, Replica
from libs.quota.lease import Lease


def pieces(source: Replica, now: int) -> Iterator[Piece]:
    """All that it knows, with nothing decided in between."""
    cursor: Cursor | None = Cursor()
    while cursor is not None:
        piece = source.piece(cursor, now)
        yield piece
        cursor = piece.next


def join_all(target: Replica, told: Iterator[Piece] | list[Piece], now: int) -> None:
    """Takes all of it over."""
    joining: Joining | None = None
    for piece in told:
        joining = target.join(piece, now, joining)


def take_over(target: Replica, source: Replica, now: int) -> None:
    """Joins all that another knows."""
    join_all(target, pieces(source, now), now)


def leases_of(ledger: Ledger) -> dict[str, Lease]:
    """Its live leases by request id; for tests with one tenant."""
    buckets = ledger.books.scopes.buckets
    return {key[1]: lease for bucket in buckets.values() for key, lease in bucket.leases.items()}
