"""A view over the registry ends with what a view over its store has, whatever happens to either on the way."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from weir.registry.v1 import registry_pb2 as pb

from libs.config import ServiceSettings
from libs.errors import Reason, WeirError
from libs.registry import EtcdStore, MemoryStore, Put, RegistrySnapshot, RegistryView, Store, follow, keys, remote
from libs.registry.follow import followed_by
from libs.registry.remote import RegistrySource
from libs.resources.kinds import ATTRIBUTE, KINDS
from services.registry import watching
from tests.support.etcd import EtcdServer, free_ports
from tests.support.registry_service import (
    OWNER,
    certificates,
    peers,
    put,
    running_of,
    settings,
    snapshot_in,
    tenant,
)
from tests.support.world import BUDGET, applied, observed

ALL = [kind.plural for kind in KINDS]


@contextlib.asynccontextmanager
async def following(view: RegistryView) -> AsyncIterator[RegistryView]:
    task = asyncio.create_task(view.run())
    try:
        yield view
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await view.close()


class Registry:
    """A registry that may be away, at one address."""

    def __init__(self, folder: Path, store: Store) -> None:
        [port] = free_ports(1)
        self.target = f"127.0.0.1:{port}"
        self._config = settings(folder, port=port)
        self._store = store
        self._running: contextlib.AsyncExitStack | None = None

    async def start(self) -> None:
        if self._running is None:
            self._running = contextlib.AsyncExitStack()
            await self._running.enter_async_context(running_of(self._config, self._store))

    async def stop(self) -> None:
        if self._running is not None:
            running, self._running = self._running, None
            await running.aclose()


def contents(snapshot: RegistrySnapshot, plurals: Sequence[str] = ALL) -> Mapping[str, Any]:
    return {plural: dict(getattr(snapshot, ATTRIBUTE[plural])) for plural in plurals}


async def until_end(view: RegistryView, revision: int) -> RegistrySnapshot:
    async with asyncio.timeout(30):
        return await view.wait_until(lambda s: "end" in s.tenants and s.tenants["end"].revision == revision)


MESSAGES = [
    tenant("a"),
    tenant("b"),
    pb.Limits(tenant="a", model="*", requests_per_minute=1),
    BUDGET,
    *observed(),
    pb.ApiKey(id="k", tenant="a"),
]
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("write"),
            st.dictionaries(st.integers(0, len(MESSAGES) - 1), st.booleans(), min_size=1, max_size=3),
        ),
        st.tuples(st.sampled_from(["stop", "start", "compact", "fence", "wait", "unreadable"]), st.none()),
    ),
    max_size=14,
)


async def step(what: str, which: dict[int, bool] | None, store: MemoryStore, registry: Registry) -> None:
    if what == "stop":
        await registry.stop()
    elif what == "start":
        await registry.start()
    elif what == "compact":
        store.compact()
    elif what == "fence":
        await store.txn(puts=[Put(keys.FENCE, b"x"), Put(keys.AUDIT_OUTBOX + "1", b"x")])
    elif what == "unreadable":
        await store.txn(puts=[Put(keys.key_of(MESSAGES[0]), b"\xff")])
    elif what == "wait":
        await asyncio.sleep(0.005)
    for number, alive in (which or {}).items():
        key = keys.key_of(MESSAGES[number])
        if alive:
            await put(store, MESSAGES[number])
        else:
            await store.txn(deletes=[key])


@examples(max_examples=80)
@given(STEPS)
def test_views_over_the_registry_and_over_its_store_agree(steps: list[tuple[str, dict[int, bool] | None]]) -> None:
    async def play(folder: Path) -> None:
        store = MemoryStore()
        registry = Registry(folder, store)
        await registry.start()
        async with (
            following(RegistryView(RegistrySource(registry.target, ALL))) as remote,
            following(RegistryView(store)) as direct,
        ):
            for what, which in steps:
                await step(what, which, store, registry)
            await registry.start()
            end = await put(store, tenant("end"))
            assert contents(await until_end(remote, end)) == contents(await until_end(direct, end))
        await registry.stop()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(Path(folder)))


async def test_a_restored_store_and_a_compacted_one_reach_those_who_follow(tmp_path: Path, etcd: EtcdServer) -> None:
    store = EtcdStore([etcd.endpoint])
    registry = Registry(tmp_path, store)
    await registry.start()
    source = RegistrySource(registry.target, ALL)
    async with following(RegistryView(source)) as view, following(RegistryView(EtcdStore([etcd.endpoint]))) as direct:
        await put(store, tenant("kept", display_name="then"), *observed())
        etcd.snapshot(tmp_path / "backup")
        for number in range(9):
            await put(store, tenant("kept", display_name=str(number)), tenant(f"lost{number}"))
        await until_end(view, await put(store, tenant("end")))
        etcd.stop()
        etcd.restore(tmp_path / "backup")
        etcd.start()
        async with asyncio.timeout(30):
            await view.wait_until(lambda s: "end" not in s.tenants)
        end = await put(store, tenant("end"))
        assert contents(await until_end(view, end)) == contents(await until_end(direct, end))
        assert view.snapshot.tenants["kept"].display_name == "then"
        # Away while the store forgets.
        await registry.stop()
        await put(store, tenant("new"))
        await store.txn(deletes=[keys.key("tenants", "kept")])
        last = await put(store, tenant("end"))
        etcd.compact(last)
        assert "new" not in view.snapshot.tenants
        await registry.start()
        assert contents(await until_end(view, last)) == contents(await until_end(direct, last))
    await registry.stop()
    await store.close()


async def test_equal_revisions_of_a_restored_store_are_not_taken_for_equal_values(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    store = EtcdStore([etcd.endpoint])
    registry = Registry(tmp_path, store)
    await put(store, tenant("kept"))
    etcd.snapshot(tmp_path / "backup")
    lost = await put(store, tenant("twin", display_name="lost"))
    for _ in range(3):
        end = await put(store, tenant("end"))
    await registry.start()
    async with following(RegistryView(RegistrySource(registry.target, ALL))) as view:
        await until_end(view, end)
        await registry.stop()
        etcd.stop()
        etcd.restore(tmp_path / "backup")
        etcd.start()
        assert await put(store, tenant("twin", display_name="found")) == lost
        await registry.start()
        async with asyncio.timeout(30):
            snapshot = await view.wait_until(lambda s: "end" not in s.tenants)
        assert snapshot.tenants["twin"].display_name == "found"
    await registry.stop()
    await store.close()


async def test_another_process_of_the_registry_goes_on_where_one_was(tmp_path: Path) -> None:
    """Whoever is behind its store for a moment is waited for, and not taken for another history."""
    store = MemoryStore()
    one, two = Registry(tmp_path, store), Registry(tmp_path, store)
    await one.start()
    target = f"ipv4:{one.target},{two.target}"
    async with following(RegistryView(RegistrySource(target, ALL))) as view:
        batches: list[tuple[int, bool]] = []
        view.on_batch(lambda batch: batches.append((batch.revision, batch.merged)))
        end = await put(store, tenant("end"))
        await until_end(view, end)
        for stopping, starting in ((one, two), (two, one)):
            await starting.start()
            await stopping.stop()
            end = await put(store, tenant("end"))
            await until_end(view, end)
    revisions = [revision for revision, _ in batches]
    assert revisions == sorted(set(revisions))
    await one.stop()


async def test_a_process_that_hangs_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bookmarks are signs of life; without any the watch is opened anew."""
    monkeypatch.setattr(remote, "_SILENT", 0.2)
    store = MemoryStore()
    registry = Registry(tmp_path, store)
    await registry.start()
    async with following(RegistryView(RegistrySource(registry.target, ALL))) as view:
        await until_end(view, await put(store, tenant("end")))
        async with asyncio.timeout(10):
            while view.live:  # noqa: ASYNC110 - it has no event for that
                await asyncio.sleep(0.01)
        monkeypatch.setattr(watching, "BOOKMARK", 0.05)
        end = await put(store, tenant("end"))
        await until_end(view, end)
        assert view.live
    await registry.stop()


