"""Security events: callers that were refused, keys in new places. Counted, so that a flood of them costs nothing.

The tally is pure. One of a kind in an interval is one row, however often it comes; rows beyond a bound are counted
together with the others of their kind and reason. So a flood of a million addresses makes at most `max_records` records
and one more per reason in each interval, and its size can still be read in them.
"""

from __future__ import annotations

import hashlib
import ipaddress
from dataclasses import dataclass, replace
from enum import StrEnum

from google.protobuf import timestamp_pb2
from weir.audit.v1 import audit_pb2


class Kind(StrEnum):
    """What happened: a closed set."""

    UNAUTHENTICATED = "unauthenticated"
    """401: no credential, or none that is good."""
    FORBIDDEN = "forbidden"
    """403: a good credential that may not do this."""
    RATE_LIMITED = "rate_limited"
    """429 at the edge."""
    ADMIN_REFUSED = "admin_refused"
    """An administrative call that was refused."""
    KEY_NEW_SOURCE = "key_new_source"
    """A good key was used from a network that it was not used from before."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What is counted together. Nothing in it is a caller's own text: names are of things that the registry knows."""

    kind: Kind
    reason: str
    network: str = ""
    key_id: str = ""
    tenant: str = ""
    actor: str = ""
    action: str = ""


@dataclass(slots=True)
class Row:
    """How often something was seen. Times in Unix seconds."""

    sight: Sight
    count: int
    first: float
    last: float
    summed: bool = False
    """Of many that had no room for rows of their own."""


class SecurityTally:
    """Counts what is seen between two calls of `take`."""

    def __init__(self, *, max_rows: int = 1024, max_records: int = 64) -> None:
        self._max_rows = max_rows
        self._max_records = max_records
        self._rows: dict[Sight, Row] = {}
        self._summed: dict[Sight, Row] = {}

    def note(self, sight: Sight, now: float, times: int = 1) -> None:
        """So many more, in constant time and bounded memory."""
        row = self._rows.get(sight)
        if row is not None:
            row.count += times
            row.last = now
        elif len(self._rows) < self._max_rows:
            self._rows[sight] = Row(sight, times, now, now)
        else:
            self._sum(Row(sight, times, now, now))

    def take(self) -> list[Row]:
        """What was counted, the most frequent first, and the rest of each kind and reason in one; begins anew."""
        rows = sorted(self._rows.values(), key=lambda row: -row.count)
        for row in rows[self._max_records :]:
            self._sum(row)
        taken = [*rows[: self._max_records], *self._summed.values()]
        self._rows, self._summed = {}, {}
        return taken

    def _sum(self, row: Row) -> None:
        sight = Sight(row.sight.kind, row.sight.reason)
        known = self._summed.get(sight)
        if known is None:
            self._summed[sight] = replace(row, sight=sight, summed=True)
            return
        known.count += row.count
        known.first, known.last = min(known.first, row.first), max(known.last, row.last)


def record_of(row: Row, *, record_id: str, source: str) -> audit_pb2.Record:
    """The record of what was counted."""
    sight = row.sight
    event = audit_pb2.SecurityEvent(
        kind=sight.kind.value,
        reason=sight.reason,
        network=sight.network,
        key_id=sight.key_id,
        tenant=sight.tenant,
        actor=sight.actor,
        action=sight.action,
        count=row.count,
        since=to_timestamp(row.first),
        summed=row.summed,
    )
    return audit_pb2.Record(id=record_id, time=to_timestamp(row.last), source=source, security=event)


def network_of(address: str, key: bytes) -> str:
    """Where an address is, as 16 hex digits: its /24 (IPv4) or /56 (IPv6), hashed with `key`, for an address is
    personal data and a hash without a key can be tried for all of them. "" for what is no address."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return ""
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    kept = found.packed[: 3 if found.version == 4 else 7]
    return hashlib.blake2b(kept, key=key[:64], digest_size=8, person=b"weir network").hexdigest()


def to_timestamp(seconds: float) -> timestamp_pb2.Timestamp:
    """Unix seconds, as a message."""
    return timestamp_pb2.Timestamp(seconds=int(seconds), nanos=int(seconds % 1 * 1e9))
