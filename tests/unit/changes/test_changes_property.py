"""Whatever two writers do at once, and whatever answers get lost: the history tells exactly what became of it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from weir.registry.v1 import registry_pb2 as pb

from libs.changes import Change, Plan, Write, Writer, nothing, put, recorded, resource_of
from libs.clock import ManualClock
from libs.errors import Reason, WeirError
from libs.registry import Compare, MemoryStore, Put, RegistrySnapshot, RegistryView, TxnResult, keys
from libs.resources.codec import decode

NAMES = ("a", "b", "c")
Wish = tuple[int, dict[str, str | None]]
"""Which writer, and what each tenant's display name shall be; None: no tenant."""


class LossyStore(MemoryStore):
    """Loses the answers that it is told to lose, before or after it did what was asked."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__()
        self._faults = list(faults)

    async def txn(
        self, *, compares: Sequence[Compare] = (), puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> TxnResult:
        fault = self._faults.pop(0) if self._faults else ""
        # Others get their turn in between.
        await asyncio.sleep(0)
        if fault == "before":
            raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "lost")
        result = await super().txn(compares=compares, puts=puts, deletes=deletes)
        if fault == "after":
            raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "lost")
        return result


def plan_of(wish: dict[str, str | None]) -> Plan[pb.Tenant]:
    def plan(snapshot: RegistrySnapshot) -> Change[pb.Tenant]:
        writes = []
        for name, shown in wish.items():
            present = snapshot.tenants.get(name)
            if shown is None and present is not None:
                writes.append(Write(keys.key_of(present), None))
            elif shown is not None and (present is None or present.display_name != shown):
                writes.append(put(pb.Tenant(id=name, display_name=shown)))
        return Change(pb.Tenant(), tuple(writes)) if writes else nothing(pb.Tenant())

    return plan


async def carry_out(wishes: Sequence[Wish], faults: Sequence[str]) -> tuple[MemoryStore, list[int], int]:
    """The store, the revisions that callers were told, and how many were told that it is unclear."""
    store, ids = LossyStore(faults), itertools.count()
    views = [RegistryView(store), RegistryView(store)]
    running = [asyncio.create_task(view.run()) for view in views]
    writers = [
        Writer(store=store, view=view, source="t", clock=ManualClock(), new_id=lambda: f"{next(ids):04}")
        for view in views
    ]
    for view in views:
        await view.wait_ready()
    told: list[int] = []
    unclear = 0

    async def one(number: int, wish: dict[str, str | None]) -> None:
        nonlocal unclear
        try:
            done = await writers[number].commit(actor="me", action="test", plan=plan_of(wish))
        except WeirError as error:
            if error.reason is not Reason.DEPENDENCY_UNAVAILABLE:
                raise
            unclear += 1
        else:
            if not done.unchanged:
                told.append(done.revision)

    async with asyncio.timeout(20):
        await asyncio.gather(*(one(number, wish) for number, wish in wishes))
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    return store, told, unclear


WISHES = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.dictionaries(st.sampled_from(NAMES), st.sampled_from([None, "x", "y"]), min_size=1),
    ),
    max_size=8,
)
FAULTS = st.lists(st.sampled_from(["", "", "before", "after"]), max_size=12)


@given(WISHES, FAULTS)
def test_the_history_replays_to_what_is_there(wishes: list[Wish], faults: list[str]) -> None:
    async def run() -> None:
        store, told, unclear = await carry_out(wishes, faults)
        entries = sorted((await store.get_prefix(keys.HISTORY)).kvs, key=lambda kv: kv.mod_revision)
        state: dict[str, str] = {}
        for kv in entries:
            entry = pb.HistoryEntry.FromString(kv.value)
            for change in entry.changes:
                assert state.get(change.resource, "") == change.before != change.after
                state[change.resource] = change.after
        there = (await store.get_prefix(keys.key("tenants", ""))).kvs
        present = {resource_of(kv.key): recorded(decode(kv.value, kv.mod_revision)) for kv in there}
        assert {name: value for name, value in state.items() if value} == present
        records = {kv.key.removeprefix(keys.AUDIT_OUTBOX) for kv in (await store.get_prefix(keys.AUDIT_OUTBOX)).kvs}
        assert records == {kv.key.rpartition("-")[2] for kv in entries}
        # Each caller that was told of a revision has one of its own; only the unclear may have left more.
        revisions = [kv.mod_revision for kv in entries]
        assert len(set(told)) == len(told)
        assert set(told) <= set(revisions)
        assert len(revisions) - len(told) <= unclear

    asyncio.run(run())
