"""Contestant: vLLM, run by the interpreter of its own environment (see `VLLM_ENV` in loadtest/README.md).

Its engine is driven step by step in this process (the bench turns off its extra process, which would compete for the
same CPUs), so a token's time is the end of the step that made it. Imports only vLLM and `child.py`.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from vllm import EngineArgs, SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.llm_engine import LLMEngine

from loadtest.engine import child


def run(engine: LLMEngine, order: child.Order) -> child.Answer:
    """One workload."""
    items = order["items"]
    start = time.perf_counter()
    for number, item in enumerate(items):
        params = SamplingParams(
            temperature=0.0,
            max_tokens=item["output"],
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        engine.add_request(str(number), {"prompt_token_ids": item["prompt"]}, params)
    first: dict[int, float] = {}
    outputs = 0
    while engine.has_unfinished_requests():
        produced = engine.step()
        now = time.perf_counter()
        for output in produced:
            first.setdefault(int(output.request_id), now - start)
            outputs += len(output.outputs[0].token_ids)
    seconds = time.perf_counter() - start
    expected = sum(item["output"] for item in items)
    if outputs != expected:
        raise RuntimeError(f"{outputs} tokens were generated, not {expected}")
    prompts = sum(len(item["prompt"]) for item in items)
    return child.outcome(seconds, [first[number] for number in range(len(items))], prompts, outputs) | {
        "rss_peak": child.peak_rss()
    }


def main() -> None:
    """Serve orders."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--running", type=int, required=True)
    out = child.answers()
    options = parser.parse_args()
    arguments: dict[str, Any] = {
        "model": options.folder,
        "dtype": "float32",
        "skip_tokenizer_init": True,
        "enable_prefix_caching": True,
        "max_model_len": options.context,
        "max_num_seqs": options.running,
    }
    engine = LLMEngine.from_engine_args(EngineArgs(**arguments))
    child.serve(out, lambda order: run(engine, order))


if __name__ == "__main__":
    main()
