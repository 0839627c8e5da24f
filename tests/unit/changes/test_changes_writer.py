"""Several resources at once, guards, dry runs, and what is recorded of a change."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest
from google.protobuf.message import Message
from weir.audit.v1 import audit_pb2
from weir.registry.v1 import registry_pb2 as pb

from libs.changes import MAX_WRITES, Change, Committed, Plan, Write, Writer, nothing, put, recorded
from libs.clock import ManualClock
from libs.errors import Reason, WeirError
from libs.registry import Compare, KeyValue, MemoryStore, Put, RegistrySnapshot, RegistryView, TxnResult, keys
from libs.resources.codec import decode, encode, pack, unpack
from libs.resources.forms import from_plain

LEADER = keys.LEADERS + "rollout"


class LossyStore(MemoryStore):
    """Carries a transaction out, lets somebody else change something, and then loses the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.lose = 0
        self.lost: Callable[[], None] | None = None
        self.late = False
        self._held: list[Callable[[], Awaitable[TxnResult]]] = []

    async def get(self, key: str) -> KeyValue | None:
        if key == keys.FENCE and self._held:
            # What was sent before comes through now, behind the look at the history.
            await self._held.pop()()
        return await super().get(key)

    async def txn(
        self, *, compares: Sequence[Compare] = (), puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> TxnResult:
        if self.late and compares:
            self.late = False
            self._held.append(lambda: MemoryStore.txn(self, compares=compares, puts=puts, deletes=deletes))
            raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "late")
        result = await super().txn(compares=compares, puts=puts, deletes=deletes)
        if self.lost is not None:
            self.lost()
            raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "lost")
        if self.lose and compares:
            self.lose -= 1
            await super().txn(puts=[Put(keys.FENCE, b"somebody else's")])
            raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "lost")
        return result


class Bench:
    def __init__(self) -> None:
        self.store = LossyStore()
        self.view = RegistryView(self.store)
        self.told = 0
        self.full = False
        ids = itertools.count()
        self.writer = Writer(
            store=self.store,
            view=self.view,
            source="registry/r0",
            clock=ManualClock(),
            new_id=lambda: f"change-{next(ids)}",
            room=self._room,
            written=self._written,
        )

    def _room(self) -> None:
        if self.full:
            raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "full")

    def _written(self) -> None:
        self.told += 1

    async def commit(
        self, *writes: Write, dry_run: bool = False, guards: Sequence[Compare] = ()
    ) -> Committed[pb.Tenant]:
        return await self.commit_plan(lambda _: Change(pb.Tenant(id="acme"), writes), dry_run=dry_run, guards=guards)

    async def commit_plan(
        self, plan: Plan[pb.Tenant], *, dry_run: bool = False, guards: Sequence[Compare] = ()
    ) -> Committed[pb.Tenant]:
        return await self.writer.commit(
            actor="me", action="test.Change", reason="because", plan=plan, dry_run=dry_run, guards=guards
        )

    async def history(self) -> list[pb.HistoryEntry]:
        listing = await self.store.get_prefix(keys.HISTORY)
        made = [pb.HistoryEntry.FromString(kv.value) for kv in listing.kvs]
        for entry, kv in zip(made, listing.kvs, strict=True):
            assert not entry.revision
            entry.revision = kv.mod_revision
        return made

    async def records(self) -> list[audit_pb2.Record]:
        listing = await self.store.get_prefix(keys.AUDIT_OUTBOX)
        return [audit_pb2.Record.FromString(kv.value) for kv in listing.kvs]


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    task = asyncio.create_task(made.view.run())
    async with asyncio.timeout(10):
        await made.view.wait_ready()
        yield made
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def tenant(name: str, display: str = "") -> pb.Tenant:
    return pb.Tenant(id=name, plan=pb.PLAN_PAID, display_name=display)


async def test_several_resources_are_one_revision(bench: Bench) -> None:
    pin = pb.Pin(model_version="a@1", reason="kept")
    first = await bench.commit(put(tenant("acme")), put(pin))
    assert first.message.revision == first.revision
    snapshot = bench.view.snapshot
    assert snapshot.tenants["acme"].revision == snapshot.pins["a@1"].revision == first.revision
    second = await bench.commit(put(tenant("acme", "Acme")), Write(keys.key_of(pin), None))
    assert not bench.view.snapshot.pins
    assert [change.resource for change in second.changes] == ["tenants/acme", "pins/a@1"]
    assert bench.told == 2


