"""What arms can be judged by: enough keys, and a split of the requests as it was assigned.

**Sample-ratio check.** When requests that began are not split as the weights say, something decides beside the hash who
counts (lost counts, callers who come less to a slow arm, callers who try again at a failing one), and what the arms
show may be that (Fabijan et al., "Diagnosing sample ratio mismatch in online controlled experiments", KDD 2019). The
shares of requests alone prove nothing: large keys land where they land. So the sample is the buckets of keys. With t
requests of a bucket, c of them the arm's, and w the arm's share of the weights, e = c − w·t is 0 on average, whatever
the keys' sizes; its spread is what it is where a bucket shows both arms, and w(1−w)·t² where it shows one, as if it
were a single key. The mean of e is held against 0 by the anytime-valid t-test of `means`.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from services.rollout.policy import keys, means
from services.rollout.policy.evidence import ArmEvidence
from services.rollout.policy.intervals import Level
from services.rollout.policy.keys import KeySums
from services.rollout.policy.means import Estimate
from services.rollout.policy.plan import WHOLE, Plan

STARTED = "errors"
"""The metric that every request counts in when it begins."""


_TELLING = 20
"""Requests of a step after which it is no accident that all are of the same few keys."""


class Footing(enum.Enum):
    """By what an arm is judged."""

    KEYS = "keys"
    """By its requests and by its keys: alpha holds."""
    REQUESTS = "requests"
    """By its requests alone, as if each were a key's of its own."""
    ROOM = "room"
    """With room for what keys differ by: only what is far off is breached."""


def footing(plan: Plan, weights: tuple[int, ...], index: int, ours: ArmEvidence, theirs: ArmEvidence) -> Footing:
    """Of the arm at `index`; `weights` as they are now."""
    pair = _started(ours, theirs)
    if pair is None:
        return Footing.REQUESTS
    if any(map(keys.few, pair)):
        return Footing.REQUESTS if plan.few_keys else Footing.ROOM
    return Footing.ROOM if _mismatch(plan, weights, index, *pair) else Footing.KEYS


def doubt(plan: Plan, weights: tuple[int, ...], index: int, ours: ArmEvidence, theirs: ArmEvidence) -> str:
    """Why the arm is not judged as it should be, in words; empty: it is, or it is too early to say."""
    pair = _started(ours, theirs)
    if pair is None:
        return ""
    name = plan.arms[index].name
    for whose, started in ((name, pair[0]), ("the baseline", pair[1])):
        if keys.surely_few(started) and not plan.few_keys:
            return (
                f"{whose} has {started.count:,} requests of so few keys that they fill {started.occupied} buckets of "
                f"{keys.BUCKETS}; alpha needs {keys.LEAST_KEYS}. Stick by user or session, or say in few_keys_reason "
                "why it may be judged by its requests alone"
            )
    if any(map(keys.few, pair)):
        return ""
    return _mismatch(plan, weights, index, *pair)


def one_sided(arms: Sequence[ArmEvidence]) -> str:
    """That a step's requests come from so few keys that an arm may wait for its own for ever, in words; empty: they do
    not, or it is too early to say. A key keeps its arm.

    :param arms: everything that is known of the step, the baseline's too.
    """
    known = [each.keys[STARTED].counts for each in arms if STARTED in each.keys]
    counts = [sum(bucket) for bucket in zip(*known, strict=True)]
    every, filled = sum(counts), sum(1 for count in counts if count)
    if every < _TELLING or not keys.few(KeySums(tuple(counts))):
        return ""
    who = "one sticky key" if filled == 1 else f"sticky keys that fill {filled} buckets of {keys.BUCKETS}"
    return f"all {every:,} requests came from {who}, and a key keeps its arm: stick by user or session"


def _started(ours: ArmEvidence, theirs: ArmEvidence) -> tuple[KeySums, KeySums] | None:
    if STARTED not in ours.keys or STARTED not in theirs.keys:
        return None
    return ours.keys[STARTED], theirs.keys[STARTED]


def _mismatch(plan: Plan, weights: tuple[int, ...], index: int, ours: KeySums, theirs: KeySums) -> str:
    planned = [arm.weight for arm in plan.arms] if not plan.steps else None
    if index >= len(weights) or not weights[index] or (planned is not None and list(weights) != planned):
        return ""
    if plan.steps and weights not in {(step.weight,) for step in plan.steps}:
        return ""  # eased: requests of the step began under other weights, too
    share = weights[index] / (weights[index] + WHOLE - sum(weights))
    off, spread, every = 0.0, 0.0, 0
    filled = 0
    for mine, other in zip(ours.counts, theirs.counts, strict=True):
        both = mine + other
        if not both:
            continue
        filled += 1
        every += both
        error = mine - share * both
        off += error
        spread += error * error if mine and other else max(error * error, share * (1.0 - share) * both * both)
    if filled < keys.LEAST_KEYS:
        return ""
    alpha = plan.alpha / (2.0 * len(plan.arms) * max(len(plan.steps), 1))
    found = means.mean(Estimate(filled, off / filled, spread / filled), Level.of(alpha, alpha))
    if found.low <= 0.0 <= found.high:
        return ""
    scale = filled / every
    return (
        f"{plan.arms[index].name} has {ours.count:,} of {every:,} requests that it and the baseline began, "
        f"{ours.count / every:.2%}, where {share:.2%} were assigned (off by {100 * scale * found.low:+.2f} to "
        f"{100 * scale * found.high:+.2f} points): something beside the split decides who counts, and what the arms "
        "show may be that"
    )
