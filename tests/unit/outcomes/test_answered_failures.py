"""What something else answered because its version failed: users lack nothing, and the version's arm failed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from weir.registry.v1 import registry_pb2

from libs.clock import SystemClock
from libs.errors import Reason, WeirError
from libs.outcomes import ArmKey, Objectives, Ran, Recorder
from libs.quota.prices import PriceBook
from libs.routing import Route

ARM = ArmKey("m", "r1", 3, 0, "canary")
ROUTE = Route("m@2", "canary", "predict", "classical", (), 1, rollout_id="r1")
SMALLER = Ran(whole=True, first=0.01, total=0.01, model_version="small@1", model="m", rows=1)


def recorder() -> Recorder:
    rollouts = {"m": registry_pb2.Rollout(alias="m", id="r1", baseline="m@1")}
    known: Any = SimpleNamespace(
        costs=PriceBook({}),
        snapshot=SimpleNamespace(rollouts=rollouts, model_versions={}),
        objectives=lambda *_: Objectives(availability=True),
        arm_key=lambda *_: ARM,
        key_bucket=lambda *_: 7,
    )
    return Recorder(known, clock=SystemClock())


@pytest.mark.parametrize(("reason", "errors"), [(Reason.ENGINE_ERROR, 1), (Reason.REJECTED_QUEUE_FULL, 0)])
@pytest.mark.parametrize("answered", [True, False])
def test_the_arm_hears_of_it_and_the_objectives_of_users_only_where_nothing_answered(
    reason: Reason, errors: int, *, answered: bool
) -> None:
    outcomes = recorder()
    begun = outcomes.began(ARM, None, given=1.0, model_version="m@2", route="predict", tier="classical")
    outcomes.refused(
        route="predict",
        model="m",
        asked=ROUTE,
        error=WeirError(reason, ""),
        given=1.0,
        over_quota=False,
        begun=begun,
        answered=answered,
    )
    if answered:
        outcomes.ended(SMALLER, route="predict", tier="classical", given=1.0, arm=None, begun=begun)
    arm, users = outcomes.table.arm(ARM), outcomes.table.objectives("predict", "classical")
    assert arm is not None
    assert users is not None
    assert (arm.errors, sum(arm.cohorts.started), sum(arm.cohorts.ended)) == (errors, 1, 1)
    found = users.objectives["availability"]
    assert (found.good, found.bad) == ((1, 0) if answered else (0, 1))
