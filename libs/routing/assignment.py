"""Sticky assignment of callers to the targets of an alias: no state, no coordination, the same answer everywhere.

A caller's key hashes to a bucket; each target owns buckets in proportion to its weight. The layout makes a change of
weights move as few callers as it must: the first target (by version) is the baseline and sits in the middle, the
others grow towards it from the two ends in turn. So while the set of targets stays the same and has at most three
members, callers move only between the baseline and the target whose weight changed, whatever order the alias lists
them in. With more targets, those that share an end may exchange callers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """A share of an alias. `weight` is in the alias's own unit, percent when weights sum to 100."""

    model_version: str
    weight: int
    arm: str = ""


def bucket_of(alias: str, key: str, buckets: int = 100) -> int:
    """The bucket of `key` under `alias`, in 0 … buckets-1, uniform over keys.

    The alias takes part, so that a caller who is early in one rollout is not early in all of them.
    """
    digest = hashlib.blake2b(f"{alias}\0{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") * buckets >> 64


def assign(alias: str, targets: Sequence[Target], key: str) -> Target | None:
    """The target that `key` belongs to; None when no target has weight."""
    total = sum(target.weight for target in targets)
    if total == 0:
        return None
    if len(targets) == 1:
        return targets[0]
    ordered = sorted(targets, key=lambda target: (target.model_version, target.arm))
    bucket = bucket_of(alias, key, total)
    low, high = 0, total
    for position, target in enumerate(ordered[1:]):
        if position % 2 == 0:
            low += target.weight
            if bucket < low:
                return target
        else:
            high -= target.weight
            if bucket >= high:
                return target
    return ordered[0]
