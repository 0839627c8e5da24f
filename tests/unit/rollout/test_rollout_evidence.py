"""Evidence adds up: whoever reports it, in whatever parts."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.rollout.policy import (
    ArmEvidence,
    CostMoments,
    Distribution,
    GoodBad,
    Moments,
    Phase,
    Stage,
    clip_score,
    merge,
)

POSITIVE = st.floats(1e-4, 1e4)
CANARY = Stage(Phase.CANARY, 0, "canary")


def close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-6)


@given(st.lists(POSITIVE, max_size=40), st.lists(POSITIVE, max_size=40))
def test_parts_of_a_distribution_add_up_to_the_whole(some: list[float], others: list[float]) -> None:
    together, whole = Distribution.of(some) + Distribution.of(others), Distribution.of(some + others)
    assert (together.bins, together.counts, together.count) == (whole.bins, whole.counts, whole.count)
    assert close(together.sum_log, whole.sum_log)
    assert close(together.sum_log2, whole.sum_log2)


@given(st.lists(POSITIVE, min_size=1, max_size=60), st.floats(0.01, 1.0))
def test_a_quantile_lies_in_the_bin_of_the_true_one(values: list[float], share: float) -> None:
    true = sorted(values)[math.ceil(share * len(values) - 1e-9) - 1]
    assert (
        true / 2 ** (1 / 8) * (1 - 1e-9) <= Distribution.of(values).quantile(share) <= true * 2 ** (1 / 8) * (1 + 1e-9)
    )


@given(st.lists(POSITIVE, min_size=1, max_size=40))
def test_edges_tell_how_many_values_lie_above(values: list[float]) -> None:
    edges, above = Distribution.of(values).edges()
    assert list(edges) == sorted(edges)
    assert (above[0], above[-1]) == (len(values), 0)
    for edge, count in zip(edges, above, strict=True):
        assert sum(math.log(value) > edge + 1e-9 for value in values) <= count
        assert sum(math.log(value) > edge - 1e-9 for value in values) >= count


def test_nothing_is_no_number() -> None:
    nothing = Distribution()
    assert (nothing.count, nothing.quantile(0.5), nothing.mean_log) == (0, 0.0, 0.0)
    assert (CostMoments().per_1k_tokens, CostMoments().per_request, Moments().mean) == (0.0, 0.0, 0.0)


def test_sources_are_merged_by_stage() -> None:
    one = ArmEvidence(3, 1, scores={"a": Moments.of([1.0])}, objectives={"availability": GoodBad(2, 1)})
    two = ArmEvidence(4, scores={"a": Moments.of([2.0]), "b": Moments.of([3.0])}, cost=CostMoments.of([(2.0, 1000.0)]))
    merged = merge([(CANARY, one), (Stage(Phase.CANARY, 0, "baseline"), one), (CANARY, two)])
    found = merged[CANARY]
    assert (found.requests, found.errors, found.cost.per_1k_tokens) == (7, 1, 2.0)
    assert (found.scores["a"].mean, found.scores["b"].count) == (1.5, 1)
    assert found.objectives == {"availability": GoodBad(2, 1)}
    assert merged[Stage(Phase.CANARY, 0, "baseline")] == one


def test_scores_are_counted_within_their_bounds() -> None:
    assert clip_score("shadow_exact", 3.0) == 1.0
    assert clip_score("mean_logprob", -1e9) == -20.0
    assert clip_score("revenue", 1e12) == 1e6
    assert clip_score("revenue", -math.inf) == -1e6
    with pytest.raises(ValueError, match="revenue"):
        clip_score("revenue", math.nan)
