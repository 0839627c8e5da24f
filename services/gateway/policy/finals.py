"""What a generation was once it is over, token by token: for whoever compares answers or scores them. Plain data."""

from __future__ import annotations

from dataclasses import dataclass

from services.gateway.policy.events import End, Finish


@dataclass(frozen=True, slots=True)
class FinalChoice:
    """One sequence as the worker gave it, a stop string's tokens included. `logprobs` are the natural logarithms of the
    tokens' probabilities, one per token; empty when the engine told none, or not all."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalAnswer:
    """A whole answer, however it ended (`end.finish`)."""

    model_version: str
    """What gave it, or its first part; see `moved`."""
    choices: tuple[FinalChoice, ...]
    end: End
    first_after: float
    """Seconds from the arrival to the worker's first token; 0 when there was none."""
    moved: bool = False
    """Another version gave its rest: no version can be judged by it."""


@dataclass(frozen=True, slots=True, order=True)
class ArmKey:
    """Where a request counts: see `weir.rollout.v1.ArmOutcomes`. `phase` is the number of the `RolloutPhase`."""

    alias: str
    rollout_id: str
    phase: int
    step: int
    arm: str
    mirrored: bool = False
