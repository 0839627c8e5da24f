"""What counts, how it is counted, and what is told of it when."""

from __future__ import annotations

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from weir.rollout.v1 import rollout_pb2

from libs.errors import Reason, WeirError
from libs.outcomes import ArmKey, Begun, Objectives, OutcomeTable, Ran, Sample, Standing, judge, of_error
from libs.outcomes import table as tables
from libs.outcomes.counts import KEPT_SECONDS, MOST_SCORES, bin_of
from libs.outcomes.standing import CRASHES, FILES, NOBODY, RUNNING, SHARE_FULL
from libs.quota import Price
from services.gateway.policy.events import Breakdown, End, Finish, Usage
from services.gateway.policy.finals import ran
from services.gateway.policy.scoring import Scoring

GOOD, BAD, NEITHER = Standing.GOOD, Standing.BAD, Standing.NEITHER
KEY = ArmKey("tiny", "r1", 3, 0, "canary")
OF = {"model_version": "tiny@2", "model": "tiny"}
seconds = st.floats(1e-6, 1e4)


def add(table: OutcomeTable, sample: Sample, key: ArmKey = KEY) -> None:
    begun = begin(table, key)
    if begun is not None:
        table.add(begun, sample, begun.at + 1.0)


def begin(table: OutcomeTable, key: ArmKey = KEY, *, second: int = 1000, bucket: int | None = 7) -> Begun | None:
    begun = Begun(key, second, float(second), bucket)
    return table.begin(begun, 30.0, model_version="tiny@2", route="generate", tier="fast")


def told(table: OutcomeTable, now: float = 1000.0) -> rollout_pb2.ArmOutcomes:
    found = table.arm(KEY, now)
    assert found is not None
    return found


def ended(finish: Finish, reason: str) -> WeirError | None:
    error = WeirError(Reason.parse(reason), "") if reason else None
    end = End(finish=finish, usage=Usage(), breakdown=Breakdown(), error=error)
    return ran(end, first=0.0, longest=0, model_version="", model="").error


# ---- what counts ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("finish", "reason", "patient", "expected"),
    [
        (Finish.STOP, "", True, (GOOD, GOOD)),
        (Finish.LENGTH, "", False, (GOOD, GOOD)),
        (Finish.CONTENT_FILTER, "CONTENT_FILTER", True, (GOOD, GOOD)),
        (Finish.CANCELLED, "", True, (NEITHER, NEITHER)),
        (Finish.DEADLINE, "", True, (BAD, BAD)),
        (Finish.DEADLINE, "", False, (NEITHER, NEITHER)),
        (Finish.ERROR, "ENGINE_ERROR", True, (BAD, BAD)),
        (Finish.ERROR, "WORKER_LOST", True, (BAD, BAD)),
        (Finish.ERROR, "INTERNAL", True, (BAD, BAD)),
        (Finish.ERROR, "SLOW_READER", True, (NEITHER, NEITHER)),
        (Finish.ERROR, "PREEMPTED", True, (BAD, NEITHER)),
        (Finish.ERROR, "DRAINING", True, (BAD, NEITHER)),
        (Finish.ERROR, "NOT_OWNER", True, (BAD, NEITHER)),
        (Finish.ERROR, "DEPENDENCY_UNAVAILABLE", True, (BAD, NEITHER)),
    ],
)
def test_what_an_end_says(finish: Finish, reason: str, patient: bool, expected: tuple[Standing, Standing]) -> None:
    assert of_error(ended(finish, reason), patient=patient) == expected


