"""What the simulated engine is told: what a step costs, how much there is of everything, and what fits into that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from services.worker.engines.port import SequenceRequest
from services.worker.engines.simulated_versions import Faults, SimulatedVersion
from services.worker.engines.step_costs import StepCosts


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedModel(StepCosts):
    """The costs of a step and the sizes."""

    models: tuple[str, ...]
    """Those served from the start."""
    vocabulary: int = 4096
    """Of versions that name none, like `max_context` and `eos_token_ids`."""
    first_token: int = 300
    """Tokens are drawn from [first_token, vocabulary): below lie special tokens and single bytes."""
    eos_token_ids: frozenset[int] = frozenset()
    block_size: int = 16
    total_blocks: int = 16384
    max_running: int = 256
    max_context: int = 4096
    max_step_tokens: int = 8192
    """Most tokens computed in one step: one for each decoding sequence, the rest for prompts (always at least one)."""
    seed: int = 0
    preemptive: bool = False
    """Sequences hold the blocks of the tokens that they have, and are preempted and computed anew when these run out;
    otherwise each holds what its longest output needs from its start on."""
    faults: Mapping[str, Faults] = field(default_factory=dict)
    """Of the models served from the start."""

    def blocks_for(self, tokens: int) -> int:
        """How many blocks hold so many tokens."""
        return -(-tokens // self.block_size)


def fault_of(request: SequenceRequest, version: SimulatedVersion | None, model: SimulatedModel) -> str:
    """Why a request can never run; empty when it can."""
    size = len(request.prompt)
    if version is None:
        return f"model {request.model} is not served here"
    if size == 0:
        return "the prompt is empty"
    if size >= version.max_context:
        return f"the prompt has {size} tokens; the context is {version.max_context}"
    if request.params.max_tokens < 1:
        return "max_tokens must be at least 1"
    if min(request.prompt) < 0 or max(request.prompt) >= version.vocabulary:
        return "the prompt holds an unknown token id"
    if model.blocks_for(min(size + request.params.max_tokens, version.max_context)) > model.total_blocks:
        return "the sequence needs more memory than there is"
    return ""
