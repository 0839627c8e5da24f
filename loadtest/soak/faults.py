"""Which fault comes next: drawn from a seed, one at a time. Pure.

One at a time, because that is what the replicas profile promises to bear: a fault begins when the last one is over and
every process is ready again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from libs.authority.callgraph import calls

KILL, FREEZE, PART, FULL, SKEW = "kill", "freeze", "partition", "full disk", "skewed clock"
SLOW, BREAK, SLOW_DISK = "slow process", "broken connections", "slow disk"
WEIGHTS = {KILL: 6, FREEZE: 3, PART: 3, SLOW: 3, BREAK: 2, FULL: 1, SLOW_DISK: 1, SKEW: 2}
"""How often each kind, relatively."""
SECONDS = {
    FREEZE: (0.5, 8.0),
    PART: (1.0, 12.0),
    SLOW: (4.0, 12.0),
    BREAK: (2.0, 10.0),
    FULL: (2.0, 8.0),
    SLOW_DISK: (2.0, 10.0),
    SKEW: (2.0, 10.0),
}
"""How long each lasts."""
DELAYS = {SLOW: (0.1, 5.0), SLOW_DISK: (0.05, 1.0)}
"""Seconds by which each packet to and from a process comes later, and each of its fsyncs returns later."""
SKEWS = (-3600.0, -60.0, -5.0, 5.0, 60.0, 3600.0)
"""Seconds by which a clock is wrong: of a bad clock, and of one that was set to another zone."""
FOREIGN = frozenset({"etcd", "envoy"})
"""Not Python: their clocks cannot be set, nor their fsyncs be held up."""
DURABLE = frozenset({"etcd", "audit", "gateway", "predictor", "edge-auth", "ratelimit", "router", "registry"})
"""Who keeps something on a disk."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong."""

    kind: str
    targets: tuple[str, ...]
    """The process, or the two between which nothing passes."""
    seconds: float = 0.0
    """How long it lasts; a kill takes as long as the process needs to come back."""
    skew: float = 0.0
    """Seconds that a clock is ahead."""
    delay: float = 0.0
    """Seconds, see DELAYS."""
    pause: float = 0.0
    """Seconds of peace before it."""

    def __str__(self) -> str:
        """For the timeline."""
        lasts = f" for {self.seconds:.1f} s" if self.seconds else ""
        ahead = f" by {self.skew:+g} s" if self.skew else ""
        later = f" by {self.delay:.2f} s" if self.delay else ""
        return f"{self.kind} {' | '.join(self.targets)}{ahead}{later}{lasts}"


def faults(seed: int, services: Mapping[str, str], kinds: Collection[str]) -> Iterator[Fault]:
    """An endless sequence; the same for the same seed, processes and kinds.

    :param services: service by process.
    :param kinds: which kinds can be done here.
    """
    rng = random.Random(f"soak {seed}")
    names = sorted(services)
    pairs = [(a, b) for a in names for b in names if a != b and services[b] in calls(services[a])]
    chosen = [kind for kind in WEIGHTS if kind in kinds]
    while True:
        kind = rng.choices(chosen, [WEIGHTS[each] for each in chosen])[0]
        low, high = SECONDS.get(kind, (0.0, 0.0))
        yield Fault(
            kind,
            rng.choice(pairs) if kind == PART else (rng.choice(_candidates(kind, services, names)),),
            round(rng.uniform(low, high), 1),
            rng.choice(SKEWS) if kind == SKEW else 0.0,
            round(math.exp(rng.uniform(*map(math.log, DELAYS[kind]))), 2) if kind in DELAYS else 0.0,
            round(rng.uniform(0.5, 3.0), 1),
        )


def _candidates(kind: str, services: Mapping[str, str], names: list[str]) -> list[str]:
    if kind == FULL:
        return [name for name in names if services[name] in DURABLE]
    if kind == SLOW_DISK:
        return [name for name in names if services[name] in DURABLE - FOREIGN]
    if kind == SKEW:
        return [name for name in names if services[name] not in FOREIGN]
    if kind in (SLOW, BREAK):  # what lies before Envoy is its users' own network
        return [name for name in names if services[name] != "envoy"]
    return names