@pytest.mark.parametrize(
    ("reason", "limit", "expected"),
    [
        (Reason.INVALID_REQUEST, "model", (NEITHER, NEITHER)),
        (Reason.MODEL_NOT_FOUND, "model", (NEITHER, NEITHER)),
        (Reason.CONTENT_FILTER, "", (NEITHER, NEITHER)),
        (Reason.CANCELLED, "", (NEITHER, NEITHER)),
        (Reason.QUOTA_TOKENS, "", (NEITHER, NEITHER)),
        (Reason.QUOTA_SPEND, "", (NEITHER, NEITHER)),
        (Reason.REJECTED_QUEUE_FULL, "queue", (BAD, NEITHER)),
        (Reason.REJECTED_QUEUE_FULL, "max_active_share", (NEITHER, NEITHER)),
        (Reason.REJECTED_QUEUE_FULL, CRASHES, (NEITHER, NEITHER)),
        (Reason.REJECTED_QUEUE_FULL, SHARE_FULL, (BAD, BAD)),
        (Reason.EVICTED_TTL, SHARE_FULL, (BAD, BAD)),
        (Reason.NO_WORKERS, NOBODY, (BAD, BAD)),
        (Reason.REJECTED_NO_CAPACITY, "kv_blocks", (BAD, NEITHER)),
        (Reason.EVICTED_SHED, "", (BAD, NEITHER)),
        (Reason.EVICTED_DEADLINE, "", (BAD, NEITHER)),
        (Reason.REJECTED_DEADLINE, SHARE_FULL, (BAD, BAD)),
        (Reason.DEADLINE_EXCEEDED, RUNNING, (BAD, BAD)),
        (Reason.DEPENDENCY_UNAVAILABLE, FILES, (BAD, BAD)),
        (Reason.INTERNAL, "", (BAD, BAD)),
    ],
)
def test_what_a_refusal_says(reason: Reason, limit: str, expected: tuple[Standing, Standing]) -> None:
    error = WeirError(reason, "", limit=limit)
    assert of_error(error, patient=True) == expected
    assert of_error(error, patient=True, over_quota=True) == (NEITHER, NEITHER)


@given(st.sampled_from(Reason), st.booleans())
def test_an_arm_is_never_blamed_where_we_are_not(reason: Reason, patient: bool) -> None:
    for general, arm in (
        of_error(WeirError(reason, ""), patient=patient),
        of_error(ended(Finish.ERROR, reason.name), patient=patient),
    ):
        assert arm in (general, NEITHER)
        assert general is not GOOD


def test_a_short_deadline_is_no_fault_of_ours() -> None:
    late = WeirError(Reason.DEADLINE_EXCEEDED, "")
    assert of_error(late, patient=False) == (NEITHER, NEITHER)
    assert Objectives(ttft=2.0).patience == 2.0
    assert Objectives(ttft=2.0, e2e_p99=9.0).patience == 9.0


def test_availability_and_completion_are_judged_where_they_are_declared() -> None:
    declared = Objectives(availability=True, stream_completion=True)
    served = judge(declared, GOOD, Ran(whole=True, first=0.5, total=1.0, **OF))
    broken = judge(declared, BAD, Ran(whole=False, first=0.5, total=1.0, **OF))
    failed = judge(declared, BAD, Ran(whole=False, total=1.0, **OF))
    left = judge(declared, NEITHER, Ran(whole=False, first=0.5, total=1.0, **OF))
    assert served == [("availability", True), ("stream_completion", True)]
    assert broken == [("availability", False), ("stream_completion", False)]
    assert failed == [("availability", False)]
    assert left == []


# ---- how it is counted ------------------------------------------------------------------------


@given(st.lists(seconds, max_size=50))
def test_a_distribution_keeps_every_value_in_its_bin_and_its_moments(values: list[float]) -> None:
    table = OutcomeTable()
    add(table, Sample())
    for value in values:
        add(table, Sample(first=value))
        place = bin_of(value)
        assert 2 ** (place / 8) <= value * (1 + 1e-12)
        assert value <= 2 ** ((place + 1) / 8) * (1 + 1e-12)
    message = told(table).ttft
    assert list(message.bins) == sorted(set(message.bins))
    assert sum(message.counts) == len(values)
    assert message.sum_log == pytest.approx(sum(map(math.log, values)))
    assert message.sum_log2 == pytest.approx(sum(math.log(value) ** 2 for value in values))


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=30))
def test_costs_are_exact_and_their_moments_give_the_variance_of_the_ratio(requests: list[tuple[int, int]]) -> None:
    price = Price(150, 600)
    table = OutcomeTable()
    for prompt, output in requests:
        cost = price.exact(prompt + output, prompt)
        assert cost == pytest.approx((prompt * 150 + output * 600) / 1e6)
        assert 0 <= price.cost(prompt + output, prompt) - cost < 1
        add(table, Sample(cost=cost, tokens=prompt + output, reference=2 * cost))
    counts = told(table)
    kept = [(price.exact(p + o, p), p + o) for p, o in requests if p + o]
    assert counts.cost.count == len(kept)
    assert counts.cost.cost_tokens == pytest.approx(sum(c * t for c, t in kept))
    assert counts.cost.cost2 == pytest.approx(sum(c * c for c, _ in kept))
    assert counts.cost.cost_reference == pytest.approx(2 * counts.cost.cost2)
    assert counts.cost.reference2 == pytest.approx(4 * counts.cost.cost2)
    assert counts.cost.tokens2 == sum(t * t for _, t in kept)


