"""What a call gets when its version cannot answer, step by step, and what it never gets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from prometheus_client import REGISTRY
from weir.registry.v1 import registry_pb2 as pb

from libs.batching import Late
from libs.clock import ManualClock
from libs.errors import Reason, WeirError
from libs.occupancy import Occupancy
from libs.outcomes import Standing, of_error
from libs.routing import Route
from libs.telemetry.tracing import span
from libs.versions.errors import LoadError
from services.predictor.cache import Cache
from services.predictor.call import Answer, Call, Rank
from services.predictor.desired import read_prior
from services.predictor.executors import Barred, Crashed, Ran
from services.predictor.formats import signature_of
from services.predictor.port import ModelError, Signature, Tensors
from services.predictor.rules import Rules
from services.predictor.serve import Predictions
from services.predictor.statistics import Statistics
from tests.support.predictor import FEATURES, question, scores, trees

Run = Callable[[], Mapping[str, np.ndarray]]
CANARY = Route("m@1", "canary", "predict", "", (), 1, rollout_id="r1")
PRIOR = {"score": np.array([0.25], np.float32)}


class Versions:
    """In the executors' place: each version gives a number, or fails."""

    def __init__(self, **given: float | Exception) -> None:
        self.given = {name.replace("_", "@"): each for name, each in given.items()}
        self.features = dict.fromkeys(self.given, FEATURES)
        self.declared: dict[str, pb.ValueRule] = {}
        self.ran: list[tuple[str, int]] = []
        self.asked = 0.0
        """The first value of what ran last."""

    def bars(self, version: str, tenant: str) -> bool:
        """See `Executors`."""
        return isinstance(self.given.get(version), Barred)

    def ask(self, version: str) -> Signature:
        """See `Executors`."""
        if version not in self.given:
            raise KeyError(version)
        return signature_of(trees(features=self.features[version]))

    def rules(self, version: str) -> Rules:
        """See `Executors`."""
        rule = self.declared.get(version)
        tensor = pb.TensorSpec(name="features", datatype="FP32", shape=[-1, FEATURES], rules=[rule] if rule else [])
        return Rules(trees(inputs=[tensor]))

    async def run(self, version: str, inputs: Tensors, *, rows: int, rank: int, **more: Any) -> Ran:
        """See `Executors`."""
        self.ran.append((version, rank))
        self.asked = float(inputs["features"][0, 0])
        await asyncio.sleep(0)
        found = self.given[version]
        if isinstance(found, Exception):
            raise found
        return Ran({"score": np.full(rows, found, np.float32)}, rows, 1, 0.001, 0.0, 0.002, 0.0)


class Known:
    """In the catalog's place."""

    def __init__(self, spec: pb.PredictionSpec) -> None:
        self.known = pb.ModelVersion(name="m", version="1", digest="d", prediction=spec)

    def version(self, name: str) -> pb.ModelVersion:
        """See `Catalog`."""
        return self.known

    def told(self, model: str) -> str:
        """See `Catalog`."""
        return model

    def baseline(self, alias: str, route: Route) -> str | None:
        """See `Catalog`."""
        return "base@1" if route.arm == "canary" else None


