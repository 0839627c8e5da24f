"""What an engine step computes, as a few numbers, and what a step of that work costs.

The model is linear with costs of at least zero, so more work never takes less time. Its terms are what a decoder on
one device spends time on: something per step, per sequence (a row of every matrix product), per token whose keys and
values are read by attention (its own, or as many as the longest in the batch has, where a kernel pads), per prompt (a
kernel call of its own) and per prompt token. `weir calibrate` fits them
from a real engine; the simulated engine spends them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple


class StepWork(NamedTuple):
    """One step's work. A token attends to itself and to those before it in its sequence."""

    decoding: int = 0  # sequences that advance by one token
    context: int = 0  # tokens that these attend to, summed
    padded: int = 0  # decoding x the most that any of them attends to
    prompts: int = 0  # prompts of which this step computes a part
    prefilled: int = 0  # prompt tokens computed
    attended: int = 0  # tokens that these attend to, summed


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """Seconds per unit of work. All zero: steps take no time."""

    step_base: float = 0.0
    """Any step."""
    step_per_sequence: float = 0.0
    """Each decoding sequence."""
    step_per_context_token: float = 0.0
    """Each token that a decoding sequence attends to."""
    step_per_padded_token: float = 0.0
    """Each token that a decoding sequence would attend to if all were as long as the longest."""
    step_per_prompt: float = 0.0
    """Each prompt of which the step computes a part."""
    prefill_tokens_per_second: float = math.inf
    """Prompt tokens; a rate where the others are costs, because that is how people know it."""
    prefill_per_attended_token: float = 0.0
    """Each token that a prompt token attends to."""

    @property
    def free(self) -> bool:
        """Steps take no time."""
        return self.prefill_tokens_per_second == math.inf and not (
            self.step_base
            or self.step_per_sequence
            or self.step_per_context_token
            or self.step_per_padded_token
            or self.step_per_prompt
            or self.prefill_per_attended_token
        )

    def seconds(self, work: StepWork) -> float:
        """What a step of this work takes."""
        decoding, context, padded, prompts, prefilled, attended = work
        return (
            self.step_base
            + self.step_per_sequence * decoding
            + self.step_per_context_token * context
            + self.step_per_padded_token * padded
            + self.step_per_prompt * prompts
            + prefilled / self.prefill_tokens_per_second
            + self.prefill_per_attended_token * attended
        )


def attended_tokens(start: int, count: int) -> int:
    """Tokens that `count` successive tokens attend to, the first of them at position `start` (from 0)."""
    return count * start + count * (count + 1) // 2
