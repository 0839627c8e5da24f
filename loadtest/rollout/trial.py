"""What one rollout did to its callers, from what they saw and what the registry says. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.overload.samples import OK
from loadtest.rollout.traffic import Seen


@dataclass(frozen=True, slots=True)
class Harm:
    """A canary that was taken back. Times in seconds."""

    detect: float
    """From the end of the first bad answer of the canary to the decision."""
    off: float
    """From the decision to the sending of the last request that the canary answered; 0 when that came before."""
    harmed_pct: float
    """Bad answers of the canary, in per cent of all requests sent from the canary's first to the decision and a second
    more."""
    samples: int
    """Answers of the canary up to the decision."""


class NoHarmError(ValueError):
    """The canary gave no bad answer: there is nothing to measure."""


def harm(seen: Sequence[Seen], *, candidate: str, decided: float, slow: bool) -> Harm:
    """What the canary did.

    :param decided: Unix seconds of the decision to take it back.
    :param slow: it is slow, so that each of its answers is bad; else its failures are.
    :raises NoHarmError: it was never bad.
    """

    def of_canary(each: Seen) -> bool:
        # Only the canary fails in these runs: an answer that failed too early to say who gave it is the canary's.
        return each.version == candidate or (not each.version and each.outcome != OK)

    canary = [each for each in seen if of_canary(each)]
    bad = [each for each in canary if slow or each.outcome != OK]
    if not bad:
        raise NoHarmError(f"{candidate} gave no bad answer")
    begun = min(each.sent for each in canary)
    concerned = [each for each in seen if begun <= each.sent <= decided + 1.0]
    return Harm(
        detect=decided - min(each.ended for each in bad),
        off=max(0.0, max(each.sent for each in canary) - decided),
        harmed_pct=100.0 * len(bad) / len(concerned),
        samples=sum(each.ended <= decided for each in canary),
    )


def flaps(seen: Sequence[Seen]) -> int:
    """Users who met more than one version within these answers of one step."""
    met: dict[tuple[str, str], set[str]] = {}
    for each in seen:
        if each.version:
            met.setdefault((each.alias, each.user), set()).add(each.version)
    return sum(len(versions) > 1 for versions in met.values())


def moved_pct(before: Sequence[Seen], after: Sequence[Seen]) -> float:
    """Of the users who were answered in both steps, the percentage who met another version in the second.

    :raises ValueError: no user was answered in both.
    """
    first = {(each.alias, each.user): each.version for each in before if each.version}
    second = {(each.alias, each.user): each.version for each in after if each.version}
    both = first.keys() & second.keys()
    if not both:
        raise ValueError("no user was answered in both steps")
    return 100.0 * sum(first[user] != second[user] for user in both) / len(both)
