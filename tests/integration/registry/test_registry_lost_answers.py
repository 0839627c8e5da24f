"""Whatever answer of the store gets lost, a call is carried out once, and says what came of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from weir.registry.v1 import registry_pb2 as pb

from libs.authority.operators import CHANGES
from libs.errors import Reason, WeirError
from libs.registry import Compare, MemoryStore, Put, TxnResult
from tests.support.registry_service import (
    Client,
    alias,
    model,
    outcomes,
    put,
    refused,
    serving,
    settings,
    stored,
    tenant,
)
from tests.support.world import SLO, WORKER, canary


class Losing(MemoryStore):
    """Loses the answers of the next transactions, before or after they were carried out."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []

    async def txn(
        self, *, compares: Sequence[Compare] = (), puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> TxnResult:
        fault = self.faults.pop(0) if self.faults and compares else ""
        if fault == "before":
            raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "lost")
        result = await super().txn(compares=compares, puts=puts, deletes=deletes)
        if fault == "after":
            raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "lost")
        return result


WHY = pb.ChangeOptions(reason="why")


async def prepared(client: Client) -> dict[str, Callable[[], Awaitable[Any]]]:
    await client.apply(model(), model(version="2"), SLO, alias(), canary(), tenant("gone"))
    abort = pb.SteerRolloutRequest(alias="weir-fast", steering=pb.STEERING_ABORT, change=WHY)
    await client.SteerRollout(abort)
    made = await client.CreateKey(pb.CreateKeyRequest(tenant="gone", scopes=["inference"]))
    then = (await client.apply(tenant())).revision
    await client.apply(tenant(display_name="later"))
    restart = pb.SteerRolloutRequest(alias="weir-fast", steering=pb.STEERING_RESTART, change=WHY)
    key = pb.CreateKeyRequest(tenant="acme", scopes=["inference"], change=WHY)
    return {
        "Apply": lambda: client.apply(tenant("new"), model(version="3"), reason="why"),
        "Delete": lambda: client.delete("Rollout/weir-fast", reason="why"),
        "CreateKey": lambda: client.CreateKey(key),
        "RevokeKey": lambda: client.RevokeKey(pb.RevokeKeyRequest(key_id=made.key.metadata.name, change=WHY)),
        "SteerRollout": lambda: client.SteerRollout(restart),
        "Rollback": lambda: client.Rollback(pb.RollbackRequest(to_revision=then, change=WHY)),
    }


@pytest.mark.parametrize("fault", ["before", "after"])
@pytest.mark.parametrize("rpc", sorted(CHANGES | {"Rollback"}))
async def test_a_call_is_carried_out_once(tmp_path: Path, rpc: str, fault: str) -> None:
    store = Losing()
    await put(store, WORKER)
    async with serving(settings(tmp_path), store) as (client, _):
        call = (await prepared(client))[rpc]
        before = (await client.newest()).revision
        store.faults = [fault]
        await call()
        entries = (await client.History(pb.HistoryRequest())).entries
        assert [entry.action for entry in entries if entry.revision > before] == [f"registry.{rpc}"]
        # What it changed is what is there.
        last = {change.resource: bool(change.after) for change in entries[0].changes}
        there = await stored(store)
        assert last
        assert {name: name in there for name in last} == last


async def test_an_answer_that_is_lost_twice_is_said_to_be_unclear(tmp_path: Path) -> None:
    store = Losing()
    async with serving(settings(tmp_path), store) as (client, _):
        store.faults = ["before", "before"]
        error = await refused(client.apply(tenant()))
        assert (error.reason, "unclear" in error.message) == (Reason.DEPENDENCY_UNAVAILABLE, True)
        # Sent again by whoever asked, it is carried out, or was.
        assert outcomes((await client.apply(tenant())).results) == {"Tenant/acme": "CREATED"}