async def test_history_and_audit_tell_who_why_and_what(bench: Bench) -> None:
    pin = pb.Pin(model_version="a@1", reason="kept")
    made = await bench.commit(put(tenant("acme")), put(pin))
    gone = await bench.commit(Write(keys.key_of(pin), None))
    first, second = await bench.history()
    assert (first.revision, first.actor, first.action, first.reason) == (made.revision, "me", "test.Change", "because")
    assert first.HasField("at")
    assert (first.changes[0].resource, first.changes[0].before) == ("tenants/acme", "")
    assert unpack(from_plain(json.loads(first.changes[0].after))) == tenant("acme")
    assert second.revision == gone.revision
    assert second.changes[0] == pb.ResourceChange(resource="pins/a@1", before=first.changes[1].after, after="")
    one, two = sorted(await bench.records(), key=lambda record: record.id)
    assert (one.id, one.admin.resource, one.admin.reason) == (first.id, "tenants/acme, pins/a@1", "because")
    assert (two.id, two.source, two.admin.resource) == (second.id, "registry/r0", "pins/a@1")


async def test_records_of_many_resources_stay_short(bench: Bench) -> None:
    await bench.commit(*(put(tenant(f"t{number}")) for number in range(9)))
    assert [record.admin.resource for record in await bench.records()] == ["tenants/t0 and 8 more"]


async def test_a_dry_run_plans_and_writes_nothing(bench: Bench) -> None:
    before, bench.full = bench.store.revision, True
    planned = await bench.commit(put(tenant("acme")), dry_run=True)
    assert not planned.unchanged
    assert planned.message.revision == 0
    assert [change.resource for change in planned.changes] == ["tenants/acme"]
    assert (bench.store.revision, bench.told) == (before, 0)

    def refuse(snapshot: RegistrySnapshot) -> Change[pb.Tenant]:
        raise WeirError(Reason.INVALID_REQUEST, "no")

    with pytest.raises(WeirError, match="no"):
        await bench.commit_plan(refuse, dry_run=True)


async def test_what_changes_nothing_leaves_no_trace(bench: Bench) -> None:
    before = bench.store.revision
    done = await bench.commit_plan(lambda _: nothing(tenant("acme")))
    assert done.unchanged
    assert (bench.store.revision, await bench.history()) == (before, [])


async def test_a_guard_that_does_not_hold_ends_it(bench: Bench) -> None:
    led = await bench.store.txn(puts=[Put(LEADER, b"rollout-0")])
    await bench.commit(put(tenant("acme")), guards=[Compare(LEADER, led.revision)])
    await bench.store.txn(puts=[Put(LEADER, b"rollout-1")])
    asked = 0

    def plan(snapshot: RegistrySnapshot) -> Change[pb.Tenant]:
        nonlocal asked
        asked += 1
        return Change(tenant("late"), (put(tenant("late")),))

    for guard in (Compare(LEADER, led.revision), Compare(keys.LEADERS + "nobody", 5)):
        with pytest.raises(WeirError) as caught:
            await bench.commit_plan(plan, guards=[guard])
        assert (caught.value.reason, caught.value.limit) == (Reason.CONFLICT, "guard")
    assert asked == 2
    assert "late" not in bench.view.snapshot.tenants


async def test_a_lost_answer_is_found_behind_others_changes(bench: Bench) -> None:
    bench.store.lose = 1
    plans = 0

    def plan(snapshot: RegistrySnapshot) -> Change[pb.Tenant]:
        nonlocal plans
        plans += 1
        if "acme" in snapshot.tenants:
            raise WeirError(Reason.ALREADY_EXISTS, "it would be doubled")
        return Change(tenant("acme"), (put(tenant("acme")),))

    done = await bench.commit_plan(plan)
    assert plans == 1
    assert done.revision == bench.view.snapshot.tenants["acme"].revision == done.message.revision
    assert len(await bench.history()) == 1


async def test_a_store_that_goes_away_behind_a_change_leaves_it_unclear_and_says_so(bench: Bench) -> None:
    def plan(snapshot: RegistrySnapshot) -> Change[pb.Tenant]:
        bench.store.lost = lambda: bench.store.set_available(False)
        return Change(tenant("acme"), (put(tenant("acme")),))

    with pytest.raises(WeirError, match="unclear") as caught:
        await bench.commit_plan(plan)
    assert caught.value.reason is Reason.DEPENDENCY_UNAVAILABLE
    bench.store.set_available(True)
    assert len(await bench.history()) == 1


async def test_a_change_that_comes_through_late_is_not_refused_for_itself(bench: Bench) -> None:
    bench.store.late = True

    def plan(snapshot: RegistrySnapshot) -> Change[pb.Tenant]:
        if "acme" in snapshot.tenants:
            raise WeirError(Reason.ALREADY_EXISTS, "it is there")
        return Change(tenant("acme"), (put(tenant("acme")),))

    done = await bench.commit_plan(plan)
    assert done.revision == bench.view.snapshot.tenants["acme"].revision
    assert len(await bench.history()) == 1


