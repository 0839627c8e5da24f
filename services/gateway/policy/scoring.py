"""Whose tokens' log-probabilities are asked of the worker: enough of every arm's requests to judge it, few of many.

They cost the gateway a sixth more per token, and engines a slower way to sample. So each arm has a bucket: an arm with
little traffic is scored in full, which costs little in all, and a busy one a few times per second.
"""

from __future__ import annotations

_BURST = 2.0
"""Seconds' worth of scored requests that an arm may have at once."""
_MOST = 1024
"""Arms; when there are more, all begin anew."""


class Scoring:
    """The buckets of all arms."""

    def __init__(self, per_second: float) -> None:
        self._rate = per_second
        self._levels: dict[tuple[str, str], tuple[float, float]] = {}  # by rollout and arm: tokens, and when

    def take(self, rollout_id: str, arm: str, now: float) -> bool:
        """Whether the next request of an arm is scored; `now` in monotonic seconds."""
        most = self._rate * _BURST
        level, since = self._levels.get((rollout_id, arm), (most, now))
        level = min(most, level + (now - since) * self._rate)
        scored = level >= 1.0
        if len(self._levels) >= _MOST:
            self._levels.clear()
        self._levels[rollout_id, arm] = (level - 1.0 if scored else level), now
        return scored