class World:
    """A `Predictions` over these."""

    def __init__(self, versions: Versions, *, prior: bool = False, **spec: Any) -> None:
        self.clock = ManualClock()
        self.versions = versions
        self.statistics = Statistics()
        declared = trees(**spec)
        self.occupancy = Occupancy(most=100, share=1.0, clock=self.clock, chance=lambda: 0.5)
        self.predictions = Predictions(
            executors=versions,  # type: ignore[arg-type]
            catalog=Known(declared),  # type: ignore[arg-type]
            account=None,
            cache=Cache(100_000, stale=30.0, clock=self.clock),
            priors={"m@1": (signature_of(declared), PRIOR)} if prior else {},
            statistics=self.statistics,
            occupancy=self.occupancy,
            clock=self.clock,
        )

    async def ask(self, **more: Any) -> Answer:
        """Predict."""
        return await self.predictions.serve(self.call(**more))

    def call(self, *, value: float = 1.0, tenant: str = "acme", rows: int = 3, **more: Any) -> Call:
        """A call about so many rows."""
        now = self.clock.monotonic()
        values: dict[str, Any] = {
            "request": question([[value, 0, 0, 0]] * rows),
            "tenant": tenant,
            "model": "m",
            "route": Route("m@1", "", "predict", "", (), 1),
            "request_id": "r",
            "rows": rows,
            "arrived": now,
            "deadline": now + 1.0,
            "given": 1.0,
            "rank": Rank.PAID,
            "span": span("predict"),
        }
        return Call(**(values | more))

    async def refused(self, **more: Any) -> WeirError:
        """Predict, in vain."""
        with pytest.raises(WeirError) as caught:
            await self.ask(**more)
        return caught.value


def late() -> Late:
    return Late(full=True, retry_after=0.5)


async def test_the_versions_own_answer_is_not_degraded() -> None:
    answer = await World(Versions(m_1=0.75), prior=True).ask()
    assert (answer.version, answer.degraded, answer.cached, answer.batch_rows) == ("m@1", (), False, 3)
    assert scores(answer.response).tolist() == [0.75] * 3


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (late(), Reason.REJECTED_QUEUE_FULL),
        (Late(full=True, retry_after=0.5, waited=True), Reason.EVICTED_SHED),
        (Late(full=False, retry_after=None), Reason.REJECTED_DEADLINE),
        (Late(full=False, retry_after=None, waited=True), Reason.EVICTED_DEADLINE),
        (Crashed("the model died"), Reason.ENGINE_ERROR),
    ],
)
async def test_the_steps_are_taken_in_their_order(fault: Exception, reason: Reason) -> None:
    versions = Versions(m_1=0.75, small_1=0.5)
    world = World(versions, prior=True, smaller=["absent@1", "small@1"], cache_seconds=10)
    await world.ask()
    versions.given["m@1"] = fault
    world.clock.advance(20.0)
    kept = await world.ask()
    assert (kept.degraded, kept.version, scores(kept.response).tolist()) == (
        ("cached_prediction",),
        "m@1",
        [0.75] * 3,
    )
    world.clock.advance(30.0)
    smaller = await world.ask()
    assert (smaller.degraded, smaller.version) == (("smaller_version",), "small@1")
    assert [each.cause and each.cause.reason for each in (kept, smaller)] == [reason, reason]
    assert smaller.response.model_version == "1"
    assert scores(smaller.response).tolist() == [0.5] * 3
    versions.given["small@1"] = late()
    prior = await world.ask()
    assert (prior.degraded, scores(prior.response).tolist()) == (("prior",), [0.25] * 3)
    assert (await world.refused(degradable=False)).reason is reason
    assert world.statistics.of("m@1").fail.count == 1


async def test_a_version_that_is_not_here_walks_the_ladder_too() -> None:
    world = World(Versions(small_1=0.5), prior=True, smaller=["small@1"])
    assert (await world.ask()).degraded == ("smaller_version",)
    assert (await World(Versions(), prior=True).ask()).degraded == ("prior",)
    error = await World(Versions()).refused()
    assert (error.reason, error.retry_after) == (Reason.NO_WORKERS, 1.0)


async def test_what_is_wrong_with_a_request_is_told_and_not_papered_over() -> None:
    world = World(Versions(m_1=ModelError("input 'features': a value is infinite", "features")), prior=True)
    error = await world.refused()
    assert (error.reason, error.limit) == (Reason.INVALID_REQUEST, "features")
    unknown = World(Versions(), prior=True)
    error = await unknown.refused(request=question([[1.0, 2.0]]))
    assert error.reason is Reason.NO_WORKERS  # nobody here knows the version, and the prior not this shape