def test_a_sample_is_told_in_full() -> None:
    table = OutcomeTable()
    add(table, Sample(first=0.25, completed=True, itl=0.02, cost=3.5, tokens=10, objectives=[("availability", True)],
                      scores=[("mean_logprob", -1.5)]))  # fmt: skip
    add(table, Sample(failed=True, objectives=[("availability", False)]))
    found = told(table, 1001.5)
    assert (found.alias, found.rollout_id, found.phase, found.step, found.arm) == ("tiny", "r1", 3, 0, "canary")
    assert (found.model_version, found.route, found.tier, found.mirrored) == ("tiny@2", "generate", "fast", False)
    assert (found.requests, found.errors, found.streams, found.completed) == (2, 1, 1, 1)
    assert (list(found.ttft.bins), list(found.ttft.counts)) == ([-16], [1])
    assert found.objectives["availability"] == rollout_pb2.GoodBad(good=1, bad=1)
    assert found.scores["mean_logprob"] == rollout_pb2.Moments(count=1, sum=-1.5, sum2=2.25)
    cohorts = found.cohorts
    assert (list(cohorts.seconds), cohorts.longest, cohorts.now) == ([1000], 30.0, 1001.5)
    columns = (cohorts.started, cohorts.ended, cohorts.errors, cohorts.broken, cohorts.prompt)
    assert [list(column) for column in columns] == [[0, 2], [0, 2], [0, 1], [0, 0], [0, 1]]
    by_key = {metric: (sums.counts[7], sums.sums[7]) for metric, sums in found.keys.items()}
    assert by_key == {
        "errors": (2, 1.0),
        "broken": (2, 0.0),
        "ttft": (1, math.log(0.25)),
        "itl": (1, math.log(0.02)),
        "cost": (1, 3.5),
        "tokens": (1, 10.0),
        "reference": (1, 0.0),
        "objective:availability": (2, 1.0),
        "score:mean_logprob": (1, -1.5),
    }
    assert all(sum(sums.counts) == sums.counts[7] for sums in found.keys.values())


def test_f4_what_has_begun_is_told_before_it_ends_and_for_as_long_as_it_goes_on() -> None:
    table = OutcomeTable()
    begun = begin(table)
    found = told(table)
    assert (list(found.cohorts.started), list(found.cohorts.ended), found.requests) == ([0, 1], [0, 0], 0)
    sent = table.sequence
    table.sweep({"r1"}, 0.0)
    assert [arm.rollout_id for arm in table.arms_since(sent, 0.0)] == ["r1"]  # so that its deadline is seen to pass
    table.end(begun)
    table.end(begun)
    assert list(told(table).cohorts.ended) == [0, 1]
    sent = table.sequence
    table.sweep({"r1"}, 0.5)
    assert not list(table.arms_since(sent, 0.0))


def test_f4_an_error_is_prompt_within_two_seconds_and_a_broken_stream_had_a_token() -> None:
    table = OutcomeTable()
    for sample, after in ((Sample(failed=True), 2.0), (Sample(failed=True, first=0.1), 2.1), (Sample(first=0.1), 0.5)):
        begun = begin(table)
        assert begun is not None
        table.add(begun, sample, begun.at + after)
    found = told(table).cohorts
    assert [each[1] for each in (found.started, found.ended, found.errors, found.broken, found.prompt)] == [
        3,
        3,
        2,
        2,
        1,
    ]


def test_f4_old_cohorts_are_one_and_what_ends_late_still_counts() -> None:
    table = OutcomeTable()
    first = begin(table, second=1000)
    begin(table, second=1001)
    begin(table, second=1001 + KEPT_SECONDS)
    found = told(table).cohorts
    assert first is not None
    assert (list(found.started), list(found.seconds)) == ([1, 1, 1], [1001, 1001 + KEPT_SECONDS])
    table.add(first, Sample(failed=True), first.at + 200.0)
    found = told(table).cohorts
    assert (found.ended[0], found.errors[0], found.prompt[0]) == (1, 1, 0)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=20))
