"""A gateway under test with a rollout of its alias "tiny": everybody is on the canary, tiny@2, until a test says
otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from google.protobuf import duration_pb2
from weir.registry.v1 import registry_pb2
from weir.router.v1 import router_pb2

from libs.registry import RegistrySnapshot
from libs.routing import Route, RouteRequest
from tests.support.leaves import MODEL, Rig

CANDIDATE = "tiny@2"
TOKENIZER = "7" * 64
CANARY = registry_pb2.ROLLOUT_PHASE_CANARY


async def seen(mesh: Rig, holds: Callable[[RegistrySnapshot], object]) -> None:
    """Until the gateway's snapshot is so."""
    async with asyncio.timeout(10):
        while not holds(mesh.gateway._catalog.snapshot):  # noqa: ASYNC110 - a watch of the store
            await asyncio.sleep(0.01)


def rollout(**fields: Any) -> registry_pb2.Rollout:
    """All traffic on the canary."""
    state = registry_pb2.RolloutState(
        phase=fields.pop("phase", CANARY), step=fields.pop("step", 0), weights=fields.pop("weights", [10_000])
    )
    given = {
        "alias": "tiny",
        "id": "r1",
        "baseline": MODEL,
        "arms": [registry_pb2.RolloutArm(name="canary", model_version=CANDIDATE)],
        "steps": [registry_pb2.RolloutStep(weight=10_000)],
        "state": state,
        "keep_warm": duration_pb2.Duration(seconds=60),
        **fields,
    }
    return registry_pb2.Rollout(**given)


async def begin(
    mesh: Rig, *, tokenizer: str = TOKENIZER, candidate: dict[str, Any] | None = None, **fields: Any
) -> None:
    """Register the candidate and write the rollout; the router decides by the gateway's own snapshot."""
    known = mesh.gateway._catalog.snapshot.model_versions[MODEL]
    baseline, other = registry_pb2.ModelVersion(), registry_pb2.ModelVersion()
    baseline.CopyFrom(known)
    baseline.tokenizer_sha256 = tokenizer
    other.CopyFrom(known)
    other.version, other.digest, other.tokenizer_sha256 = "2", "e" * 64, TOKENIZER
    for name, value in (candidate or {}).items():
        other.ClearField(name)  # type: ignore[arg-type]
        other.MergeFrom(registry_pb2.ModelVersion(**{name: value}))
    written = rollout(**fields)
    for message in (baseline, other, written):
        await mesh.put(message)
    await seen(mesh, lambda snapshot: snapshot.rollouts.get("tiny") and snapshot.rollouts["tiny"].id == written.id)

    def handle(call: Any, context: Any) -> router_pb2.RouterReply:
        if call.HasField("report"):
            return router_pb2.RouterReply(noted=router_pb2.OutcomesNoted())
        asked = call.resolve
        question = RouteRequest(
            asked.tenant, asked.model, zone=asked.zone, user=asked.user, session=asked.session,
            request_id=asked.request_id,
        )  # fmt: skip
        return router_pb2.RouterReply(route=encoded(mesh.gateway._catalog.resolve(question)))

    mesh.router.handler = handle


def encoded(route: Route) -> router_pb2.Route:
    """As the router tells it."""
    message = router_pb2.Route(
        model_version=route.model_version,
        arm=route.arm,
        pool=route.pool,
        tier=route.tier,
        zones=route.zones or ["zone-a"],
        revision=route.revision,
        rollout_id=route.rollout_id,
        step=route.step,
    )
    if route.mirror is not None:
        mirror = route.mirror
        message.mirror.CopyFrom(
            router_pb2.Mirror(model_version=mirror.model_version, arm=mirror.arm, pool=mirror.pool, tier=mirror.tier)
        )
    return message


async def end(mesh: Rig, phase: registry_pb2.RolloutPhase, **fields: Any) -> None:
    """The rollout is in another phase, without weights."""
    await mesh.put(rollout(phase=phase, weights=[], **fields))
    await seen(mesh, lambda snapshot: snapshot.rollouts["tiny"].state.phase == phase)


def model_directory(mesh: Rig) -> Path:
    """Where the tokenizer lies."""
    return Path(mesh.gateway._catalog.snapshot.model_versions[MODEL].source)
