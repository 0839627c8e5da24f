"""What becomes of mirrored requests: bounded, out of users' way, gone with their rollout."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from msgspec.structs import replace as rebound
from prometheus_client import REGISTRY
from weir.admission.v1 import admission_pb2
from weir.quota.v1 import quota_pb2
from weir.registry.v1 import registry_pb2 as pb

from libs.callers import Identity
from libs.clock import ManualClock
from libs.errors import Reason, WeirError
from libs.limiter import Reservation
from libs.mirrors import ShadowSettings
from libs.outcomes import ArmKey, Begun, Ran
from libs.registry import RegistrySnapshot
from libs.routing import Mirror, Route
from libs.texts import ChatMessage
from services.gateway.internal import Run
from services.gateway.policy.events import Breakdown, End, Finish, Usage
from services.gateway.policy.finals import FinalAnswer, FinalChoice
from services.gateway.policy.parameters import NO_OUTPUT
from services.gateway.policy.spec import Spec
from services.gateway.ports import Mirrored
from services.gateway.shadow.mirrors import Mirrors

PARAMETERS = rebound(NO_OUTPUT, max_tokens=10, seed=7, n=2)
ARM = ArmKey("fast", "rollout-1", pb.ROLLOUT_PHASE_SHADOW, 0, "baseline")
COPY = replace(ARM, arm="canary", mirrored=True)
RAN = WeirError(Reason.ENGINE_ERROR, "it broke")


def snapshot(
    phase: int = pb.ROLLOUT_PHASE_SHADOW, *, kill: bool = False, **versions: dict[str, str]
) -> RegistrySnapshot:
    rollout = pb.Rollout(alias="fast", id="rollout-1", baseline="fast@1", capacity_share=0.25)
    rollout.arms.add(name="canary", model_version="fast@2")
    rollout.state.phase = phase  # type: ignore[assignment]
    made = {"fast@1": {}, "fast@2": {}} | {f"fast@{name[1:]}": told for name, told in versions.items()}
    return RegistrySnapshot(
        aliases={"fast": pb.Alias(name="fast", targets=[pb.AliasTarget(model_version="fast@1", weight=100)])},
        rollouts={"fast": rollout},
        switches={"rollouts": pb.RolloutSwitch(kill=kill)},
        model_versions={key: pb.ModelVersion(name="fast", version=key[-1], **told) for key, told in made.items()},
    )


def answer(*tokens: int, finish: Finish = Finish.STOP) -> FinalAnswer:
    end = End(finish=finish, usage=Usage(prompt_tokens=3, completion_tokens=len(tokens)), breakdown=Breakdown())
    return FinalAnswer(model_version="fast@2", choices=(FinalChoice(tokens, (), finish),), end=end, first_after=0.1)


class Runs:
    """Runs wait until the test ends them."""

    def __init__(self) -> None:
        self.asked: list[Run] = []
        self.results: list[asyncio.Future[FinalAnswer]] = []
        self.encoded: list[str] = []

    async def encode(self, model_version: str, spec: Spec) -> list[int]:
        self.encoded.append(model_version)
        return [1, 2, 3]

    async def run(self, run: Run) -> FinalAnswer:
        self.asked.append(run)
        self.results.append(asyncio.get_running_loop().create_future())
        return await self.results[-1]


class Quota:
    """Says yes, unless the test has it say otherwise."""

    def __init__(self) -> None:
        self.reserved: list[quota_pb2.Reserve] = []
        self.settled: list[quota_pb2.Settle] = []
        self.says: Reservation | WeirError | None = Reservation()  # None: nothing yet

    def start_reserve(self, asked: quota_pb2.Reserve, **more: Any) -> asyncio.Future[Reservation]:
        self.reserved.append(asked)
        future: asyncio.Future[Reservation] = asyncio.get_running_loop().create_future()
        if isinstance(self.says, WeirError):
            future.set_exception(self.says)
        elif self.says is not None:
            future.set_result(self.says)
        return future

    def settle(self, told: quota_pb2.Settle) -> None:
        self.settled.append(told)


@dataclass
class Evidence:
    """Keeps what it is told."""

    answers: list[tuple[ArmKey, str, str]] = field(default_factory=list)
    failures: list[tuple[ArmKey, Reason]] = field(default_factory=list)
    scores: list[tuple[str, float]] = field(default_factory=list)

    open: int = 0

    def mirror_began(self, arm: ArmKey, *, given: float, model_version: str, route: str) -> Begun:
        self.open += 1
        return Begun(arm, 0, 0.0, None)

    def over(self, begun: Begun | None) -> None:
        assert begun is not None
        self.open -= 1

    def mirrored(self, arm: ArmKey, ran: Ran, *, route: str, begun: Begun | None) -> None:
        self.answers.append((arm, route, ran.model))

    def mirror_failed(
        self, arm: ArmKey, error: WeirError, *, model_version: str, route: str, begun: Begun | None
    ) -> None:
        self.failures.append((arm, error.reason))

    def score(self, arm: ArmKey, metric: str, value: float) -> None:
        assert arm == COPY
        self.scores.append((metric, value))


class Bench:
    """Mirrors among doubles."""

    def __init__(self, **settings: Any) -> None:
        self.runs, self.quota, self.evidence = Runs(), Quota(), Evidence()
        self.snapshot = snapshot()
        self.clock = ManualClock()
        self.mirrors = Mirrors(
            self.runs,  # type: ignore[arg-type]
            quota=self.quota,  # type: ignore[arg-type]
            evidence=self.evidence,  # type: ignore[arg-type]
            snapshot=lambda: self.snapshot,
            settings=ShadowSettings(**settings),
            clock=self.clock,
        )

    def mirror(self, request_id: str = "r0", **changes: Any) -> asyncio.Future[FinalAnswer]:
        """Hands a request over; returns the user's answer, which is under way."""
        users: asyncio.Future[FinalAnswer] = asyncio.get_running_loop().create_future()
        target = Mirror("fast@2", "canary", "pool-b", "fast", ("zone-b",))
        asked = Mirrored(
            request_id=request_id,
            spec=Spec(model="fast", operation="chat", messages=(ChatMessage("user", "secret"),)),
            identity=Identity(tenant="acme"),
            prompt=[1, 2, 3],
            parameters=PARAMETERS,
            route=Route("fast@1", "baseline", "pool-a", "fast", (), 1, "rollout-1", 0, target),
            arm=ARM,
            traceparent="",
            answer=users,
        )
        self.mirrors.mirror(replace(asked, **changes))
        return users

    async def settle(self) -> None:
        """Lets everything that can happen now happen."""
        for _ in range(10):
            await asyncio.sleep(0)


