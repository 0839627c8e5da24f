"""The engine's answers on a device against the plain reference, in each number type and each way to run it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from libs.clock import SystemClock
from loadtest.gpucheck.reference import Reference
from services.worker.engines.port import SamplingParams, SequenceRequest
from services.worker.engines.torch_engine import TorchCore, TorchSettings

MODEL = "weir-{}@1"
TIGHT = {"block_size": 4, "total_blocks": 72, "max_step_tokens": 48}
"""Memory for little more than the longest sequence."""
CASES: dict[str, dict[str, Any]] = {
    "whole prompts": {"max_step_tokens": 1024, "prefix_cache": False},
    "chunks, cached": {"max_step_tokens": 48},
    "swapped": TIGHT | {"host_bytes": 1 << 26},
    "recomputed": TIGHT | {"preemption": "recompute"},
}
WEIGHTS = ("float32", "bfloat16")
MOST = {"float32": (1e-3, 1e-3), "bfloat16": (0.25, 0.03)}
"""How far a log-probability may lie from the reference's, and the mean of all. The reference of bfloat16 has its
weights rounded, and computes in float32."""


@dataclass(slots=True)
class Found:
    """What a run showed: the largest and the mean distance of log-probabilities, over how many tokens, and what is
    wrong."""

    tokens: int = 0
    largest: float = 0.0
    mean: float = 0.0
    faults: list[str] = field(default_factory=list)


def prompts(count: int, vocabulary: int) -> list[list[int]]:
    """Random; every second one begins as others do."""
    source = random.Random(5)
    begun = [source.randrange(5, vocabulary) for _ in range(70)]
    return [
        (begun[: source.randint(20, 70)] if index % 2 else [])
        + [source.randrange(5, vocabulary) for _ in range(source.randint(1, 60))]
        for index in range(count)
    ]


def check(folder: Path, name: str, *, device: str, weights: str, case: str, count: int, output: int) -> Found:
    """Greedy answers to `count` prompts, `output` tokens each, asked twice; every token must be the reference's best,
    or as good as that, and every log-probability near the reference's."""
    model = MODEL.format(name)
    reference = Reference(folder, rounded=weights == "bfloat16")
    settings = TorchSettings(
        **{"models": {model: folder}, "device": device, "weights": weights, "max_running": 16, **CASES[case]}
    )
    core = TorchCore(settings, clock=SystemClock())
    found, distances = Found(), list[float]()
    most, most_mean = MOST[weights]
    try:
        core.load()
        asked = prompts(count, int(reference.config["vocab_size"]))
        for turn in range(2):
            tokens, logprobs, errors = _answers(core, model, asked, output)
            found.faults += [f"prompt {index}: {error}" for index, error in errors.items()]
            for index, prompt in enumerate(asked):
                mine = tokens[index]
                if index not in errors and len(mine) != output:
                    found.faults.append(f"prompt {index}: {len(mine)} tokens instead of {output}")
                rows = reference.logprobs([*prompt, *mine])[len(prompt) - 1 :]
                for place, (token, told) in enumerate(zip(mine, logprobs[index], strict=True)):
                    off = abs(rows[place, token].item() - told)
                    behind = (rows[place].max() - rows[place, token]).item()
                    distances.append(off)
                    if not (off <= most and behind <= 2 * most):
                        where = f"prompt {index}, turn {turn}, token {place}"
                        found.faults.append(f"{where}: off by {off:.4g}, {behind:.4g} behind the best")
                        break
        found.faults += _unclean(core, case)
    finally:
        core.close()
    found.tokens, found.largest = len(distances), max(distances, default=0.0)
    found.mean = sum(distances) / max(1, len(distances))
    if not found.mean <= most_mean:
        found.faults.append(f"the mean distance is {found.mean:.4g}, more than {most_mean:g}")
    return found


def _answers(
    core: TorchCore, model: str, asked: Sequence[Sequence[int]], output: int
) -> tuple[dict[int, list[int]], dict[int, list[float]], dict[int, str]]:
    params = SamplingParams(max_tokens=output, temperature=0.0, ignore_eos=True, logprobs=0)
    tokens: dict[int, list[int]] = {index: [] for index in range(len(asked))}
    logprobs: dict[int, list[float]] = {index: [] for index in range(len(asked))}
    errors: dict[int, str] = {}
    core.add([SequenceRequest(handle=i, model=model, prompt=each, params=params) for i, each in enumerate(asked)])
    while core.has_work():
        step = core.step()
        for handle, new in zip(step.handles, step.tokens, strict=True):
            tokens[handle] += new
        for handle, entries in step.logprobs.items():
            logprobs[handle] += [each.logprob for each in entries]
        errors |= step.errors
    return tokens, logprobs, errors


def _unclean(core: TorchCore, case: str) -> list[str]:
    """What is left behind, and what the case was to show and did not."""
    capacity = core.capacity()
    faults = []
    if capacity.free_blocks != core.info.total_blocks:
        faults.append(f"{core.info.total_blocks - capacity.free_blocks} blocks are not free at the end")
    if "cached" in case and not capacity.prefix_hit_total:
        faults.append("nothing was found in the prefix cache")
    if case in ("swapped", "recomputed") and not capacity.preemptions_total:
        faults.append("nothing was preempted")
    return faults
