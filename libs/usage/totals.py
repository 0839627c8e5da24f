"""Sums over requests, each counted once. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from libs.usage.records import PREDICT, REFUSED, Used

DIMENSIONS = ("day", "tenant", "key", "user", "model", "version", "class")
"""What can be asked by; days are those of UTC."""
OTHERS = "<others>"
"""Keys and users of a tenant's day beyond the first `MAX_ROWS` rows, together."""
MAX_ROWS = 1000
RECENT = 65_536
"""Requests of which it is remembered that their usage is known, should somebody say later that it is not."""
Key = tuple[str, str, str, str, str, str, str]


class Counts(msgspec.Struct, array_like=True):
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


class Asked(NamedTuple):
    """Which sums: of these days (inclusive; empty: all), of a tenant (empty: of all), by these dimensions."""

    first: str = ""
    last: str = ""
    tenant: str = ""
    by: Sequence[str] = ()
    models: Collection[str] = ()
    keys: Collection[str] = ()


class State(msgspec.Struct, array_like=True):
    """The sums at rest, as of a record of the log."""

    count: int = 0
    head: str = ""
    """That record's hash, 64 hex digits."""
    rows: dict[str, list[tuple[Key, Counts]]] = {}
    """By tenant and day."""
    unknown: dict[str, tuple[Key, Counts]] = {}
    recent: list[int] = []
    drawn: list[tuple[int, int]] = []
    since: str = ""
    """The first day of which all is in them; empty: they begin with the log."""


class Totals:
    """The fold."""

    def __init__(self, state: State | None = None) -> None:
        state = state or State()
        self.count, self.head, self.since = state.count, state.head, state.since
        self._rows = {name: dict(rows) for name, rows in state.rows.items()}
        self._unknown = dict(state.unknown)
        self._recent = dict.fromkeys(state.recent)
        self._drawn = dict(state.drawn)  # by lease, the rows of calls that are known

    def state(self) -> State:
        """At rest."""
        rows = {name: list(rows.items()) for name, rows in self._rows.items()}
        return State(
            self.count, self.head, rows, dict(self._unknown), list(self._recent), list(self._drawn.items()), self.since
        )

    def add(self, used: Used) -> None:
        """One more request. What is known of it goes before what was said to be unknown, whichever came first."""
        mark = _hash(used.id)
        if used.unknown:
            if mark in self._recent or used.id in self._unknown:
                return
            event = used.event
            rows = max(0, event.at_most_rows - self._drawn.get(mark, 0))
            counts = Counts(unknown=1, at_most=event.at_most_tokens, at_most_rows=rows)
            key = self._key(used)
            self._unknown[used.id] = key, counts
            self._row(key).add(counts)
            return
        if (mistaken := self._unknown.pop(used.id, None)) is not None:
            self._row(mistaken[0]).add(mistaken[1], -1)
        self._recent[mark] = None
        if len(self._recent) > RECENT:
            del self._recent[next(iter(self._recent))]
        event = used.event
        if event.lease:
            self._draw(event.lease, event.rows)
        refused = event.outcome in REFUSED
        ran = not refused and not used.vanished
        self._row(self._key(used)).add(
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
        mark = _hash(lease)
        self._drawn[mark] = self._drawn.get(mark, 0) + rows
        if len(self._drawn) > RECENT:
            del self._drawn[next(iter(self._drawn))]
        if (unsettled := self._unknown.get(lease)) is not None:
            known = Counts(at_most_rows=min(rows, unsettled[1].at_most_rows))
            for counts in (unsettled[1], self._row(unsettled[0])):
                counts.add(known, -1)

    def rows(self, asked: Asked) -> list[tuple[tuple[str, ...], Counts]]:
        """The sums that were asked for, in order: values of the dimensions, and counts."""
        places = [DIMENSIONS.index(name) for name in asked.by]
        found: dict[tuple[str, ...], Counts] = {}
        for key, counts in self._asked(asked):
            name = tuple(key[place] for place in places)
            found.setdefault(name, Counts()).add(counts)
        return sorted(found.items())

    def _asked(self, asked: Asked) -> Iterator[tuple[Key, Counts]]:
        for rows in self._rows.values():
            for key, counts in rows.items():
                day, tenant, api_key, _, model, version, _ = key
                if (asked.tenant and tenant != asked.tenant) or (asked.first and day < asked.first):
                    break  # as all of these rows
                if asked.last and day > asked.last:
                    break
                if asked.models and not {model, version} & set(asked.models):
                    continue
                if asked.keys and api_key not in asked.keys:
                    continue
                if counts != _NOTHING:
                    yield key, counts

    def _row(self, key: Key) -> Counts:
        rows = self._rows.setdefault(f"{key[0]} {key[1]}", {})
        if key not in rows and len(rows) >= MAX_ROWS:
            day, tenant, _, _, *rest = key
            key = (day, tenant, OTHERS, OTHERS, rest[0], rest[1], rest[2])
        return rows.setdefault(key, Counts())

    def _key(self, used: Used) -> Key:
        event = used.event
        return used.day, event.tenant, event.key_id, event.user, event.model, event.model_version, event.queue_class


_NOTHING = Counts()


def _hash(request_id: str) -> int:
    return int.from_bytes(blake2b(request_id.encode(), digest_size=8).digest(), "little")