def count(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


class Counted:
    """How many copies came to this end within the block."""

    def __init__(self, fate: str, expected: int = 1) -> None:
        self._fate, self._expected = fate, expected

    def __enter__(self) -> None:
        self._before = count("weir_gateway_shadow_total", outcome=self._fate)

    def __exit__(self, *exc: object) -> None:
        if exc[0] is None:
            assert count("weir_gateway_shadow_total", outcome=self._fate) - self._before == self._expected


async def test_a_copy_runs_in_its_own_name_and_class_and_is_compared() -> None:
    bench = Bench()
    with Counted("answered"):
        users = bench.mirror()
        await bench.settle()
        (run,) = bench.runs.asked
        assert (run.tenant, run.queue_class) == ("shadow/acme", admission_pb2.QUEUE_CLASS_SHADOW)
        assert (run.model_version, run.pool, run.zones) == ("fast@2", "pool-b", ("zone-b",))
        assert (run.version_share, run.parameters, run.prompt) == (0.25, PARAMETERS, [1, 2, 3])
        assert run.request_id != "r0"
        bench.runs.results[0].set_result(answer(5, 6))
        await bench.settle()
    (reserved,), (settled,) = bench.quota.reserved, bench.quota.settled
    assert (reserved.tenant, reserved.model, reserved.model_version) == ("shadow", "fast", "fast@2")
    assert (reserved.tokens, reserved.request_id) == (3 + 2 * 10, run.request_id)
    assert (settled.tenant, settled.tokens, settled.prompt_tokens) == ("shadow", 5, 3)
    assert bench.evidence.answers == [(COPY, "generate", "fast")]
    assert bench.evidence.scores == []
    users.set_result(answer(5, 6))
    await bench.settle()
    assert bench.evidence.scores == [("shadow_exact", 1.0), ("shadow_length", 1.0)]
    assert bench.mirrors.active == 0


@pytest.mark.parametrize(
    ("users", "scores"),
    [
        (answer(5, 7), [("shadow_exact", 0.0), ("shadow_length", 1.0)]),
        (answer(5), [("shadow_exact", 0.0), ("shadow_length", 0.5)]),
        (answer(5, 6, finish=Finish.LENGTH), [("shadow_exact", 0.0), ("shadow_length", 1.0)]),
        (answer(5, 6, finish=Finish.CANCELLED), []),
        (answer(5, 6, finish=Finish.CONTENT_FILTER), []),
    ],
)
async def test_only_whole_answers_are_compared(users: FinalAnswer, scores: list[tuple[str, float]]) -> None:
    bench = Bench()
    bench.mirror().set_result(users)
    await bench.settle()
    bench.runs.results[0].set_result(answer(5, 6))
    await bench.settle()
    assert bench.evidence.scores == scores
    assert len(bench.evidence.answers) == 1


async def test_where_tokens_mean_other_things_nothing_is_scored() -> None:
    bench = Bench()
    bench.mirror(prompt=[9, 9]).set_result(answer(5))
    await bench.settle()
    assert bench.runs.asked[0].prompt == [1, 2, 3]
    bench.runs.results[0].set_result(answer(5))
    await bench.settle()
    assert bench.evidence.scores == []


@pytest.mark.parametrize(("template", "encoded", "scored"), [("t" * 64, 0, True), ("u" * 64, 1, True), ("", 1, True)])
async def test_a_prompt_is_tokenised_again_only_if_it_may_differ(template: str, encoded: int, scored: bool) -> None:
    bench = Bench()
    same = {"tokenizer_sha256": "a" * 64}
    bench.snapshot = snapshot(
        v1={**same, "chat_template_sha256": "t" * 64}, v2={**same, "chat_template_sha256": template}
    )
    bench.mirror(prompt=[9, 9]).set_result(answer(5))
    await bench.settle()
    assert len(bench.runs.encoded) == encoded
    bench.runs.results[0].set_result(answer(5))
    await bench.settle()
    assert bool(bench.evidence.scores) is scored


async def test_few_run_at_once_few_wait_and_the_rest_is_dropped() -> None:
    bench = Bench(concurrent=2, queue=3)
    with Counted("queue_full", 2):
        for number in range(7):
            bench.mirror(f"r{number}")
    await bench.settle()
    assert (len(bench.runs.asked), bench.mirrors.active) == (2, 5)
    assert count("weir_gateway_shadow_queue_depth") == 3
    assert count("weir_gateway_shadow_running") == 2
    bench.runs.results[0].set_result(answer(1))
    await bench.settle()
    assert len(bench.runs.asked) == 3
    await bench.mirrors.drain()


async def test_none_at_all_can_be_asked_for() -> None:
    bench = Bench(concurrent=0)
    with Counted("queue_full"):
        bench.mirror()
    assert bench.mirrors.active == 0


@pytest.mark.parametrize("says", [WeirError(Reason.QUOTA_TOKENS, "used up"), Reservation(local=True)])
async def test_without_quota_nothing_runs(says: Reservation | WeirError) -> None:
    bench = Bench()
    bench.quota.says = says
    with Counted("quota"):
        bench.mirror()
        await bench.settle()
    assert bench.runs.asked == []
    assert [told.tokens for told in bench.quota.settled] == ([] if isinstance(says, WeirError) else [0])
    assert bench.evidence == Evidence()


async def test_a_copy_that_ends_while_its_quota_is_asked_for_leaves_nothing_reserved() -> None:
    bench = Bench()
    bench.quota.says = None
    with Counted("drained"):
        bench.mirror()
        await bench.settle()
        await bench.mirrors.drain()
    assert bench.runs.asked == []
    assert [told.tokens for told in bench.quota.settled] == [0]
    assert bench.quota.settled[0].request_id == bench.quota.reserved[0].request_id


@pytest.mark.parametrize(
    ("error", "fate", "charged"),
    [
        (WeirError(Reason.REJECTED_QUEUE_FULL, "no room"), "refused", 0),
        (WeirError(Reason.EVICTED_TTL, "no room"), "refused", 0),
        (WeirError(Reason.DEPENDENCY_UNAVAILABLE, "away"), "refused", 0),
        (WeirError(Reason.PREEMPTED, "made way"), "interrupted", 23),
        (WeirError(Reason.DEADLINE_EXCEEDED, "too late"), "deadline", 23),
        (RAN, "error", 23),
    ],
)
async def test_what_fails_is_counted_by_what_failed_it(error: WeirError, fate: str, charged: int) -> None:
    bench = Bench()
    with Counted(fate):
        bench.mirror().set_result(answer(5))
        await bench.settle()
        bench.runs.results[0].set_exception(error)
        await bench.settle()
    assert bench.evidence.failures == [(COPY, error.reason)]
    assert [told.tokens for told in bench.quota.settled] == [charged]
    assert (bench.evidence.answers, bench.evidence.scores, bench.mirrors.active) == ([], [], 0)


@pytest.mark.parametrize("reason", [Reason.REJECTED_QUEUE_FULL, Reason.EVICTED_TTL, Reason.PREEMPTED])
async def test_a_busy_pool_is_left_alone_for_a_while(reason: Reason) -> None:
    bench = Bench(concurrent=1, pause=2.0)
    bench.mirror("r0")
    bench.mirror("r1")
    await bench.settle()
    with Counted("refused", 2 if reason is Reason.PREEMPTED else 3):
        bench.runs.results[0].set_exception(WeirError(reason, "busy"))
        await bench.settle()
        bench.mirror("r2")
        await bench.settle()
    assert (len(bench.runs.asked), len(bench.quota.reserved), bench.mirrors.active) == (1, 1, 0)
    bench.clock.advance(2.0)
    bench.mirror("r3")
    await bench.settle()
    assert len(bench.runs.asked) == 2
    await bench.mirrors.drain()


async def test_a_fault_of_ours_ends_one_copy_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    bench = Bench(concurrent=1)
    with Counted("error"), Counted("answered"):
        bench.mirror("r0")
        bench.mirror("r1")
        await bench.settle()
        bench.runs.results[0].set_exception(ValueError("secret"))
        await bench.settle()
        bench.runs.results[1].set_result(answer(1))
        await bench.settle()
    assert "secret" not in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    "changed",
    [
        lambda: snapshot(pb.ROLLOUT_PHASE_CANARY),
        lambda: snapshot(pb.ROLLOUT_PHASE_ROLLED_BACK),
        lambda: snapshot(kill=True),
        lambda: RegistrySnapshot(),
    ],
)
async def test_copies_end_with_the_shadow_phase_of_their_rollout(changed: Callable[[], RegistrySnapshot]) -> None:
    bench = Bench(concurrent=1)
    with Counted("withdrawn", 3):
        for number in range(2):
            bench.mirror(f"r{number}")
        await bench.settle()
        bench.mirrors.update(bench.snapshot)
        assert bench.mirrors.active == 2
        bench.snapshot = changed()
        bench.mirrors.update(bench.snapshot)
        await bench.settle()
        assert bench.runs.results[0].cancelled()
        assert (bench.mirrors.active, len(bench.runs.asked)) == (0, 1)
        bench.mirror("r2")  # routed before the change was known
    assert [told.tokens for told in bench.quota.settled] == [23]


async def test_draining_ends_all_copies_and_takes_no_more() -> None:
    bench = Bench(concurrent=1)
    with Counted("drained", 3):
        bench.mirror("r0")
        bench.mirror("r1")
        await bench.settle()
        await bench.mirrors.drain()
        bench.mirror("r2")
    assert (bench.mirrors.active, len(bench.runs.asked)) == (0, 1)
    assert bench.runs.results[0].cancelled()


async def test_a_users_answer_that_never_comes_holds_nothing_up() -> None:
    bench = Bench(concurrent=1)
    users = bench.mirror("r0")
    bench.mirror("r1")
    await bench.settle()
    bench.runs.results[0].set_result(answer(1))
    await bench.settle()
    assert len(bench.runs.asked) == 2
    users.cancel()
    await bench.mirrors.drain()


@pytest.mark.parametrize(
    "changes", [{"queue": -1}, {"concurrent": -1}, {"pause": -1.0}, {"deadline": 0.0}, {"deadline": 1e4}]
)
def test_settings_that_cannot_be_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="shadow"):
        ShadowSettings(**changes)
