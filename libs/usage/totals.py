"""What one more request changes in the sums, each request counted once. Pure: whoever keeps them says what it knew."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

import msgspec

from libs.usage.records import PREDICT, REFUSED, Used

_HOUR = 3600


class Key(NamedTuple):
    """What has a sum of its own."""

    hour: int
    """Since 1970, UTC."""
    tenant: str
    key: str
    user: str
    """A pseudonym: `Used.sealed_by`."""
    model: str
    version: str
    queue_class: str
    operation: str


class Counts(msgspec.Struct):
    """Sums. Money in micro-dollars; `cached` tokens are among the `prompt` ones."""

    requests: int = 0
    refused: int = 0
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    microusd: int = 0
    unknown: int = 0
    """Requests of which nobody knows what they used; they are in no other sum but these two."""
    at_most: int = 0
    """Tokens that those can have used at most."""
    rows: int = 0
    """Of predictions."""
    predictions: int = 0
    """Among the requests."""
    at_most_rows: int = 0
    """Rows that those of which nobody knows can have used at most."""

    def add(self, other: Counts, sign: int = 1) -> None:
        """In place."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + sign * getattr(other, name))


class Unsettled(NamedTuple):
    """A request of which nobody knows what it used: where it is counted, and what it can have used at most."""

    key: Key
    tokens: int
    rows: int


class Fold:
    """Some records, in their order, on what was known before: `sums` is by how much they change."""

    def __init__(
        self,
        *,
        known: Iterable[str] = (),
        unsettled: Iterable[tuple[str, Unsettled]] = (),
        drawn: Iterable[tuple[str, int]] = (),
    ) -> None:
        """:param known: of the records' requests, those whose usage was known.
        :param unsettled: of their requests and leases, those of which nobody knew.
        :param drawn: of their requests and leases, the rows of calls that were known.
        """
        self.sums: dict[Key, Counts] = {}
        self.unsettled = dict(unsettled)
        """As they are now."""
        self.drawn = dict(drawn)
        """Likewise."""
        self._known = set(known)

    def add(self, used: Used) -> None:
        """One more. What is known of a request goes before what was said to be unknown, whichever came first."""
        event, key = used.event, key_of(used)
        if used.unknown:
            if used.id not in self._known and used.id not in self.unsettled:
                rows = max(0, event.at_most_rows - self.drawn.get(used.id, 0))
                self.unsettled[used.id] = Unsettled(key, event.at_most_tokens, rows)
                self._row(key).add(Counts(unknown=1, at_most=event.at_most_tokens, at_most_rows=rows))
            return
        if (mistaken := self.unsettled.pop(used.id, None)) is not None:
            counts = Counts(unknown=1, at_most=mistaken.tokens, at_most_rows=mistaken.rows)
            self._row(mistaken.key).add(counts, -1)
        self._known.add(used.id)
        if event.lease:
            self._draw(event.lease, event.rows)
        refused = event.outcome in REFUSED
        ran = not refused and not used.vanished
        self._row(key).add(
            Counts(
                requests=ran,
                refused=refused,
                prompt=event.prompt_tokens,
                cached=event.cached_prompt_tokens,
                completion=event.completion_tokens,
                microusd=event.spend_microusd,
                rows=event.rows,
                predictions=ran and event.operation == PREDICT,
            )
        )

    def _draw(self, lease: str, rows: int) -> None:
        """So many of a lease's are known, which nobody may have settled, now or later."""
        self.drawn[lease] = self.drawn.get(lease, 0) + rows
        if (held := self.unsettled.get(lease)) is not None:
            known = min(rows, held.rows)
            self.unsettled[lease] = held._replace(rows=held.rows - known)
            self._row(held.key).add(Counts(at_most_rows=known), -1)

    def _row(self, key: Key) -> Counts:
        return self.sums.setdefault(key, Counts())


def key_of(used: Used) -> Key:
    """Where a request is counted."""
    event = used.event
    return Key(
        hour_of(used.time),
        event.tenant,
        event.key_id,
        used.sealed_by,
        event.model,
        event.model_version,
        event.queue_class,
        event.operation,
    )


def milliseconds_of(time: str) -> int:
    """RFC 3339 to milliseconds since 1970."""
    return round(datetime.fromisoformat(time).timestamp() * 1000)


def hour_of(time: str) -> int:
    """RFC 3339 to the hour since 1970."""
    return milliseconds_of(time) // (1000 * _HOUR)
