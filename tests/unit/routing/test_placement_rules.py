"""When places of callers may be remembered, and when not any more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from libs.rollouts import StickyBy
from libs.routing import Layout, Split, Target, rules_of


def layout(weight: int) -> Layout:
    return Layout.of(Target("m@1", "baseline", 10_000 - weight), [Target("m@2", "canary", weight)])


SPLIT = Split("r1", 1, StickyBy.USER, layout(1000), frozenset({"a", "b"}), frozenset({"c"}))
RULES = rules_of({"m": SPLIT})


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"n": SPLIT},
        {"m": SPLIT, "n": SPLIT},
        {"m": replace(SPLIT, rollout_id="r2")},
        {"m": replace(SPLIT, sticky=StickyBy.TENANT)},
        {"m": replace(SPLIT, only=frozenset({"a"}))},
        {"m": replace(SPLIT, only=None)},
        {"m": replace(SPLIT, never=frozenset())},
    ],
)
def test_whatever_may_place_somebody_otherwise_is_another_rule(other: dict[str, Split]) -> None:
    assert rules_of(other) != RULES


def test_weights_steps_and_the_order_of_aliases_and_tenants_are_none() -> None:
    same = replace(SPLIT, step=7, layout=layout(5000), only=frozenset({"b", "a"}))
    assert rules_of({"m": same}) == RULES
    assert rules_of({"n": SPLIT, "m": SPLIT}) == rules_of({"m": SPLIT, "n": SPLIT})
