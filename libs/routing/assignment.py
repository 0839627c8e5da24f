"""Sticky assignment of callers to the targets of an alias: no state, no coordination, the same answer everywhere.

A caller's key hashes to a bucket; each target owns buckets in proportion to its weight. The layout makes a change of
weights move as few callers as it must: the baseline sits in the middle, the others grow towards it from the two ends
in turn, ordered by version. So while the set of targets stays the same and has at most three members, callers move
only between the baseline and the target whose weight changed, whatever order the targets are listed in. With more
targets, those that share an end may exchange callers.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Target:
    """A share of an alias. `weight` is in the alias's own unit, percent when weights sum to 100."""

    model_version: str
    weight: int
    arm: str = ""


@dataclass(frozen=True, slots=True)
class Layout:
    """Targets in the order of the buckets that they own: those at the low end, the baseline, those at the high end."""

    targets: tuple[Target, ...]
    bounds: tuple[int, ...]
    """Of each target, the first bucket that is no longer its own."""
    baseline: Target

    @classmethod
    def of(cls, baseline: Target, others: Sequence[Target]) -> Layout:
        """The baseline in the middle."""
        ordered = sorted(others, key=lambda target: (target.model_version, target.arm))
        targets = (*ordered[::2], baseline, *reversed(ordered[1::2]))
        return cls(targets, tuple(accumulate(target.weight for target in targets)), baseline)

    @property
    def total(self) -> int:
        """How many buckets there are."""
        return self.bounds[-1]

    def at(self, bucket: int) -> Target:
        """Whose bucket it is. `bucket` is in 0 … total-1."""
        return self.targets[bisect_right(self.bounds, bucket)]

    def own(self, target: Target) -> int | None:
        """The target's first bucket; None while it has none."""
        return self.bounds[self.targets.index(target)] - target.weight if target.weight else None


def lay_out(targets: Sequence[Target]) -> Layout | None:
    """The layout of an alias's own targets, of which the first by version is the baseline; None without any weight."""
    if not sum(target.weight for target in targets):
        return None
    baseline = min(targets, key=lambda target: (target.model_version, target.arm))
    others = list(targets)
    others.remove(baseline)
    return Layout.of(baseline, others)


def bucket_of(salt: str, key: str, buckets: int = 100) -> int:
    """The bucket of `key` under `salt` (an alias or a rollout's id), in 0 … buckets-1, uniform over keys.

    The salt takes part, so that a caller who is early in one rollout is not early in all of them.
    """
    digest = hashlib.blake2b(f"{salt}\0{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") * buckets >> 64


def assign(alias: str, targets: Sequence[Target], key: str) -> Target | None:
    """The target that `key` belongs to; None when no target has weight."""
    layout = lay_out(targets)
    if layout is None:
        return None
    return layout.at(bucket_of(alias, key, layout.total)) if len(targets) > 1 else targets[0]