@pytest.mark.parametrize(
    ("base", "reason"),
    [
        (0.5, Reason.ENGINE_ERROR),
        (ModelError("input 'features': a value is infinite", "features"), Reason.INVALID_REQUEST),
        (Crashed("the model died"), Reason.INVALID_REQUEST),  # what no version can run is no version's fault
        (Late(full=True, retry_after=0.5), Reason.INVALID_REQUEST),  # that is not known
        (None, Reason.INVALID_REQUEST),
    ],
)
async def test_what_a_rollouts_version_refuses_is_its_own_fault_where_the_baseline_answers_it(
    base: float | Exception | None, reason: Reason
) -> None:
    versions = Versions(m_1=ModelError("the program refuses the inputs"), small_1=0.25)
    if base is not None:
        versions.given["base@1"], versions.features["base@1"] = base, FEATURES
    world = World(versions, smaller=["small@1"])
    assert (await world.refused(route=CANARY, degradable=False)).reason is reason
    if reason is Reason.ENGINE_ERROR:
        answer = await world.ask(route=CANARY)
        assert (answer.degraded, answer.cause and answer.cause.reason) == (("smaller_version",), reason)
    else:
        assert (await world.refused(route=CANARY)).reason is reason
    before = len(versions.ran)
    assert (await world.refused()).reason is Reason.INVALID_REQUEST
    assert versions.ran[before:] == [("m@1", Rank.PAID)], "outside rollouts something was compared"


async def test_a_rollouts_version_must_take_what_its_baseline_takes() -> None:
    versions = Versions(m_1=0.75, base_1=0.5)
    versions.features["m@1"] = 5
    world = World(versions)
    assert (await world.refused(route=CANARY)).reason is Reason.ENGINE_ERROR
    assert (await world.refused()).reason is Reason.INVALID_REQUEST
    versions.features["base@1"] = 5  # neither takes it
    assert (await world.refused(route=CANARY)).reason is Reason.INVALID_REQUEST


async def test_a_tenant_whose_own_rows_ended_processes_hears_that_and_no_version_has_failed() -> None:
    world = World(Versions(m_1=Barred(42.0), small_1=0.5), smaller=["small@1"])
    error = await world.refused(degradable=False)
    assert (error.reason, error.limit, error.retry_after) == (Reason.REJECTED_QUEUE_FULL, "tenant_crashes", 42.0)
    assert of_error(error, patient=True) == (Standing.NEITHER, Standing.NEITHER)
    assert (await world.ask()).degraded == ("smaller_version",)


CLIP = pb.ValueRule(min=0, max=3, beyond="clip")
REJECT = pb.ValueRule(min=0, max=3, beyond="reject")


def counted(step: str) -> float:
    return REGISTRY.get_sample_value("weir_predictor_degraded_total", {"model": "m@1", "step": step}) or 0.0


async def test_what_is_put_in_place_of_a_value_is_told_counted_and_only_done_for_who_takes_it() -> None:
    versions, before = Versions(m_1=0.75), counted("clipped")
    versions.declared["m@1"] = CLIP
    world = World(versions)
    answer = await world.ask(value=9.0)
    assert (answer.degraded, answer.version, answer.cause) == (("clipped",), "m@1", None)
    assert versions.asked == 3.0
    assert (await world.ask()).degraded == ()
    assert counted("clipped") == before + 1
    error = await world.refused(value=9.0, degradable=False)
    assert (error.reason, error.limit) == (Reason.INVALID_REQUEST, "features[0,0]")
    assert len(versions.ran) == 2


async def test_a_kept_answer_is_degraded_for_who_asked_something_else() -> None:
    versions = Versions(m_1=0.75)
    versions.declared["m@1"] = CLIP
    world = World(versions, cache_seconds=10)
    assert (await world.ask(value=9.0)).degraded == ("clipped",)
    same = await world.ask(value=3.0)
    assert (same.cached, same.degraded) == (True, ())
    again = await world.ask(value=4.0)
    assert (again.cached, again.degraded) == (True, ("clipped",))