async def test_services_follow_their_rows_over_mutual_tls(tmp_path: Path) -> None:
    """As `follow` wires it: with a certificate, by the service's row, and secrets where the row says so."""
    store = MemoryStore()
    key = pb.ApiKey(id="k", tenant="acme", hash=b"x" * 32)
    await put(store, *applied(), *observed(), key)
    tls = certificates(tmp_path, "edge-auth", "worker")
    async with peers(tmp_path, store, OWNER) as mesh:
        config = ServiceSettings(service="edge-auth", instance="e0", registry=mesh.target, tls=tls["edge-auth"])
        async with following(follow("edge-auth", config)) as view, asyncio.timeout(20):
            await view.wait_ready()
            plurals = followed_by("edge-auth")
            assert contents(view.snapshot, plurals) == contents(await snapshot_in(store), plurals)
            assert view.snapshot.keys["k"].hash == key.hash
            with pytest.raises(RuntimeError, match="kinds"):
                view.snapshot.limits.get(("acme", "*"))
        stranger = RegistrySource(mesh.target, ["keys"], tls=tls["worker"])
        with pytest.raises(WeirError) as caught:
            await stranger.get_prefix(keys.EVERYTHING)
        assert caught.value.reason is Reason.DEPENDENCY_UNAVAILABLE
        await stranger.close()
