"""What a call's end says of its arm and of the objectives, and what is recorded, beside what its caller got."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from inference.open_inference_pb2 import ModelInferResponse
from weir.audit.v1 import audit_pb2
from weir.registry.v1 import registry_pb2 as pb

from libs.clock import ManualClock
from libs.errors import Reason, WeirError
from libs.outcomes import ArmKey, Objectives, Recorder
from libs.quota.prices import PriceBook
from libs.registry import MemoryStore, Put, keys
from libs.rollouts import BASELINE
from libs.routing import Route
from libs.telemetry.tracing import span
from services.predictor.account import Account
from services.predictor.call import Answer, Call, Rank, Stages
from services.predictor.ladder import PRIOR, SMALLER
from services.predictor.records import Records
from tests.support.predictor import question
from tests.support.routers import catalog_of

ARM = ArmKey("m", "r1", 3, 0, "canary")
ROUTE = Route("m@2", "canary", "predict", "classical", (), 1, rollout_id="r1")
BROKE = WeirError(Reason.ENGINE_ERROR, "m@2: it broke")


class Audit:
    """In the writer's place."""

    full = False

    def __init__(self) -> None:
        self.written: list[audit_pb2.Record] = []

    def open(self, record: audit_pb2.Record) -> int:
        """See `AuditWriter`."""
        return 7

    def write(self, record: audit_pb2.Record, place: int = 0, *, traceparent: str) -> None:
        """See `AuditWriter`."""
        self.written.append(record)


class World:
    """An account over a rollout whose canary is m@2."""

    def __init__(self) -> None:
        self.clock, self.audit = ManualClock(), Audit()
        catalog: Any = SimpleNamespace(
            costs=PriceBook({}),
            prices=PriceBook({}),
            snapshot=SimpleNamespace(rollouts={"m": pb.Rollout(alias="m", id="r1", baseline="m@1")}, model_versions={}),
            objectives=lambda *_: Objectives(availability=True),
            arm_key=lambda alias, route: ARM if route.rollout_id else None,
            key_bucket=lambda *_: 7,
            tenant=lambda _: pb.Tenant(id="acme", plan=pb.PLAN_PAID),
            plan=lambda _: SimpleNamespace(serve_over_quota=False),
            told=lambda model: model,
        )
        self.outcomes = Recorder(catalog, clock=self.clock)
        self.account = Account(
            catalog=catalog,
            quota=SimpleNamespace(settle=lambda _: None),  # type: ignore[arg-type]
            audit=self.audit,  # type: ignore[arg-type]
            outcomes=self.outcomes,
            records=Records(source="predictor/a", zone="a", clock=self.clock),
            clock=self.clock,
            chance=lambda: 0.5,
            life="1",
            mirror=lambda *_: None,
            most=1,
        )
        reservation = SimpleNamespace(over_quota=False, local=False)
        held = SimpleNamespace(id="l-1", used=0, reservation=reservation, end=lambda rows, used: None)
        self.account._leases = SimpleNamespace(draw=lambda key, rows: held)  # type: ignore[assignment]

    async def end(self, ended: Answer | WeirError, **how: Any) -> None:
        """A call from its lease to its end."""
        asked = call()
        lease = await self.account.acquire(asked, **how)
        self.account.settle(lease, asked, ended)

    @property
    def canary(self) -> tuple[int, int, int]:
        """Calls that began there, that ended, and that failed."""
        found = self.outcomes.table.arm(ARM)
        return (0, 0, 0) if found is None else (sum(found.cohorts.started), sum(found.cohorts.ended), found.errors)

    @property
    def users(self) -> tuple[int, int]:
        """Calls that were good and bad for availability."""
        found = self.outcomes.table.objectives("predict", "classical")
        return (
            (0, 0) if found is None else (found.objectives["availability"].good, found.objectives["availability"].bad)
        )


def call(route: Route = ROUTE) -> Call:
    return Call(
        request=question([[1, 2, 3, 4]]),
        tenant="acme",
        model="m",
        route=route,
        request_id="r-1",
        rows=1,
        arrived=0.0,
        deadline=1.0,
        given=1.0,
        rank=Rank.PAID,
        span=span("predict"),
    )


def answer(version: str, *degraded: str, cause: WeirError | None = None) -> Answer:
    response = ModelInferResponse()
    return Answer(response=response, version=version, rows=1, stages=Stages(), degraded=degraded, cause=cause)


@pytest.mark.parametrize(
    ("ended", "canary", "users"),
    [
        (answer("m@2"), (1, 1, 0), (1, 0)),
        (answer("m@1", SMALLER, cause=BROKE), (1, 1, 1), (1, 0)),
        (answer("m@2", PRIOR, cause=BROKE), (1, 1, 1), (0, 0)),
        (answer("m@1", SMALLER, cause=WeirError(Reason.REJECTED_QUEUE_FULL, "")), (1, 1, 0), (1, 0)),
        (BROKE, (1, 1, 1), (0, 1)),
        (WeirError(Reason.INVALID_REQUEST, ""), (1, 1, 0), (0, 0)),
    ],
)
async def test_an_arm_hears_what_its_version_did_and_users_what_they_got(
    ended: Answer | WeirError, canary: tuple[int, int, int], users: tuple[int, int]
) -> None:
    world = World()
    await world.end(ended)
    assert (world.canary, world.users) == (canary, users)


async def test_what_is_not_to_be_judged_is_in_no_arms_counts() -> None:
    world = World()
    await world.end(WeirError(Reason.REJECTED_QUEUE_FULL, "", limit="tenant_crashes"), judged=False)
    assert (world.canary, world.users) == ((0, 0, 0), (0, 0))
    await world.end(answer("m@1", SMALLER), judged=False)
    assert (world.canary, world.users) == ((0, 0, 0), (1, 0))


def test_what_has_no_version_leaves_a_record_and_says_nothing() -> None:
    world = World()
    world.account.refused(call(Route("", "", "", "", (), 0)), WeirError(Reason.MODEL_NOT_FOUND, ""))
    [record] = world.audit.written
    event = record.request
    assert (event.tenant, event.outcome, event.reason, event.model_version) == (
        *("acme", "rejected", "MODEL_NOT_FOUND"),
        "",
    )
    assert (world.canary, world.users) == ((0, 0, 0), (0, 0))


async def test_only_a_rollouts_other_arms_have_a_baseline() -> None:
    store = MemoryStore()
    rollout = pb.Rollout(alias="m", id="r1", baseline="m@1", arms=[pb.RolloutArm(name="canary", model_version="m@2")])
    await store.txn(puts=[Put(keys.key_of(rollout), keys.encode(rollout))])
    catalog = await catalog_of(store)
    assert catalog.baseline("m", ROUTE) == "m@1"
    own = Route("m@1", BASELINE, "predict", "classical", (), 1, rollout_id="r1")
    former = Route("m@2", "canary", "predict", "classical", (), 1, rollout_id="r0")
    outside = Route("m@2", "canary", "predict", "classical", (), 1)
    assert [catalog.baseline("m", route) for route in (own, former, outside)] == [None] * 3
    assert catalog.baseline("other", ROUTE) is None
