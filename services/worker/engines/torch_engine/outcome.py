"""What a step led to, as the engine port tells it, and what it took. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.worker.engines.port import StepOutput
from services.worker.engines.torch_engine.sequences import FAILED, Advanced, Ended

if TYPE_CHECKING:
    from services.worker.engines.torch_engine.sampler import Sampled


@dataclass(slots=True)
class Timings:
    """Where the seconds of one step went."""

    schedule: float = 0.0
    prepare: float = 0.0
    forward: float = 0.0
    sample: float = 0.0
    apply: float = 0.0
    total: float = 0.0


def output_of(step: int, ended: Iterable[Ended]) -> StepOutput:
    """A step's output so far: what ended before it."""
    output = StepOutput(
        step=step, handles=[], tokens=[], finish=[], logprobs={}, errors={}, prompt_tokens_cached={}, ended_before=True
    )
    for each in ended:
        _append(output, each.handle, None, each.reason, each.message)
    return output


def report(output: StepOutput, advanced: Advanced, result: Sampled | None) -> None:
    """Add what a sampled token led to."""
    handle, message = advanced.sequence.request.handle, advanced.message
    if result is not None and result.token is None and result.error:
        message = result.error
    _append(output, handle, advanced.token, advanced.finish, message)
    if advanced.token is not None and result is not None and result.logprob is not None:
        output.logprobs[handle] = [result.logprob]


def token_of(result: Sampled | None) -> int | None:
    """As `Scheduler.apply` wants it."""
    if result is None:
        return None
    return FAILED if result.token is None else result.token


def _append(output: StepOutput, handle: int, token: int | None, finish: int, message: str) -> None:
    output.handles.append(handle)
    output.tokens.append([] if token is None else [token])
    output.finish.append(int(finish))
    if message:
        output.errors[handle] = message