def test_scores_that_are_no_numbers_do_not_count(values: list[float]) -> None:
    table = OutcomeTable()
    add(table, Sample())
    for value in values:
        table.score(KEY, "judge", value)
    counts = told(table)
    finite = [value for value in values if math.isfinite(value)]
    assert (counts.scores["judge"].count if "judge" in counts.scores else 0) == len(finite)


def test_metrics_of_an_arm_are_bounded() -> None:
    table = OutcomeTable()
    add(table, Sample())
    for number in range(2 * MOST_SCORES):
        table.score(KEY, f"m{number}", 1.0)
    counts = told(table)
    assert len(counts.scores) == MOST_SCORES


@given(st.lists(st.floats(0, 3), max_size=60), st.floats(1, 20))
def test_a_busy_arm_is_scored_so_often_and_a_quiet_one_in_full(gaps: list[float], rate: float) -> None:
    scoring, now, taken = Scoring(rate), 0.0, 0
    for gap in gaps:
        now += gap
        taken += scoring.take("r1", "canary", now)
        assert taken <= 2 * rate + now * rate + 1e-6
    quiet = Scoring(rate)
    assert all(quiet.take("r1", "canary", place * (1 / rate + 1e-6)) for place in range(100))
    assert not Scoring(0.0).take("r1", "canary", 1.0)


# ---- the table --------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=40))
def test_what_is_told_since_a_number_makes_the_listener_equal(steps: list[tuple[int, bool]]) -> None:
    """Whenever a listener asks for what is new, it then knows what the table knows."""
    table, heard, sent = OutcomeTable(), {}, 0
    for which, ask in steps:
        add(table, Sample(tokens=1), ArmKey("tiny", "r1", 3, which, "canary"))
        table.judge("generate", "fast", [("availability", True)])
        if ask:
            heard.update({arm.step: arm.requests for arm in table.arms_since(sent, 0.0)})
            sent = table.sequence
            assert heard == {arm.step: arm.requests for arm in table.arms_since(0, 0.0)}
            assert not list(table.arms_since(sent, 0.0))
            assert not list(table.objectives_since(sent))


def test_an_ended_rollout_goes_a_minute_later_and_does_not_come_back() -> None:
    table = OutcomeTable()
    other = ArmKey("tiny", "r2", 3, 0, "canary")
    add(table, Sample())
    add(table, Sample(), other)
    table.sweep({"r1", "r2"}, 0.0)
    table.sweep({"r2"}, 10.0)
    add(table, Sample())  # a stream that was still running
    table.sweep({"r2"}, 69.0)
    assert table.arm(KEY) is not None
    table.sweep({"r2"}, 70.0)
    add(table, Sample())
    assert (table.arm(KEY), len(table)) == (None, 1)


def test_a_rollout_that_is_seen_late_is_kept() -> None:
    """The router may know a rollout before this gateway does."""
    table = OutcomeTable()
    add(table, Sample())
    table.sweep(set(), 0.0)
    table.sweep({"r1"}, 50.0)
    table.sweep({"r1"}, 100.0)
    table.sweep(set(), 101.0)
    table.sweep(set(), 160.0)
    assert table.arm(KEY) is not None


def test_the_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MOST_ARMS", 3)
    monkeypatch.setattr(tables, "MOST_OBJECTIVES", 2)
    table = OutcomeTable()
    for step in range(5):
        add(table, Sample(), ArmKey("tiny", "r1", 3, step, "canary"))
        table.judge("generate", f"tier-{step}", [("availability", False)])
    assert (len(table), table.refused) == (3, 2 + 3)
    found = table.objectives("generate", "tier-0")
    assert found is not None
    assert (found.route, found.tier, found.objectives["availability"].bad) == ("generate", "tier-0", 1)


async def test_all_who_wait_hear_of_the_first_change() -> None:
    table = OutcomeTable()
    early = [asyncio.ensure_future(table.beyond(table.sequence)) for _ in range(2)]
    await asyncio.sleep(0)
    assert not any(each.done() for each in early)
    table.judge("generate", "fast", [("ttft", True)])
    late = asyncio.ensure_future(table.beyond(table.sequence))
    async with asyncio.timeout(10):
        await asyncio.gather(*early)
        await table.beyond(0)
    assert not late.done()
    table.judge("generate", "fast", [("ttft", False)])
    async with asyncio.timeout(10):
        await late
