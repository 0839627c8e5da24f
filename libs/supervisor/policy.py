"""Pure decisions of the supervisor: order, restart back-off, when a start-up is given up, what hangs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


class OrderError(ValueError):
    """The dependencies name an unknown process or form a cycle; the message says which."""


def levels(after: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Groups of names such that every name comes in a later group than all names it depends on.

    Names inside a group keep the mapping's order. Stopping walks the groups backwards.
    Raises OrderError for unknown names and cycles.
    """
    waiting = {name: set(needed) for name, needed in after.items()}
    for name, needed in waiting.items():
        unknown = sorted(needed - waiting.keys())
        if unknown:
            raise OrderError(f"{name} depends on {', '.join(unknown)}, which is not in the specification")
    groups: list[list[str]] = []
    placed: set[str] = set()
    while waiting:
        group = [name for name, needed in waiting.items() if needed <= placed]
        if not group:
            raise OrderError(f"these depend on one another in a circle: {', '.join(sorted(waiting))}")
        groups.append(group)
        placed.update(group)
        for name in group:
            del waiting[name]
    return groups


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """Exponential back-off: `initial * factor**n`, at most `maximum`, spread by `jitter`."""

    initial: float = 0.25
    """Seconds before the first restart. Short: a crash is mostly a single event and traffic waits."""
    factor: float = 2.0
    maximum: float = 10.0
    """Seconds at most."""
    jitter: float = 0.2
    """Share of the delay by which it is stretched or shortened at random, so that processes that died together do not
    come back together."""
    reset_after: float = 20.0
    """A run of this many seconds counts as stable: the next exit starts from `initial` again."""


def next_restart(policy: RestartPolicy, failures: int, *, ran_for: float, unit: float) -> tuple[int, float]:
    """The new count of consecutive failures, and seconds to wait before the restart.

    `failures` is the count before this exit, `ran_for` the seconds it ran, `unit` a uniform random number in [0, 1).
    """
    count = 1 if ran_for >= policy.reset_after else failures + 1
    # The exponent is capped so that thousands of failures cannot overflow a float.
    delay = min(policy.initial * policy.factor ** min(count - 1, 60), policy.maximum)
    return count, delay * (1 + policy.jitter * (2 * unit - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupPolicy:
    """When a start-up is given up. After the start-up nothing is ever given up, only slowed down."""

    exits_before_ready: int = 1
    """Exits of a process that never became ready. One: a missing dependency or a taken port does not heal by itself,
    and the person at the terminal wants to know now."""
    exits: int = 3
    """Exits of a process that had been ready, while others still start."""


def gives_up(policy: StartupPolicy, *, exits: int, was_ready: bool) -> bool:
    """Whether the start-up fails because of a process that exited `exits` times so far."""
    return exits >= (policy.exits if was_ready else policy.exits_before_ready)


@dataclass(frozen=True, slots=True, kw_only=True)
class LivenessPolicy:
    """When a process hangs. One that answers does not, whatever it answers: it may wait for somebody who is away."""

    looks: int = 5
    """Looks in a row without an answer, at the least: a supervisor that stood still itself has not looked."""
    seconds: float = 30.0
    """How long these must go on, at the least, once it was ready; before that, as long as a start may take."""


@dataclass(slots=True)
class Silence:
    """Looks at one process in a row that had no answer. Times are monotonic seconds."""

    since: float = 0.0
    looks: int = 0

    def note(self, *, answered: bool, now: float) -> None:
        """Takes a look in."""
        if answered:
            self.looks = 0
            return
        if not self.looks:
            self.since = now
        self.looks += 1

    def hangs(self, policy: LivenessPolicy, *, seconds: float, now: float) -> bool:
        """Whether it has lasted for so many seconds, and looks."""
        return self.looks >= policy.looks and now - self.since >= seconds


def patience(policy: LivenessPolicy, *, was_ready: bool, ready_timeout: float, failures: int) -> float:
    """Seconds of silence that are borne. A start that was too slow gets longer each time: it may have had much to do.

    :param failures: ends in a row, as counted by `next_restart`.
    """
    return policy.seconds if was_ready else max(policy.seconds, ready_timeout) * (1 + failures)
