"""A registry that is saved by `List(secrets)` and filled again by `Apply(restore)` holds the same bytes."""

from __future__ import annotations

from pathlib import Path

from weir.registry.v1 import registry_pb2 as pb

from libs import apikeys
from libs.changes import resource_of
from libs.errors import Reason
from libs.registry import EtcdStore, MemoryStore
from libs.resources.codec import key_of
from tests.support.etcd import EtcdServer
from tests.support.registry_service import (
    PEPPER,
    Client,
    outcomes,
    put,
    refused,
    resource,
    serving,
    settings,
    snapshot_in,
    stored,
    tenant,
)
from tests.support.world import WORKER, applied, canary, observed


async def fill(client: Client) -> str:
    """A little of everything; a key's secret."""
    await client.apply(*applied(), owner="dir")
    await client.apply(resource(tenant("labelled", display_name="Äcme"), labels={"team": "a"}))
    why = pb.ChangeOptions(reason="once")
    await client.SteerRollout(pb.SteerRolloutRequest(alias="weir-fast", steering=pb.STEERING_PAUSE, change=why))
    made = await client.CreateKey(pb.CreateKeyRequest(tenant="acme", scopes=["inference"]))
    gone = await client.CreateKey(pb.CreateKeyRequest(tenant="acme", scopes=["inference"]))
    await client.RevokeKey(pb.RevokeKeyRequest(key_id=gone.key.metadata.name))
    return str(made.secret)


async def test_what_was_saved_is_restored_byte_for_byte(tmp_path: Path, etcd: EtcdServer) -> None:
    original, copy = EtcdStore([etcd.endpoint]), MemoryStore()
    await put(original, *observed())
    async with serving(settings(tmp_path), original) as (client, _), serving(settings(tmp_path), copy) as (other, _):
        secret = await fill(client)
        saved = await client.listed(secrets=True, page_size=4)
        leased = ("levels/", "endpoints/")
        assert {resource_of(key_of(each)) for each in saved} == set(await stored(original, *leased))
        tried = await other.apply(*saved, restore=True, dry_run=True)
        assert await stored(copy) == {}
        done = await other.apply(*saved, restore=True, reason="moved")
        assert outcomes(done.results) == outcomes(tried.results)
        assert {each.outcome for each in done.results} == {pb.OUTCOME_CREATED}
        assert await stored(copy) == await stored(original, *leased)
        key = apikeys.parse(secret)
        assert key is not None
        assert apikeys.matches(key, (await snapshot_in(copy)).keys[key.id].hash, PEPPER.encode())
        entry = await other.newest()
        assert (entry.action, entry.reason, entry.revision) == ("registry.Apply", "moved", done.revision)
        assert not any('"hash"' in change.after for change in entry.changes)
        # Again it is as it is; and what was changed since goes back.
        again = await other.apply(*saved, restore=True)
        assert {each.outcome for each in again.results} == {pb.OUTCOME_UNCHANGED}
        await other.apply(tenant("acme", display_name="changed", plan_policy="gold"))
        await other.apply(*saved, restore=True)
        assert await stored(copy) == await stored(original, *leased)
        # To fill an empty registry alone is to say so of each.
        for each in saved:
            each.metadata.revision = -1
        assert (await refused(other.apply(*saved, restore=True))).reason is Reason.ALREADY_EXISTS
    await original.close()


async def test_what_lives_with_its_process_is_not_restored(tmp_path: Path) -> None:
    store = MemoryStore()
    await put(store, WORKER)
    async with serving(settings(tmp_path), store) as (client, _):
        assert await client.names("Endpoint") == ["worker/w0"]
        [seen] = await client.listed("Endpoint", secrets=True)
        seen.metadata.name = "worker/ghost"
        error = await refused(client.apply(seen, restore=True))
        assert (error.reason, error.limit) == (Reason.INVALID_REQUEST, "worker/ghost")


async def test_what_refers_to_nothing_is_not_restored(tmp_path: Path) -> None:
    async with serving(settings(tmp_path), MemoryStore()) as (client, _):
        error = await refused(client.apply(pb.Limits(tenant="gone", model="*"), canary(), restore=True))
        assert error.reason is Reason.INVALID_REQUEST
        assert "limits/gone/* metadata.name" in {field for field, _ in error.faults}