async def test_no_room_refuses_before_anything(bench: Bench) -> None:
    bench.full = True
    with pytest.raises(WeirError, match="full"):
        await bench.commit(put(tenant("acme")))
    assert await bench.history() == []


async def test_more_than_a_transaction_takes_is_refused(bench: Bench) -> None:
    with pytest.raises(WeirError) as caught:
        await bench.commit(*(put(tenant(f"t{number}")) for number in range(MAX_WRITES + 1)))
    assert (caught.value.reason, caught.value.limit) == (Reason.INVALID_REQUEST, "writes")
    assert len((await bench.commit(*(put(tenant(f"t{number}")) for number in range(MAX_WRITES)))).changes) == MAX_WRITES


def test_secrets_and_bulk_stay_out_of_the_history() -> None:
    def told(message: Message) -> dict[str, Any]:
        plain: dict[str, Any] = json.loads(recorded(pack(message)))
        return plain.get("spec", plain.get("status", {}))

    assert told(pb.ApiKey(id="k", tenant="acme", hash=b"secret")) == {"tenant": "acme"}
    assert told(pb.ModelVersion(name="a", version="1", signature="s" * 900)) == {}
    assert told(pb.ErrorBudget(route="generate", tier="*", windows=b"counts")) == {}
    assert recorded(None) == ""


def test_the_history_tells_the_same_of_the_same_and_no_revision() -> None:
    wanted = pack(pb.Limits(tenant="acme", model="*", requests_per_minute=3))
    wanted.metadata.labels["ü"], wanted.metadata.owner = "x", "team"
    first = recorded(wanted)
    wanted.metadata.revision = 9
    assert recorded(wanted) == first
    back = from_plain(json.loads(first))
    assert back.metadata.labels == wanted.metadata.labels
    assert "ü" in first


def test_a_put_has_no_revision_of_its_own() -> None:
    write = put(pb.Tenant(id="acme", revision=7))
    assert write.resource is not None
    assert encode(write.resource) == keys.encode(pb.Tenant(id="acme"))


async def test_who_writes_a_message_leaves_labels_and_owner_as_they_are(bench: Bench) -> None:
    """The rollout controller knows its rollout, and not whose directory it came from."""
    first = pack(tenant("acme"))
    first.metadata.labels["team"], first.metadata.owner = "search", "dir"
    await bench.commit(Write(keys.key("tenants", "acme"), first))
    done = await bench.commit(put(tenant("acme", "Acme")))

    def metadata() -> tuple[dict[str, str], str]:
        kv = bench.view.stored(keys.key("tenants", "acme"))
        assert kv is not None
        held = decode(kv.value, 0).metadata
        return dict(held.labels), held.owner

    assert metadata() == ({"team": "search"}, "dir")
    change = done.changes[0]
    assert [json.loads(each)["metadata"]["owner"] for each in (change.before, change.after)] == ["dir"] * 2
    # Who writes a resource says both.
    await bench.commit(Write(keys.key("tenants", "acme"), pack(tenant("acme"))))
    assert metadata() == ({}, "")


@pytest.mark.parametrize("value", [b"\xff", b"", b"\x0a"])
async def test_what_cannot_be_read_can_be_replaced(bench: Bench, value: bytes) -> None:
    result = await bench.store.txn(puts=[Put(keys.key("tenants", "acme"), value)])
    await bench.view.wait_until(lambda snapshot: snapshot.revision >= result.revision)
    done = await bench.commit(put(tenant("acme")))
    assert done.changes[0].before == ""
    assert bench.view.snapshot.tenants["acme"].plan == pb.PLAN_PAID


async def test_a_change_that_may_take_from_credentials_says_so_at_its_own_revision(bench: Bench) -> None:
    def key(**more: Any) -> pb.ApiKey:
        return pb.ApiKey(id="k", tenant="acme", hash=b"x" * 32, **more)

    async def epoch() -> int:
        told = await bench.store.get(keys.EPOCH)
        return told.mod_revision if told else 0

    await bench.commit(put(tenant("acme")), put(key(scopes=["inference", "embeddings"])))
    await bench.commit(put(pb.Pin(model_version="a@1")))
    await bench.commit(put(pb.Pin(model_version="a@1", warm=True)))
    assert await epoch() == 0, "nobody has less than before"
    narrowed = await bench.commit(put(key(scopes=["inference"])))
    assert await epoch() == narrowed.revision
    for change in (
        put(tenant("acme", "later")),
        Write(keys.key_of(key()), None),
        Write(keys.key("tenants", "acme"), None),
    ):
        assert await epoch() < (changed := await bench.commit(change)).revision
        assert await epoch() == changed.revision
