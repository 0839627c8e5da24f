"""What predictions cost and leave behind: a predictor beside the real limiter and the real audit service."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from inference import open_inference_pb2 as oip
from prometheus_client import REGISTRY
from weir.audit.v1 import audit_pb2
from weir.records.v1 import records_pb2
from weir.registry.v1 import registry_pb2 as pb

from libs.apikeys import user_pseudonym
from libs.errors import Reason, WeirError, from_rpc_error
from libs.quota import ROWS
from libs.rollouts import SHADOW_TENANT
from services.predictor import metrics
from services.predictor.books import Books
from services.predictor.config import Targets
from services.predictor.executors import Crashed
from services.predictor.ladder import SMALLER
from tests.support.audit import audit_service
from tests.support.limiter import Cluster, Node, cluster
from tests.support.predictor import Rig, question, running, trees, until
from tests.support.records import records_service

X = np.arange(12, dtype=np.float32).reshape(3, 4)
PRICE = pb.Price(model="m", row_microusd_per_million=100_000)  # a tenth of a micro-dollar
LIMITS = pb.Limits(tenant="acme", model="*", tokens_per_minute=1, rows_per_minute=1000, requests_per_minute=500)
BUDGET = pb.Budget(tenant="acme", monthly_microusd=10_000)


@dataclass
class World:
    """All of it."""

    rig: Rig
    node: Node
    audit: Any
    audit_port: int

    @property
    def books(self) -> Books:
        """The predictor's."""
        found = self.rig.predictor._books
        assert found is not None
        return found

    async def records(self, count: int, operation: str = "predict") -> list[audit_pb2.RequestEvent]:
        """So many in the log, oldest first."""
        async with asyncio.timeout(20):
            while True:
                told = await self.audit.Tail(audit_pb2.TailRequest(limit=1000), timeout=20)
                found = [each.record.request for each in told.records if each.record.request.operation == operation]
                if len(found) >= count:
                    assert len(found) == count
                    return found
                await asyncio.sleep(0.01)

    def report(self, model: str = ROWS + "m") -> Any:
        """What the limiter says is left."""
        return self.node.service._ledger.report("acme", model, self.node.service._now())

    async def settled(self) -> None:
        """Nothing is reserved any more."""
        self.books.account.drain()
        await until(lambda: not self.node.service._ledger.live_leases)

    async def put(self, *messages: Any) -> None:
        """Tell both registries."""
        await self.node.put(*messages)
        await self.rig.put(*messages)
        view = self.rig.predictor._view
        await until(lambda: view.snapshot.revision >= self.rig.store.revision)


@contextlib.asynccontextmanager
async def world(root: Path, *seed: Any, state: Path | None = None, version: str = "1") -> AsyncIterator[World]:
    async with contextlib.AsyncExitStack() as stack:
        replicas: Cluster = await stack.enter_async_context(cluster())
        node = await replicas.start("ratelimit-0", seed=(LIMITS, PRICE, *seed))
        audit = await stack.enter_async_context(audit_service(root / "audit"))
        rig = await stack.enter_async_context(
            running(
                root,
                books=Books,
                targets=Targets(ratelimit=node.address, audit=f"127.0.0.1:{audit.port}"),
                state_dir=str(state or root / "state"),
                lazy_seconds=0.01,
            )
        )
        await rig.put(LIMITS, PRICE, *seed)
        await rig.pushed(version)
        await rig.loaded(f"m@{version}")
        yield World(rig, node, audit.stub, audit.port)


async def test_a_prediction_is_charged_by_rows_and_leaves_a_record(tmp_path: Path) -> None:
    async with world(tmp_path, BUDGET) as made:
        await made.rig.infer(question(X), x_weir_key_id="k1", x_weir_user="jane", x_request_id="r-0000-0001")
        [record] = await made.records(1)
        assert (record.request_id, record.tenant, record.key_id, record.model) == ("r-0000-0001", "acme", "k1", "m")
        assert (record.model_version, record.outcome, record.rows, record.queue_class) == ("m@1", "ok", 3, "paid")
        assert (record.prompt_tokens, record.completion_tokens, record.spend_microusd) == (0, 0, 1)
        assert record.user == user_pseudonym("acme", "jane")
        assert record.lease.startswith("rows-")
        assert record.duration.nanos
        assert len(record.trace_id) == 32
        await made.settled()
        assert made.report().tokens.remaining == 997
        assert made.report().spend.remaining == 10_000 - 1
        assert made.report("fast").tokens.remaining == 1


