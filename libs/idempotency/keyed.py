"""Idempotency keys: who may use one, for what, for how long, and which are forgotten first. Plain data and rules.

A key is a tenant's and stands for one request. A tenant's keys are bounded, and those of them that run; and so is the
size of all answers together. What runs is never forgotten; of what has ended the oldest goes first, out of the tenant's
own where that has more than its share.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from itertools import takewhile
from typing import Generic, TypeVar

import msgspec

from libs.errors import Reason, WeirError

MOST_OF_TENANT = 1000
MOST_RUNNING = 256
MOST_SHARE = 0.25
"""Of all room: a tenant that has more makes room out of its own."""
FIELD = "idempotency_key"
_SPELT = re.compile(r"[ -~]{1,255}")
A = TypeVar("A")


class Entry(msgspec.Struct, Generic[A]):
    """What a key stands for."""

    tenant: str
    key: str
    body: bytes
    """A digest of the request."""
    since: float
    """Monotonic seconds."""
    answer: A
    size: int = 0
    """Characters, or what weighs as much."""
    running: bool = True


def conflict(why: str = "it was used for another request", *, retry_after: float | None = None) -> WeirError:
    """The key stands for something else, or for what cannot be given; `retry_after` seconds perhaps it can."""
    return WeirError(Reason.IDEMPOTENCY_CONFLICT, f"{FIELD}: {why}", limit=FIELD, retry_after=retry_after)


def replayed(request_id: str) -> tuple[tuple[str, str], ...]:
    """Headers of an answer that was given before: to which request, whose record and bill it is."""
    return ("idempotent-replayed", "true"), ("x-weir-original-request-id", request_id)


class Keyed(Generic[A]):
    """The keys that one process knows."""

    def __init__(
        self,
        *,
        most_size: int,
        life: float,
        weight: int = 0,
        of_tenant: int = MOST_OF_TENANT,
        running: int = MOST_RUNNING,
    ) -> None:
        """`life` in seconds from a key's first use; `weight` is the size of an entry beside its answer; `of_tenant`
        keys are known of one tenant, of which so many are `running`."""
        self._most_size = most_size
        self._most_of_tenant = of_tenant
        self._most_running = running
        self._weight = weight
        self._life = life
        self._of: dict[str, OrderedDict[str, Entry[A]]] = {}  # by tenant, the oldest first
        self._running: dict[str, int] = {}  # by tenant, those that have any
        self._all: OrderedDict[tuple[str, str], Entry[A]] = OrderedDict()  # the oldest first
        self._sizes: dict[str, int] = {}  # by tenant, those that have any
        self.size = 0
        """Of all answers."""

    def __len__(self) -> int:
        return len(self._all)

    def find(self, tenant: str, key: str, body: bytes) -> A | None:
        """The answer to this request under this key.

        :raises WeirError: INVALID_REQUEST: the key; IDEMPOTENCY_CONFLICT: it stands for another request.
        """
        if not _SPELT.fullmatch(key):
            raise WeirError(
                Reason.INVALID_REQUEST, f"{FIELD}: must have 1 to 255 printable ASCII characters", limit=FIELD
            )
        entry = self._all.get((tenant, key))
        if entry is None:
            return None
        if entry.body != body:
            raise conflict()
        return entry.answer

    def put(self, tenant: str, key: str, body: bytes, answer: A, now: float) -> Entry[A]:
        """A key that is not known stands for this from now on.

        :raises WeirError: REJECTED_QUEUE_FULL: too much runs under keys.
        """
        self._make_room(tenant)
        entry = Entry(tenant, key, body, now, answer)
        self._of.setdefault(tenant, OrderedDict())[key] = self._all[tenant, key] = entry
        self._running[tenant] = self._running.get(tenant, 0) + 1
        self.grew(entry, self._weight)
        return entry

    def grew(self, entry: Entry[A], size: int) -> None:
        """Its answer is longer by so much."""
        entry.size += size
        self.size += size
        self._sizes[entry.tenant] = self._sizes.get(entry.tenant, 0) + size

    def ended(self, entry: Entry[A], *, keep: bool) -> None:
        """Its answer is over; one that is not worth keeping is forgotten."""
        if entry.running:
            entry.running = False
            self._running[entry.tenant] -= 1
            if not self._running[entry.tenant]:
                del self._running[entry.tenant]
        if not keep:
            self._forget(entry)

    def expire(self, now: float) -> None:
        """Forget what is too old."""
        old = list(takewhile(lambda entry: now - entry.since > self._life, self._all.values()))
        for entry in old:
            if not entry.running:
                self._forget(entry)

    def _make_room(self, tenant: str) -> None:
        if self._running.get(tenant, 0) >= self._most_running:
            raise _full(f"{self._most_running} requests with idempotency keys run already", "idempotency_keys")
        own: dict[str, Entry[A]] = self._of.get(tenant) or {}
        if len(own) >= self._most_of_tenant:
            self._forget(next(entry for entry in own.values() if not entry.running))
        while self.size >= self._most_size:
            much = self._sizes.get(tenant, 0) >= self._most_size * MOST_SHARE
            among = own if much else self._all
            oldest = next((entry for entry in among.values() if not entry.running), None)
            if oldest is None:
                raise _full("answers under idempotency keys fill this process", "idempotency_bytes")
            self._forget(oldest)

    def _forget(self, entry: Entry[A]) -> None:
        if self._all.pop((entry.tenant, entry.key), None) is None:
            return
        self.size -= entry.size
        self._sizes[entry.tenant] -= entry.size
        own = self._of[entry.tenant]
        del own[entry.key]
        if not own:
            del self._of[entry.tenant], self._sizes[entry.tenant]


def _full(message: str, limit: str) -> WeirError:
    return WeirError(Reason.REJECTED_QUEUE_FULL, message, limit=limit, retry_after=1.0)
