"""Campaigning for a key under a lease, keeping it, and losing it in time.

After etcd's election recipe (https://etcd.io/docs/v3.5/dev-guide/api_concurrency_reference_v3/): whoever creates the
key under a lease of its own leads. With a handful of replicas no queue of candidates is needed; when the key vanishes,
all try to create it and one succeeds. Fencing after Kleppmann, "How to do distributed locking" (2016).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from random import Random

from libs.clock import Clock, SystemClock
from libs.election.leadership import Leadership
from libs.errors import Reason, WeirError
from libs.registry import Compare, KeyValue, Put, Store, WatchEvent, keys

_log = logging.getLogger(__name__)
_SURE = 0.9
"""Share of the lease's time for which a leader trusts its clock: the rest is for clocks that run unlike etcd's, and for
ending what runs."""
_BEATS = 3
"""Signs of life per lease time: two may be lost."""
_RETRY = (0.1, 0.5)
"""First and longest pause in seconds between two attempts while the store is away."""

Lead = Callable[[Leadership], Awaitable[None]]
"""What a leader does; cancelled when the term ends, and awaited before anybody else is let in. If it returns, the term
is given back."""


class Election:
    """A candidate. `run` campaigns and leads, by turns, until it is cancelled or resigns."""

    def __init__(
        self,
        *,
        store: Store,
        service: str,
        instance: str,
        ttl: float = 3.0,
        clock: Clock | None = None,
        rng: Random | None = None,
    ) -> None:
        """:param service: what is led, "rollout"; one leader per service.

        :param instance: who we are, "rollout-0"; what others read in the key.
        :param ttl: seconds from a leader's death to its key's; stores may round up (etcd: whole seconds, at least 2).
        :raises ValueError: the ttl is not positive.
        """
        if not ttl > 0:
            raise ValueError("ttl must be positive")
        self._store = store
        self._key = keys.LEADERS + service
        self._value = instance.encode()
        self._ttl = ttl
        self._clock: Clock = clock or SystemClock()
        self._rng = rng or Random()  # noqa: S311 - jitter, not a secret
        self._seen: KeyValue | None = None
        self._seen_revision = 0
        self._changed = asyncio.Event()
        self._resigned = asyncio.Event()
        self._leadership: Leadership | None = None
        self._fresh = True
        self._callbacks: list[Callable[[], None]] = []

    @property
    def leader(self) -> str:
        """The instance that leads, as last seen; empty: nobody, or not known yet."""
        return self._seen.value.decode(errors="replace") if self._seen is not None else ""

    @property
    def leadership(self) -> Leadership | None:
        """Our own term, while we lead by our own clock."""
        term = self._leadership
        return term if term is not None and term.held else None

    def on_change(self, callback: Callable[[], None]) -> None:
        """Calls back when `leader` or `leadership` changed; it must not block."""
        self._callbacks.append(callback)

    def resign(self) -> None:
        """Asks `run` to end the term, give the key back at once, and return; the first act of a drain."""
        self._resigned.set()
        self._wake()

    async def run(self, lead: Lead) -> None:
        """Goes on until cancelled or resigned, through every outage of the store. Whatever `lead` raises ends it.

        :raises WeirError: an answer of the store other than that it is away.
        """
        async with asyncio.TaskGroup() as tasks:
            follow = tasks.create_task(self._follow(), name="election.follow")
            try:
                while (term := await self._campaign()) is not None:
                    await self._serve(term, lead)
            finally:
                follow.cancel()

    async def _follow(self) -> None:
        """Keeps `_seen` current."""
        pause, longest = _RETRY
        while True:
            try:
                listing = await self._store.get_prefix(self._key)
                break
            except WeirError as error:
                if error.reason is not Reason.DEPENDENCY_UNAVAILABLE:
                    raise
            await asyncio.sleep(pause * self._rng.uniform(0.5, 1.0))
            pause = min(longest, pause * 2)
        found = {kv.key: kv for kv in listing.kvs}
        self._see(found.get(self._key), listing.revision)
        known = {key: kv.mod_revision for key, kv in found.items()}
        async with aclosing(self._store.watch(self._key, listing.revision + 1, known=known)) as batches:
            async for batch in batches:
                for event in batch.events:
                    # Other services' keys may begin with ours.
                    if event.key == self._key:
                        self._see(_key_value(event), event.mod_revision)

    def _see(self, present: KeyValue | None, revision: int) -> None:
        self._seen, self._seen_revision = present, revision
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        for callback in self._callbacks:
            callback()

    async def _campaign(self) -> Leadership | None:
        """A term of our own, when the key is free at last; None when we resigned."""
        while not self._resigned.is_set():
            changed = self._changed
            if not self._seen_revision or (self._seen is not None and not self._is_predecessor(self._seen)):
                await changed.wait()
                continue
            replaced = self._seen.mod_revision if self._seen is not None else 0
            self._fresh = False
            if (term := await self._attempt(replaced)) is not None:
                return term
        return None

    def _is_predecessor(self, present: KeyValue) -> bool:
        """The key is of a process of our own name, which must be dead, since we live. Asked only once in a process's
        life: two living ones of one name must not take the key from one another for ever."""
        return self._fresh and present.value == self._value

    async def _attempt(self, replaced: int) -> Leadership | None:
        """Tries once to write the key, which must be at this revision; 0: which must not exist."""
        asked = self._clock.monotonic()
        lease = 0
        held = None
        try:
            lease = await self._store.lease_grant(self._ttl)
            with suppress(WeirError):
                # An outcome that is unknown, or a lease that ended meanwhile, shows in the key.
                await self._store.txn(
                    compares=[Compare(self._key, replaced)], puts=[Put(self._key, self._value, lease)]
                )
            held = await self._store.get(self._key)
        except WeirError as error:
            if error.reason is not Reason.DEPENDENCY_UNAVAILABLE:
                raise
            await asyncio.sleep(self._rng.uniform(*_RETRY))
        if held is not None and held.mod_revision > self._seen_revision:
            self._see(held, held.mod_revision)
        if held is None or held.lease != lease:
            await self._give_back(lease)
            return None
        return Leadership(store=self._store, held=held, until=asked + self._ttl * _SURE, clock=self._clock)

    async def _serve(self, term: Leadership, lead: Lead) -> None:
        """One term, from its first moment to the key's end."""
        _log.info("leadership_won: %s", self._key)
        self._leadership = term
        self._wake()
        work = asyncio.ensure_future(lead(term))
        keep = asyncio.create_task(self._keep(term), name="election.keep")
        try:
            await asyncio.wait((work, keep), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended = [task for task in (work, keep) if task.done()]
            for task in (work, keep):
                task.cancel()
            await asyncio.wait((work, keep))
            term.end()
            self._leadership = None
            _log.info("leadership_ended: %s", self._key)
            await self._give_back(term.lease)
            self._wake()
        for task in (work, keep):
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
        if work in ended and keep not in ended and not self._resigned.is_set():
            # Given back by choice: somebody else's turn first.
            await asyncio.sleep(self._rng.uniform(*_RETRY))

    async def _keep(self, term: Leadership) -> None:
        """Keeps the lease alive; returns when the term is over or we resigned."""
        asked = self._clock.monotonic()
        next_beat = asked + self._ttl / _BEATS
        while term.held and not self._resigned.is_set() and not self._taken(term):
            changed = self._changed
            pause = min(next_beat - self._clock.monotonic(), term.left)
            if pause > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await changed.wait()
                continue
            asked = self._clock.monotonic()
            try:
                async with asyncio.timeout(term.left):
                    await self._store.lease_keepalive(term.lease)
            except TimeoutError:
                continue
            except WeirError as error:
                if error.reason is Reason.NOT_FOUND:
                    return
                if error.reason is not Reason.DEPENDENCY_UNAVAILABLE:
                    raise
                next_beat = self._clock.monotonic() + _RETRY[0]
                continue
            # From before it was sent: the store counts from when it came.
            term.extend(asked + self._ttl * _SURE)
            next_beat = asked + self._ttl / _BEATS

    def _taken(self, term: Leadership) -> bool:
        """The key went, or is another's."""
        if self._seen_revision <= term.guard.mod_revision:
            # What the watch has shown so far is older than our own key.
            return False
        return self._seen is None or self._seen.mod_revision != term.guard.mod_revision

    async def _give_back(self, lease: int) -> None:
        """Ends a lease; the key goes with it. Without the store it runs out by itself."""
        if lease:
            with suppress(WeirError, TimeoutError):
                async with asyncio.timeout(self._ttl):
                    await self._store.lease_revoke(lease)


def _key_value(event: WatchEvent) -> KeyValue | None:
    if event.value is None:
        return None
    return KeyValue(event.key, event.value, event.mod_revision, event.lease)