async def test_together_calls_cost_what_their_rows_cost_and_the_books_agree(tmp_path: Path) -> None:
    async with world(tmp_path, BUDGET) as made:
        await asyncio.gather(*(made.rig.infer(question(X[:1])) for _ in range(40)))
        records = await made.records(40)
        await made.settled()
        spent = sum(record.spend_microusd for record in records)
        assert made.report().spend.remaining == 10_000 - spent
        assert 4 <= spent < 40  # a tenth each, rounded up per lease
        async with records_service(tmp_path / "records", made.audit_port) as store:
            [row] = (await store.stub.Usage(records_pb2.UsageRequest(by=["model"]), timeout=20)).rows
        assert (row.requests, row.predictions, row.rows, row.spend_microusd) == (40, 40, 40, spent)


def accelerator_seconds() -> float:
    return REGISTRY.get_sample_value("weir_tenant_accelerator_seconds_total", {"tenant": "acme"}) or 0.0


async def test_the_time_of_executions_is_shared_among_the_rows_of_their_batches(tmp_path: Path) -> None:
    before = accelerator_seconds()
    async with world(tmp_path) as made:
        await asyncio.gather(*(made.rig.infer(question(X[: 1 + turn % 3])) for turn in range(40)))
        [(_, counts)] = metrics.VERSIONS._statistics
    took = sum(batches.infer.seconds for batches in counts.by_size.values())
    assert took > 0
    assert accelerator_seconds() - before == pytest.approx(took)


