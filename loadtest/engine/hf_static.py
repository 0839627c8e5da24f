"""Contestant: `transformers` with static batches, the plain way to run a checkpoint without a serving engine.

Batches of 16 in order of arrival, padded on the left; each runs until its longest output is complete. Only tokens that
were asked for count. A request's first token is there when its batch's first forward pass is.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, StoppingCriteria, StoppingCriteriaList

from loadtest.engine import child

BATCH = 16
PADDING = 0


class FirstToken(StoppingCriteria):
    """Stops nothing; notes when the first token of a batch has been chosen."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
        """Called after each token with everything so far, (n, length)."""
        if not self.at:
            self.at = time.perf_counter()
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


def generate(model: Any, prompts: list[list[int]], longest_output: int) -> float:
    """Run one batch; returns when its first token was there."""
    width = max(map(len, prompts))
    ids = torch.tensor([[PADDING] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    first = FirstToken()
    settings = GenerationConfig(
        max_new_tokens=longest_output, do_sample=False, use_cache=True, eos_token_id=None, pad_token_id=PADDING
    )
    out = model.generate(
        input_ids=ids, attention_mask=mask, generation_config=settings, stopping_criteria=StoppingCriteriaList([first])
    )
    if out.shape[1] != width + longest_output:
        raise RuntimeError(f"{out.shape[1] - width} tokens were generated, not {longest_output}")
    return first.at


def run(model: Any, order: child.Order) -> child.Answer:
    """One workload."""
    items = order["items"]
    start = time.perf_counter()
    first: list[float] = []
    for begin in range(0, len(items), BATCH):
        group = items[begin : begin + BATCH]
        at = generate(model, [item["prompt"] for item in group], max(item["output"] for item in group))
        first += [at - start] * len(group)
    seconds = time.perf_counter() - start
    prompts, outputs = sum(len(item["prompt"]) for item in items), sum(item["output"] for item in items)
    return child.outcome(seconds, first, prompts, outputs) | {"rss_peak": child.peak_rss()}


def main() -> None:
    """Serve orders."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    out = child.answers()
    options = parser.parse_args()
    torch.set_num_threads(child.THREADS)
    model = AutoModelForCausalLM.from_pretrained(options.folder, dtype=torch.float32).eval()
    # What the checkpoint says of its end of sequence would override the None given to `generate`.
    model.generation_config.eos_token_id = None
    with torch.inference_mode():
        child.serve(out, lambda order: run(model, order))


if __name__ == "__main__":
    main()
