"""Decisions about rollouts, as the history of the registry tells them: the same for every replica, whoever decided."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from contextlib import aclosing
from random import Random

from google.protobuf.message import DecodeError
from weir.registry.v1 import registry_pb2
from weir.rollout.v1 import rollout_pb2 as pb

from libs.clock import Clock
from libs.errors import Reason, WeirError
from libs.registry import Listing, RegistrySnapshot, Store, keys
from libs.rollouts import is_live

_KEPT = 100
"""Decisions per rollout."""
_BUCKET = 10**14
"""Nanoseconds (28 hours): keys of the history begin with their time, so a listing can be of a day."""
_MOST_BUCKETS = 40
"""Looked through at start: a rollout that began before is shown without its first decisions."""
_RETRY = (0.1, 2.0)
_ROLLOUTS = "rollouts/"


class History:
    """Follows the history while `run` runs."""

    def __init__(self, *, store: Store, clock: Clock, rng: Random) -> None:
        self._store = store
        self._clock = clock
        self._rng = rng
        self._decisions: dict[str, deque[pb.Decision]] = {}
        self._callbacks: list[Callable[[str], None]] = []

    def on_decision(self, callback: Callable[[str], None]) -> None:
        """Calls back with the id of a rollout about which a decision became known."""
        self._callbacks.append(callback)

    def of(self, rollout_id: str) -> list[pb.Decision]:
        """Newest first."""
        return sorted(self._decisions.get(rollout_id, ()), key=lambda each: -each.revision)

    def keep(self, rollout_ids: set[str]) -> None:
        """Forgets other rollouts' decisions."""
        for gone in self._decisions.keys() - rollout_ids:
            del self._decisions[gone]

    async def run(self, snapshot: RegistrySnapshot) -> None:
        """Reads what the snapshot's rollouts have behind them, then follows; goes on until cancelled."""
        revision, known = await self._read(snapshot)
        async with aclosing(self._store.watch(keys.HISTORY, revision + 1, known=known)) as batches:
            async for batch in batches:
                for event in batch.events:
                    if event.value is not None and known.get(event.key) != event.mod_revision:
                        self._take(event.value, event.mod_revision)

    async def _read(self, snapshot: RegistrySnapshot) -> tuple[int, dict[str, int]]:
        now = int(self._clock.time() * 1e9)
        live = [each for each in snapshot.rollouts.values() if is_live(each) and each.state.HasField("started_at")]
        since = min((each.state.started_at.seconds * 10**9 for each in live), default=now)
        # A day before as well, for rollouts that have just ended, and what clocks that go ahead wrote.
        first, last = max(since // _BUCKET, now // _BUCKET - _MOST_BUCKETS) - 1, now // _BUCKET + 1
        revision = 0
        known: dict[str, int] = {}
        for bucket in range(first, last + 1):
            listing = await self._list(f"{keys.HISTORY}{bucket:06d}")
            # The watch begins behind the first listing: what came in between is seen twice, and counted once.
            revision = revision or listing.revision
            for kv in listing.kvs:
                known[kv.key] = kv.mod_revision
                self._take(kv.value, kv.mod_revision)
        return revision, known

    async def _list(self, prefix: str) -> Listing:
        pause, longest = _RETRY
        while True:
            try:
                return await self._store.get_prefix(prefix)
            except WeirError as error:
                if error.reason is not Reason.DEPENDENCY_UNAVAILABLE:
                    raise
            await asyncio.sleep(pause * self._rng.uniform(0.5, 1.0))
            pause = min(longest, pause * 2)

    def _take(self, value: bytes, revision: int) -> None:
        if _ROLLOUTS.encode() not in value:
            return
        try:
            entry = registry_pb2.HistoryEntry.FromString(value)
        except DecodeError:
            return
        for change in entry.changes:
            if change.resource.startswith(_ROLLOUTS) and change.after:
                self._add(entry, change, revision)

    def _add(self, entry: registry_pb2.HistoryEntry, change: registry_pb2.ResourceChange, revision: int) -> None:
        try:
            after = json.loads(change.after)
            before = json.loads(change.before) if change.before else {}
            rollout_id, state = str(after["spec"]["id"]), after.get("status", {})
        except (ValueError, KeyError, AttributeError):
            return
        if before.get("spec", {}).get("id") != rollout_id:
            before = {}
        decision = pb.Decision(
            at=entry.at,
            kind=_kind(entry.action, before.get("status", {}), state),
            text=entry.reason or str(state.get("reason", "")),
            by=entry.actor,
            revision=revision,
        )
        self._decisions.setdefault(rollout_id, deque(maxlen=_KEPT)).append(decision)
        for callback in self._callbacks:
            callback(rollout_id)


def action_of(kind: str) -> str:
    """The action that a decision of the controller is recorded under: "roll_back" is "rollout.RollBack"."""
    return "rollout." + "".join(part.capitalize() for part in kind.split("_"))


def _kind(action: str, before: dict[str, object], after: dict[str, object]) -> str:
    service, _, name = action.partition(".")
    if service == "rollout":
        return "".join(f"_{each.lower()}" if each.isupper() else each for each in name).removeprefix("_")
    if not before:
        return "start"
    if after.get("phase") == "ROLLOUT_PHASE_ABORTED":
        return "abort"
    if after.get("phase") == "ROLLOUT_PHASE_PROMOTED":
        return "promote"
    if bool(before.get("paused")) != bool(after.get("paused")):
        return "pause" if after.get("paused") else "resume"
    if (before.get("phase"), before.get("step")) != (after.get("phase"), after.get("step")):
        return "advance"
    return "resume"
