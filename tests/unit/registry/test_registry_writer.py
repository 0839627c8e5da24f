"""Changes whose answers get lost, races, and records that the audit log refuses."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from random import Random

import pytest
from weir.audit.v1 import audit_pb2
from weir.registry.v1 import registry_pb2 as pb

from libs.authority.operators import Grant
from libs.changes import Writer
from libs.clock import ManualClock
from libs.errors import Reason, WeirError
from libs.registry import Compare, MemoryStore, Put, RegistryView, TxnResult, keys
from libs.resources.codec import decode
from libs.resources.kind import Role
from services.registry import applying
from services.registry.admitting import Call
from services.registry.outbox import AuditOutbox
from tests.support.registry_service import resource, tenant


class FaultyStore(MemoryStore):
    """Loses answers of transactions: before or after carrying them out."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []

    async def txn(
        self, *, compares: Sequence[Compare] = (), puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> TxnResult:
        fault = self.faults.pop(0) if self.faults and compares else ""
        if fault == "race":
            await super().txn(
                puts=[
                    Put(keys.FENCE, b"somebody else"),
                    Put(keys.key("tenants", "other"), keys.encode(pb.Tenant(id="other"))),
                ]
            )
        if fault == "before":
            raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "lost")
        result = await super().txn(compares=compares, puts=puts, deletes=deletes)
        if fault == "after":
            raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "lost")
        return result


class MemoryAudit:
    """Keeps records; refuses those of one resource."""

    def __init__(self) -> None:
        self.records: list[audit_pb2.Record] = []
        self.taken: asyncio.Queue[str] = asyncio.Queue()
        self.refuse = ""

    async def append(self, record: audit_pb2.Record) -> None:
        if record.admin.resource == self.refuse:
            raise WeirError(Reason.INVALID_REQUEST, "no")
        self.records.append(record)
        self.taken.put_nowait(record.admin.resource)


class Bench:
    """A writer on a faulty store."""

    def __init__(self, store: FaultyStore) -> None:
        self.store = store
        self.audit = MemoryAudit()
        self.view = RegistryView(store)
        self.outbox = AuditOutbox(store=store, port=self.audit, limit=100, sweep=60.0, rng=Random(1))
        ids = itertools.count()
        self.writer = Writer(
            store=store,
            view=self.view,
            source="registry/r0",
            clock=ManualClock(),
            new_id=lambda: f"change-{next(ids)}",
            room=self.outbox.require_room,
            written=self.outbox.notify,
        )

    def stored(self, key: str) -> pb.Resource | None:
        kv = self.view.stored(key)
        return decode(kv.value, kv.mod_revision) if kv is not None else None

    async def set_tenant(self, name: str, revision: int = 0) -> int:
        request = pb.ApplyRequest(resources=[resource(tenant(name), revision=revision)])
        call = Call(Grant("me", frozenset({Role.OWNER})), 0.0, "id")
        done = await self.writer.commit(
            actor="me",
            action="registry.Apply",
            plan=lambda snapshot: applying.apply(snapshot, request, call, self.stored),
        )
        return done.revision


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench(FaultyStore())
    tasks = [asyncio.create_task(made.view.run()), asyncio.create_task(made.outbox.run())]
    async with asyncio.timeout(10):
        await made.view.wait_ready()
        yield made
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("fault", ["before", "after"])
async def test_a_lost_answer_changes_and_audits_once(bench: Bench, fault: str) -> None:
    bench.store.faults = [fault]
    revision = await bench.set_tenant("acme", revision=-1)
    assert bench.view.snapshot.tenants["acme"].revision == revision
    await bench.outbox.wait_empty()
    assert [record.admin.revision for record in bench.audit.records] == [revision]


async def test_two_lost_answers_are_said(bench: Bench) -> None:
    bench.store.faults = ["before", "before"]
    with pytest.raises(WeirError) as caught:
        await bench.set_tenant("acme")
    assert caught.value.reason is Reason.DEPENDENCY_UNAVAILABLE
    assert "acme" not in bench.view.snapshot.tenants


async def test_a_lost_race_is_validated_anew(bench: Bench) -> None:
    bench.store.faults = ["race"]
    await bench.set_tenant("acme")
    assert set(bench.view.snapshot.tenants) == {"acme", "other"}
    bench.store.faults = ["race"]
    with pytest.raises(WeirError) as caught:
        await bench.set_tenant("third", revision=5)
    assert caught.value.reason is Reason.CONFLICT


async def test_endless_races_end(bench: Bench) -> None:
    bench.store.faults = ["race"] * 20
    with pytest.raises(WeirError) as caught:
        await bench.set_tenant("acme")
    assert caught.value.reason is Reason.CONFLICT


async def test_a_refused_record_does_not_block_the_others(bench: Bench) -> None:
    bench.audit.refuse = "tenants/bad"
    await bench.set_tenant("bad")
    await bench.set_tenant("good")
    await bench.store.txn(puts=[Put(keys.AUDIT_OUTBOX + "unreadable", b"\xff\xff")])
    bench.outbox.notify()
    assert await bench.audit.taken.get() == "tenants/good"
    waiting = {kv.key for kv in (await bench.store.get_prefix(keys.AUDIT_OUTBOX)).kvs}
    assert keys.AUDIT_OUTBOX + "unreadable" in waiting
    assert keys.AUDIT_OUTBOX + "change-0" in waiting
    bench.audit.refuse = ""
    assert await bench.audit.taken.get() == "tenants/bad"