async def test_each_version_has_its_own_rules() -> None:
    versions = Versions(m_1=late(), small_1=0.5)
    versions.declared["small@1"] = CLIP
    answer = await World(versions, smaller=["small@1"]).ask(value=9.0)
    assert (answer.degraded, versions.asked) == (("smaller_version", "clipped"), 3.0)
    versions.declared["small@1"] = REJECT
    assert (await World(versions, smaller=["small@1"]).refused(value=9.0)).reason is Reason.REJECTED_QUEUE_FULL
    versions.declared["m@1"] = CLIP
    assert (await World(versions, prior=True).ask(value=9.0)).degraded == ("prior",)


async def test_a_rollouts_version_that_accepts_less_than_its_baseline_is_judged_for_it() -> None:
    versions = Versions(m_1=0.75, base_1=0.5)
    versions.declared["m@1"] = REJECT
    world = World(versions)
    assert (await world.refused(value=9.0)).reason is Reason.INVALID_REQUEST
    assert (await world.refused(value=9.0, route=CANARY)).reason is Reason.ENGINE_ERROR
    versions.declared["base@1"] = REJECT
    assert (await world.refused(value=9.0, route=CANARY)).reason is Reason.INVALID_REQUEST


async def test_the_ladder_runs_in_the_callers_class() -> None:
    versions = Versions(m_1=late(), small_1=0.5)
    await World(versions, smaller=["small@1"]).ask(rank=Rank.BATCH)
    assert versions.ran == [("m@1", Rank.BATCH), ("small@1", Rank.BATCH)]


async def test_answers_are_kept_per_tenant_only_where_the_version_allows_it_and_never_degraded_ones() -> None:
    versions = Versions(m_1=0.75)
    world = World(versions, cache_seconds=10)
    assert [(await world.ask()).cached for _ in range(2)] == [False, True]
    assert not (await world.ask(tenant="globex")).cached
    assert not (await world.ask(value=2.0)).cached
    assert not (await world.ask(degradable=False)).cached
    counts = world.statistics.of("m@1")
    assert (counts.cache_hit.count, counts.cache_miss.count, len(versions.ran)) == (1, 4, 4)
    never = World(Versions(m_1=0.75))
    assert [(await never.ask()).cached for _ in range(2)] == [False, False]
    falling = World(Versions(m_1=late(), small_1=0.5), smaller=["small@1"], cache_seconds=10)
    await falling.ask()
    falling.versions.given["m@1"] = 0.75
    assert scores((await falling.ask()).response).tolist() == [0.75] * 3


async def test_who_asks_the_same_at_once_is_answered_by_one_run() -> None:
    versions = Versions(m_1=0.75)
    world = World(versions, cache_seconds=10)
    answers = await asyncio.gather(*(world.ask() for _ in range(4)))
    assert sorted(each.cached for each in answers) == [False, True, True, True]
    assert len(versions.ran) == 1


async def test_nothing_runs_on_when_its_caller_has_left() -> None:
    world = World(Versions(m_1=0.75))
    asking = asyncio.create_task(world.ask())
    await asyncio.sleep(0)
    assert world.predictions.busy() == {"m@1"}
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert world.predictions.busy() == frozenset()
    assert world.statistics.of("m@1").fail.count == 1


class Books:
    """In the account's place."""

    def __init__(self) -> None:
        self.ends: list[Answer | WeirError] = []

    async def acquire(self, call: Call, **more: Any) -> Any:
        """See `Account`."""
        return SimpleNamespace(rank=call.rank)

    def settle(self, lease: Any, call: Call, ended: Answer | WeirError) -> None:
        """See `Account`."""
        self.ends.append(ended)


