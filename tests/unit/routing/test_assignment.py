"""Sticky assignment: deterministic, in proportion, and no caller moves without need."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from libs.routing import Target, assign, bucket_of

KEYS = [f"user-{number}" for number in range(2000)]


def owners(targets: list[Target], alias: str = "weir-fast") -> dict[str, str]:
    found = {}
    for key in KEYS:
        target = assign(alias, targets, key)
        assert target is not None
        found[key] = target.model_version
    return found


@st.composite
def two_weightings(draw: st.DrawFn, names: tuple[str, ...]) -> tuple[list[Target], list[Target]]:
    """The same targets under two weightings that sum to 100, each in its own order."""
    made = []
    for _ in range(2):
        cuts = sorted(draw(st.lists(st.integers(0, 100), min_size=len(names) - 1, max_size=len(names) - 1)))
        weights = [high - low for low, high in zip([0, *cuts], [*cuts, 100], strict=True)]
        made.append(draw(st.permutations([Target(n, w) for n, w in zip(names, weights, strict=True)])))
    return made[0], made[1]


def test_shares_follow_the_weights() -> None:
    shares = Counter(owners([Target("m@1", 90), Target("m@2", 10)]).values())
    assert 130 <= shares["m@2"] <= 270  # 200 expected; six standard deviations is 80


def test_buckets_are_uniform_and_differ_between_aliases() -> None:
    assert {bucket_of("a", key) for key in KEYS} == set(range(100))
    assert [bucket_of("a", key) for key in KEYS] != [bucket_of("b", key) for key in KEYS]


def test_no_weight_means_no_target() -> None:
    assert assign("a", [Target("m@1", 0)], "k") is None
    assert assign("a", [], "k") is None


@settings(max_examples=40)
@given(two_weightings(("m@1", "m@2", "m@3")))
def test_callers_leave_only_shrinking_targets_and_join_only_growing_ones(
    weightings: tuple[list[Target], list[Target]],
) -> None:
    before, after = weightings
    growth = {t.model_version: t.weight for t in after}
    for target in before:
        growth[target.model_version] -= target.weight
    grown = [name for name in growth if growth[name] > 0 and name != "m@1"]
    shrunk = [name for name in growth if growth[name] < 0 and name != "m@1"]
    old, new = owners(before), owners(after)
    for key in KEYS:
        if old[key] != new[key]:
            # "m@1" is the baseline: it gives to whoever grows and takes from whoever shrinks.
            assert old[key] in [*shrunk, "m@1"]
            assert new[key] in [*grown, "m@1"]


@settings(max_examples=40)
@given(two_weightings(("m@1", "m@2")))
def test_growing_a_canary_moves_callers_only_to_it(weightings: tuple[list[Target], list[Target]]) -> None:
    small, large = sorted(weightings, key=lambda ts: next(t.weight for t in ts if t.model_version == "m@2"))
    old, new = owners(small), owners(large)
    assert all(new[key] == "m@2" for key in KEYS if old[key] != new[key])


@given(st.text(max_size=20), st.text(max_size=20), st.integers(1, 1000))
def test_a_bucket_is_in_range(alias: str, key: str, buckets: int) -> None:
    assert 0 <= bucket_of(alias, key, buckets) < buckets
