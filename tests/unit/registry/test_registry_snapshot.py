"""Snapshots: decoding, copy on write, and that any sequence of events gives what a fresh listing gives."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st
from weir.registry.v1 import registry_pb2 as pb

from libs.registry import MemoryStore, Put, RegistrySnapshot, WatchEvent, apply_events, keys, snapshot_of
from libs.registry.diff import listing_diff
from libs.registry.snapshot import following
from libs.resources.kinds import ATTRIBUTE, KINDS


def event(message: Message, revision: int) -> WatchEvent:
    return WatchEvent(keys.key_of(message), keys.encode(message), revision)


EVERYTHING = (
    pb.ModelVersion(name="weir-fast", version="1"),
    pb.Alias(name="weir-fast", targets=[pb.AliasTarget(model_version="weir-fast@1", weight=100)]),
    pb.Tenant(id="acme"),
    pb.ApiKey(id="k1", tenant="acme", hash=b"\x00\xff"),
    pb.Limits(tenant="acme", model="*", requests_per_minute=3),
    pb.SafetyPolicy(id="default", version="2"),
    pb.Endpoint(service="gateway", instance="gateway-0", address="127.0.0.1:1"),
    pb.PlanPolicy(id="paid", weight=2, ladder=[pb.DegradationStep(cap_output=pb.CapOutput(max_tokens=8))]),
    pb.Slo(route="generate", tier="fast", availability=0.999),
    pb.Price(model="weir-fast", output_microusd_per_million=2**40),
    pb.PoolLevel(pool="demo", tenants=[pb.TenantLevel(tenant="acme", shed=0.5)]),
)


def test_every_collection_is_decoded() -> None:
    snapshot = apply_events(RegistrySnapshot(), [event(message, 7) for message in EVERYTHING], 7)
    assert snapshot.revision == 7
    assert snapshot.model_versions["weir-fast@1"] == EVERYTHING[0]
    assert snapshot.aliases["weir-fast"].revision == 7
    assert snapshot.tenants["acme"].revision == 7
    assert snapshot.keys["k1"].hash == b"\x00\xff"
    assert snapshot.limits["acme", "*"].requests_per_minute == 3
    assert snapshot.limits["acme", "*"].revision == 7
    assert snapshot.safety_policies["default@2"].version == "2"
    assert snapshot.endpoints_of("gateway") == [EVERYTHING[6]]
    assert snapshot.plans["paid"].ladder[0].cap_output.max_tokens == 8
    assert snapshot.slos["generate", "fast"].availability == 0.999
    assert snapshot.prices["weir-fast"].output_microusd_per_million == 2**40
    assert [each.revision for each in (snapshot.plans["paid"], *snapshot.slos.values(), *snapshot.prices.values())] == [
        7
    ] * 3
    assert snapshot.levels["demo"] == EVERYTHING[10]
    assert not snapshot.faults


def test_collections_that_did_not_change_are_shared() -> None:
    before = apply_events(RegistrySnapshot(), [event(message, 7) for message in EVERYTHING], 7)
    after = apply_events(before, [event(pb.Tenant(id="globex"), 8)], 8)
    assert after.keys is before.keys
    assert after.tenants is not before.tenants
    assert "globex" not in before.tenants


def test_collections_cannot_be_changed() -> None:
    snapshot = apply_events(RegistrySnapshot(), [event(pb.Tenant(id="acme"), 2)], 2)
    with pytest.raises(TypeError):
        snapshot.tenants["x"] = pb.Tenant()  # type: ignore[index]


def test_unreadable_value_is_a_fault_until_it_is_mended() -> None:
    key = keys.key("tenants", "acme")
    good = apply_events(RegistrySnapshot(), [event(pb.Tenant(id="acme"), 2), event(pb.Tenant(id="globex"), 2)], 2)
    bad = apply_events(good, [WatchEvent(key, b"\xff{", 3)], 3)
    assert set(bad.tenants) == {"globex"}
    assert set(bad.faults) == {key}
    assert not apply_events(bad, [event(pb.Tenant(id="acme"), 4)], 4).faults
    assert not apply_events(bad, [WatchEvent(key, None, 4)], 4).faults


def test_unknown_fields_and_foreign_keys_are_tolerated() -> None:
    from_the_future = b"\xd2\x3e\x01x"
    events = [
        WatchEvent(keys.key("tenants", "acme"), keys.encode(pb.Tenant(id="acme")) + from_the_future, 2),
        WatchEvent(keys.AUDIT_OUTBOX + "r1", b"\x00", 2),
        WatchEvent(keys.key("limits", "no-model"), keys.encode(pb.Limits(tenant="no", model="model")), 2),
        WatchEvent("/weir/v2/elsewhere/x", b"", 2),
        WatchEvent("/weir/v1/tenants/old", b"{}", 2),
    ]
    snapshot = apply_events(RegistrySnapshot(), events, 2)
    assert set(snapshot.tenants) == {"acme"}
    assert not snapshot.faults
    assert not snapshot.limits


@pytest.mark.parametrize(
    "message", [pb.Tenant(id="other"), pb.Limits(tenant="acme", model="*"), pb.PlanPolicy(id="acme")]
)
def test_what_says_that_it_is_something_else_is_a_fault(message: Message) -> None:
    key = keys.key("tenants", "acme")
    snapshot = apply_events(RegistrySnapshot(), [WatchEvent(key, keys.encode(message), 2)], 2)
    assert not snapshot.tenants
    assert set(snapshot.faults) == {key}


def test_foreign_message_has_no_key() -> None:
    with pytest.raises(KeyError):
        keys.key_of(pb.GetRequest())


def test_kinds_that_are_not_followed_are_unknown_and_not_empty() -> None:
    empty = following({"tenants", "limits"})
    snapshot = apply_events(empty, [event(message, 7) for message in EVERYTHING], 7, kinds={"tenants", "limits"})
    assert set(snapshot.tenants) == {"acme"}
    assert set(snapshot.limits) == {("acme", "*")}
    for kind in KINDS:
        collection = getattr(snapshot, ATTRIBUTE[kind.plural])
        if kind.plural in ("tenants", "limits"):
            continue
        for look in (lambda c: c.get("x"), len, list, bool, lambda c: "x" in c, lambda c: c["x"]):
            with pytest.raises(RuntimeError, match="kinds"):
                look(collection)


_KEYS = st.sampled_from(
    [
        *(keys.key("tenants", name) for name in "abc"),
        keys.key("limits", "a/*"),
        keys.key("limits", "a/m@1"),
        keys.key("slos", "generate/*"),
        keys.key("levels", "demo"),
        keys.key("endpoints", "worker/w0"),
        keys.AUDIT_OUTBOX + "x",
        keys.key("tenants", ""),
    ]
)
_VALUES = st.sampled_from(
    [
        None,
        b"",
        b"broken",
        b"\xff\xfe",
        *(keys.encode(pb.Tenant(id=name, plan=plan)) for name in "ab" for plan in (0, 1)),
        keys.encode(pb.Limits(tenant="a", model="*")),
        keys.encode(pb.PoolLevel(pool="demo")),
        keys.encode(pb.Endpoint(service="worker", instance="w0", zone="z")),
    ]
)
_TRANSACTIONS = st.lists(st.dictionaries(_KEYS, _VALUES, min_size=1, max_size=4), max_size=12)


def contents(snapshot: RegistrySnapshot) -> dict[str, object]:
    return {
        name: dict(value) if isinstance(value, Mapping) else value
        for name in RegistrySnapshot.__slots__
        if (value := getattr(snapshot, name)) is not None
    }


@settings(max_examples=150, deadline=None)
@given(_TRANSACTIONS, st.data())
def test_events_give_what_a_fresh_listing_gives(
    transactions: list[dict[str, bytes | None]], data: st.DataObject
) -> None:
    async def play() -> None:
        store = MemoryStore()
        known: dict[str, int] = {}
        followed = snapshot_of((), 1)
        for transaction in transactions:
            before = store.revision
            await store.txn(
                puts=[Put(key, value) for key, value in transaction.items() if value is not None],
                deletes=[key for key, value in transaction.items() if value is None],
            )
            if store.revision == before:
                continue
            listing = await store.get_prefix(keys.EVERYTHING)
            if data.draw(st.booleans(), label="follow now"):
                batch = listing_diff(listing, known)
                # No batch: what changed meanwhile was undone again, so only the revision went on.
                events = batch.events if batch is not None else ()
                followed = apply_events(followed, events, listing.revision)
                known = {kv.key: kv.mod_revision for kv in listing.kvs}
                assert contents(followed) == contents(snapshot_of(listing.kvs, listing.revision))

    asyncio.run(play())


@settings(max_examples=100, deadline=None)
@given(_TRANSACTIONS, st.integers(0, 12))
def test_watch_gives_what_a_fresh_listing_gives(transactions: list[dict[str, bytes | None]], compact_at: int) -> None:
    async def play() -> None:
        store = MemoryStore()
        followed = snapshot_of((), 1)
        for number, transaction in enumerate(transactions):
            if number == compact_at:
                store.compact()
            await store.txn(
                puts=[Put(key, value) for key, value in transaction.items() if value is not None],
                deletes=[key for key, value in transaction.items() if value is None],
            )
        end = await store.txn(puts=[Put(keys.ROOT + "end", b"")])
        batches = store.watch(keys.EVERYTHING, 2, known={})
        while followed.revision < end.revision:
            batch = await anext(batches)
            assert batch.revision > followed.revision
            followed = apply_events(followed, batch.events, batch.revision)
        await batches.aclose()
        listing = await store.get_prefix(keys.EVERYTHING)
        assert contents(followed) == contents(snapshot_of(listing.kvs, listing.revision))

    asyncio.run(play())