async def test_beyond_its_rows_a_tenant_is_refused_by_name_and_that_is_recorded(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.put(pb.Limits(tenant="acme", model="m", rows_per_minute=4))
        await made.rig.infer(question(X))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await made.rig.infer(question(X))
        assert from_rpc_error(refused.value).reason is Reason.QUOTA_ROWS
        assert "4 rows per minute for model m" in (refused.value.details() or "")
        await made.rig.infer(question(X[:1]))
        outcomes = [(each.outcome, each.reason, each.rows) for each in await made.records(3)]
        assert outcomes == [("ok", "", 3), ("rejected", "QUOTA_ROWS", 0), ("ok", "", 1)]


async def test_what_the_model_refuses_costs_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        bad = question(X)
        bad.raw_input_contents[0] = bad.raw_input_contents[0][:-1]
        with pytest.raises(grpc.aio.AioRpcError):
            await made.rig.infer(bad)
        [record] = await made.records(1)
        assert (record.outcome, record.reason, record.rows) == ("rejected", "INVALID_REQUEST", 0)
        await made.settled()
        assert made.report().tokens.remaining == 1000


async def test_what_is_refused_before_its_version_is_known_is_counted_and_recorded_too(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        counts = [metrics.REFUSED.labels(name) for name in ("MODEL_NOT_FOUND", "INVALID_REQUEST")]
        before = [each._value.get() for each in counts]
        for bad in (question(X, "absent"), question(X, ""), question(X, strange=True)):
            with pytest.raises(grpc.aio.AioRpcError):
                await made.rig.infer(bad, x_weir_user="jane")
        records = await made.records(3)
        assert [(each.model, each.outcome, each.reason) for each in records] == [
            ("<unknown>", "rejected", "MODEL_NOT_FOUND"),
            ("<unknown>", "rejected", "INVALID_REQUEST"),
            ("m", "rejected", "INVALID_REQUEST"),
        ]
        assert {each.user for each in records} == {user_pseudonym("acme", "jane")}
        assert [each._value.get() - past for each, past in zip(counts, before, strict=True)] == [1, 2]


async def test_a_smaller_version_that_answers_instead_is_billed_at_its_own_price(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dear = pb.Price(model="m@2", row_microusd_per_million=10_000_000)
    async with world(tmp_path, BUDGET, dear) as made:
        await made.rig.pushed("2", alias="")
        await made.rig.pushed("3", spec=trees(smaller=["m@2"]))
        for version in ("m@2", "m@3"):
            await made.rig.loaded(version)
        executors = made.rig.predictor._executors
        run = executors.run

        async def broken(version: str, inputs: Any, **more: Any) -> Any:
            if version == "m@3":
                raise Crashed("it broke")
            return await run(version, inputs, **more)

        monkeypatch.setattr(executors, "run", broken)
        await made.rig.infer(question(X))
        [record] = await made.records(1)
        assert (record.model_version, record.rows, record.spend_microusd) == ("m@2", 3, 30)
        assert list(record.degraded) == [SMALLER]
        await made.settled()
        await until(lambda: made.report().spend.remaining == 10_000 - 30)
        assert made.report().tokens.remaining == 997


async def test_who_leaves_while_it_runs_is_billed_what_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path) as made:
        begun = asyncio.Event()

        async def endless(version: str, inputs: Any, **more: Any) -> Any:
            begun.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(made.rig.predictor._executors, "run", endless)
        leaving = asyncio.ensure_future(made.rig.infer(question(X)))
        await begun.wait()
        leaving.cancel()
        [record] = await made.records(1)
        assert (record.outcome, record.reason, record.rows) == ("cancelled", "CANCELLED", 3)
        await made.settled()
        assert made.report().tokens.remaining == 997


async def test_a_storm_of_callers_who_leave_keeps_no_place_and_no_quota(tmp_path: Path) -> None:
    """Half of them while they wait, half in the moment in which theirs would run."""
    async with world(tmp_path) as made:
        predictor, storm = made.rig.predictor, []
        with made.rig.executors_busy("m@1") as waiting:
            storm += [asyncio.ensure_future(made.rig.infer(question(X[:1]), seconds=60.0)) for _ in range(200)]
            await until(lambda: waiting() == 200)
            for early in storm[::2]:
                early.cancel()
            await until(lambda: waiting() == 100)
        for late in storm[1::2]:
            late.cancel()
        ended = await asyncio.gather(*storm, return_exceptions=True)
        assert {type(each) for each in ended} <= {asyncio.CancelledError, oip.ModelInferResponse}
        await until(lambda: not predictor._occupancy.entered)
        assert predictor._predictions.busy() == frozenset()
        assert predictor._executors._versions["m@1"]._batcher.idle
        records = await made.records(200)
        assert {(each.outcome, each.rows) for each in records} <= {("cancelled", 1), ("ok", 1)}
        await made.settled()
        await until(lambda: made.report().tokens.remaining == 800)
        await made.rig.infer(question(X))


async def test_while_limiter_and_audit_log_are_away_predictions_go_on_and_are_recorded_later(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.rig.infer(question(X))
        await made.node.kill()
        answers = await asyncio.gather(*(made.rig.infer(question(X[:1])) for _ in range(5)))
        assert len(answers) == 5
        records = await made.records(6)
        assert sum(each.rows for each in records) == 8
        assert [list(each.degraded) for each in records][-1] == ["quota_local"]


async def test_what_a_killed_predictor_left_is_recorded_and_settled_by_its_next_life(tmp_path: Path) -> None:
    state, killed = tmp_path / "state", tmp_path / "killed"
    async with world(tmp_path, state=state) as made:
        for _ in range(2):  # the second one takes a lease of more than it needs
            await made.rig.infer(question(X))
        await made.records(2)
        account, release = made.books.account, asyncio.Event()
        acquired = asyncio.Event()
        acquire = account.acquire

        async def slow(call: Any, **how: Any) -> Any:
            lease = await acquire(call, **how)
            acquired.set()
            await release.wait()
            return lease

        account.acquire = slow  # type: ignore[method-assign]
        running_call = asyncio.ensure_future(made.rig.infer(question(X), x_request_id="r-0000-lost"))
        await acquired.wait()
        shutil.copytree(state / "audit-journal", killed / "audit-journal")  # as the kernel has it
        release.set()
        await running_call
    async with world(tmp_path / "second", state=killed) as made:
        [record] = await made.records(1)
        assert (record.request_id, record.outcome) == ("r-0000-lost", "predictor_lost")
        assert (record.rows, record.spend_microusd, record.model_version) == (0, 0, "m@1")
        # What the second call had used by then is settled for the lease that it drew from; the first one's was settled.
        await until(lambda: made.report().tokens.remaining == 997)


async def test_rows_that_were_settled_and_nobody_acknowledged_are_settled_by_the_next_life(tmp_path: Path) -> None:
    state, killed = tmp_path / "state", tmp_path / "killed"
    async with world(tmp_path, state=state) as made:
        await made.rig.infer(question(X))
        await made.records(1)
        await made.node.kill()
        made.books.account.drain()
        shutil.copytree(state / "audit-journal", killed / "audit-journal")  # as the kernel has it
    async with world(tmp_path / "second", state=killed) as made:
        await until(lambda: made.report().tokens.remaining == 997)


async def test_a_tenant_that_must_be_audited_is_refused_while_it_cannot_be(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.put(pb.Tenant(id="acme", plan=pb.PLAN_PAID, audit_required=True))
        made.books._audit._journal._refused = True
        made.books._audit._journal._spare = None
        made.books._audit._journal._active = None
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await made.rig.infer(question(X))
        assert from_rpc_error(refused.value).reason is Reason.DEPENDENCY_UNAVAILABLE


SHADOW = pb.Rollout(
    alias="m",
    id="r1",
    baseline="m@1",
    arms=[pb.RolloutArm(name="canary", model_version="m@2")],
    steps=[pb.RolloutStep(weight=1000)],
    shadow=pb.ShadowPlan(share=10_000),
    capacity_share=0.5,
    reason="a test",
    state=pb.RolloutState(phase=pb.ROLLOUT_PHASE_SHADOW),
)


async def test_mirrored_predictions_are_compared_on_a_quota_of_their_own(tmp_path: Path) -> None:
    shadow = pb.Limits(tenant=SHADOW_TENANT, model="m", rows_per_minute=1000, requests_per_minute=1000)
    async with world(tmp_path, shadow, pb.Tenant(id=SHADOW_TENANT, plan=pb.PLAN_FREE)) as made:
        await made.rig.pushed("2", alias="")
        await made.put(SHADOW)
        await made.rig.loaded("m@2")
        table = made.books.account._outcomes.table

        def arm() -> Any:
            return next((table.arm(key) for key in table._arms if key.mirrored), None)

        async with asyncio.timeout(20):
            while arm() is None or arm().requests < 3:
                await made.rig.infer(question(X))
        found = arm()
        assert (found.arm, found.model_version, found.tier, found.route) == ("canary", "m@2", "classical", "predict")
        assert found.errors == 0
        assert found.scores["shadow_distance"].sum == 0
        assert found.scores["shadow_flips"].sum == 0
        users = next(table.arm(key) for key in table._arms if not key.mirrored)
        assert users is not None
        assert (users.arm, users.route) == ("baseline", "predict")
        await until(
            lambda: (
                made.node.service._ledger.report(SHADOW_TENANT, ROWS + "m", made.node.service._now()).tokens.remaining
                < 1000
            )
        )
        records = await made.audit.Tail(audit_pb2.TailRequest(limit=1000), timeout=20)
        assert not [each for each in records.records if "shadow" in each.record.id]


async def test_a_mirrored_version_that_accepts_less_than_its_baseline_fails(tmp_path: Path) -> None:
    shadow = pb.Limits(tenant=SHADOW_TENANT, model="m", rows_per_minute=1000, requests_per_minute=1000)
    narrow = pb.ValueRule(max=float(X.max()) - 1.0, beyond="reject")
    features = pb.TensorSpec(name="features", datatype="FP32", shape=[-1, 4], rules=[narrow])
    async with world(tmp_path, shadow, pb.Tenant(id=SHADOW_TENANT, plan=pb.PLAN_FREE)) as made:
        await made.rig.pushed("2", alias="", spec=trees(inputs=[features]))
        await made.put(SHADOW)
        await made.rig.loaded("m@2")
        table = made.books.account._outcomes.table

        def errors() -> int:
            return sum(table.arm(key).errors for key in table._arms if key.mirrored)

        async with asyncio.timeout(20):
            while not errors():
                await made.rig.infer(question(X))


def test_an_outcome_is_told_by_what_became_of_the_call() -> None:
    from services.predictor.records import outcome_of

    reasons = {
        Reason.CANCELLED: "cancelled",
        Reason.DEADLINE_EXCEEDED: "deadline",
        Reason.EVICTED_DEADLINE: "evicted",
        Reason.REJECTED_DEADLINE: "rejected",
        Reason.QUOTA_ROWS: "rejected",
        Reason.INVALID_REQUEST: "rejected",
        Reason.ENGINE_ERROR: "error",
        Reason.INTERNAL: "error",
    }
    assert {reason: outcome_of(WeirError(reason, "")) for reason in reasons} == reasons