@pytest.mark.parametrize(
    ("seconds", "reason", "standing"),
    [(0.5, Reason.CANCELLED, Standing.NEITHER), (1.0, Reason.DEADLINE_EXCEEDED, Standing.BAD)],
)
async def test_what_runs_beyond_its_deadline_was_too_slow_and_who_hangs_up_earlier_left(
    seconds: float, reason: Reason, standing: Standing
) -> None:
    world, books = World(Versions(m_1=0.75)), Books()
    world.predictions._account = books  # type: ignore[assignment]
    asking = asyncio.create_task(world.ask())
    await asyncio.sleep(0)
    assert world.versions.ran
    world.clock.advance(seconds)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    [ended] = books.ends
    assert isinstance(ended, WeirError)
    assert ended.reason is reason
    assert of_error(ended, patient=True) == (standing, standing)


# ---- what another predictor answers ----------------------------------------------------------------------------------


class Trace:
    """In a span's place."""

    traceparent = ""
    recording = True

    def __init__(self) -> None:
        self.about: dict[str, Any] = {}
        self.ends: list[str] = []

    def set(self, key: str, value: Any) -> None:
        self.about[key] = value

    def end(self, error: str = "") -> None:
        self.ends.append(error)


async def test_what_is_handed_on_is_waited_for_and_nothing_is_while_draining() -> None:
    world, trace, answered = World(Versions()), Trace(), asyncio.Event()

    async def handing() -> str:
        await answered.wait()
        return "an answer"

    handed = asyncio.create_task(world.predictions.elsewhere(world.call(span=trace), handing))
    await asyncio.sleep(0)
    drained = asyncio.create_task(world.occupancy.drain())
    await asyncio.sleep(0)
    assert not drained.done()
    with pytest.raises(WeirError) as refused:
        await world.predictions.elsewhere(world.call(), handing)
    assert refused.value.reason is Reason.DRAINING
    assert trace.ends == []
    answered.set()
    assert await handed == "an answer"
    await drained
    assert trace.ends == [""]
    assert (trace.about["weir.tenant"], trace.about["gen_ai.request.model"]) == ("acme", "m")


async def test_a_trace_ends_however_handing_on_does() -> None:
    world, traces = World(Versions()), [Trace() for _ in range(4)]

    async def refuses() -> None:
        raise WeirError(Reason.QUOTA_ROWS, "")

    async def hangs() -> None:
        await asyncio.Event().wait()

    async def knows_nobody() -> None:
        return None

    with pytest.raises(WeirError):
        await world.predictions.elsewhere(world.call(span=traces[0]), refuses)
    left, cut = (
        asyncio.create_task(world.predictions.elsewhere(world.call(span=trace), hangs)) for trace in traces[1:3]
    )
    await asyncio.sleep(0)
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    world.occupancy.cut()
    with pytest.raises(WeirError) as refused:
        await cut
    assert refused.value.reason is Reason.DRAINING
    assert await world.predictions.elsewhere(world.call(span=traces[3]), knows_nobody) is None
    assert [trace.ends for trace in traces] == [["QUOTA_ROWS"], ["CANCELLED"], ["DRAINING"], []]
    assert world.occupancy.entered == 0


# ---- the prior's file ------------------------------------------------------------------------------------------------


def test_a_prior_is_one_row_of_what_the_version_gives() -> None:
    row = b'{"outputs": [{"name": "score", "datatype": "FP32", "shape": [1], "data": [0.25]}]}'
    np.testing.assert_array_equal(read_prior(row, signature_of(trees()))["score"], PRIOR["score"])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"outputs": []}',
        '{"outputs": [{"name": "other", "datatype": "FP32", "shape": [1], "data": [1]}]}',
        '{"outputs": [{"name": "score", "datatype": "FP64", "shape": [1], "data": [1]}]}',
        '{"outputs": [{"name": "score", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}',
        '{"outputs": [{"name": "score", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}',
        '{"outputs": [{"name": "score", "datatype": "FP32", "shape": [1], "data": ["x"]}]}',
        '{"outputs": [{"name": "score", "datatype": "FP32", "shape": [1]}]}',
        '{"outputs": {"score": 1}}',
    ],
)
def test_any_other_prior_fails_the_version_that_has_it(text: str) -> None:
    with pytest.raises(LoadError, match="prior"):
        read_prior(text.encode(), signature_of(trees()))
