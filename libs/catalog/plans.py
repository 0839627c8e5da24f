"""What a tenant's plan gives: weight, share of the cache, what happens beyond its quota and under overload.

The same as `weir.registry.v1.PlanPolicy`, as plain data; `catalog.py` reads it out of the registry's snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

OUTPUT_CAPPED = "output_capped"
SMALLER_MODEL = "smaller_model"
CACHED_ANSWER = "cached_answer"
DEFAULT_ANSWER = "default_answer"
CPU_FALLBACK = "cpu_fallback"
OVER_QUOTA = "over_quota"
SAFETY_SKIPPED = "safety_skipped"
"""It left without its safety filter."""
VERSION_CHANGED = "version_changed"
"""Another version finished it."""
NUMERICS_CHANGED = "numerics_changed"
"""A worker finished it that may compute other bits than the one that began it: another processor, say."""
LADDER_FLAGS = frozenset((OUTPUT_CAPPED, SMALLER_MODEL, CACHED_ANSWER, DEFAULT_ANSWER, CPU_FALLBACK))
"""Flags of what the ladder did to an answer."""
ALTERED = LADDER_FLAGS | {SAFETY_SKIPPED, VERSION_CHANGED, NUMERICS_CHANGED}
"""Flags of answers that are not what the request would get at another time."""


@dataclass(frozen=True, slots=True)
class CapOutput:
    """Fewer tokens per choice; from `pressure` on before anything is refused, 0 for only after a refusal."""

    max_tokens: int
    pressure: float = 0.0
    flag = OUTPUT_CAPPED


@dataclass(frozen=True, slots=True)
class SmallerModel:
    """Another model, by the one that was asked for; both as callers name them."""

    models: Mapping[str, str]
    flag = SMALLER_MODEL


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    """An answer to the same request that is at most `max_age` seconds old."""

    max_age: float
    flag = CACHED_ANSWER


@dataclass(frozen=True, slots=True)
class DefaultAnswer:
    """A fixed text."""

    text: str
    flag = DEFAULT_ANSWER


@dataclass(frozen=True, slots=True)
class CpuFallback:
    """The same version in another pool, by the pool that refused."""

    pools: Mapping[str, str]
    flag = CPU_FALLBACK


Step = CapOutput | SmallerModel | CachedAnswer | DefaultAnswer | CpuFallback


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan without a policy of its own gives a weight of 1, all of the cache, refusals over quota and no ladder."""

    weight: float = 1.0
    kv_share: float = 0.0
    serve_over_quota: bool = False
    ladder: tuple[Step, ...] = ()

    @property
    def remembers(self) -> bool:
        """Answers are worth keeping for this plan."""
        return any(isinstance(step, CachedAnswer) for step in self.ladder)
