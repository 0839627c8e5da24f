"""The engines under contract and a driver that checks the port's promises on every step."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import trtllm_double

from libs.clock import SystemClock
from services.worker.engines.port import SamplingParams, SequenceRequest, StepOutput
from services.worker.engines.simulated import SimulatedEngine
from services.worker.engines.simulated_model import SimulatedModel
from services.worker.engines.tensorrt_llm import TensorrtSettings
from services.worker.engines.tensorrt_llm import build as build_tensorrt

MODEL = "tiny@1"
CLOCK = SystemClock()
SIZES = {"block_size": 4, "total_blocks": 64, "max_running": 4}


def simulated(**costs: Any) -> SimulatedEngine:
    interval = costs.pop("step_interval", 0.0)
    model = SimulatedModel(
        models=(MODEL,), vocabulary=97, first_token=5, eos_token_ids=frozenset({2}), max_context=128, **SIZES, **costs
    )
    return SimulatedEngine(model, clock=CLOCK, step_interval=interval)


def make(name: str, folder: Path) -> Any:
    """An engine that is not started yet. `folder` is an empty folder of its own."""
    match name:
        case "simulated":
            return simulated()
        case "simulated-costed":
            return simulated(step_base=0.0005, step_per_sequence=0.0001, prefill_tokens_per_second=1e5)
        case "simulated-paced":
            return simulated(step_interval=0.002)
        case "tensorrt_llm":
            settings = TensorrtSettings(model=MODEL, folder="checkpoint", max_context=128, eos_token_ids=(2,), **SIZES)
            return build_tensorrt(settings, clock=CLOCK, load_module=trtllm_double.module)
        case "torch":
            from services.worker.engines.torch_engine import TorchSettings, build

            save_tiny_checkpoint(folder)
            return build(TorchSettings(models={MODEL: folder}, **SIZES))
    raise ValueError(name)


def save_tiny_checkpoint(folder: Path) -> None:
    """A random Llama checkpoint of a few thousand parameters, with its manifest."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=97, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=128, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False,
        initializer_range=0.3,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).eval().float().save_pretrained(folder)
    files = [
        {"path": each.name, "sha256": hashlib.sha256(each.read_bytes()).hexdigest(), "bytes": each.stat().st_size}
        for each in sorted(folder.iterdir())
    ]
    (folder / "manifest.json").write_text(json.dumps({"name": "tiny", "version": "1", "files": files}))


def request(handle: int, prompt: list[int] | None = None, *, deadline: float | None = None, **params: Any):
    """A greedy sequence of 6 tokens that ignores the end of sequence, unless told otherwise."""
    model = params.pop("model", MODEL)
    chosen = {"max_tokens": 6, "temperature": 0.0, "ignore_eos": True} | params
    return SequenceRequest(
        handle=handle,
        model=model,
        prompt=[7, 8, 9] if prompt is None else prompt,
        params=SamplingParams(**chosen),
        deadline=deadline,
    )


class Driver:
    """A step sink that remembers everything and fails on a broken promise."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.tokens: dict[int, list[int]] = defaultdict(list)
        self.finish: dict[int, int] = {}
        self.errors: dict[int, str] = {}
        self.logprobs: dict[int, list[Any]] = defaultdict(list)
        self.cached: dict[int, int] = {}
        self.broken: list[str] = []
        self._news = asyncio.Event()

    def sink(self, output: StepOutput) -> None:
        if not len(output.handles) == len(set(output.handles)) == len(output.tokens) == len(output.finish):
            self.broken.append("arrays differ in length or a handle appears twice")
        for handle, tokens, finish in zip(output.handles, output.tokens, output.finish, strict=True):
            if handle in self.finish:
                self.broken.append(f"{handle} appears after its end")
            if tokens and not self.tokens[handle] and handle not in output.prompt_tokens_cached:
                self.broken.append(f"{handle}: first token without prompt_tokens_cached")
            self.tokens[handle] += tokens
            if finish:
                self.finish[handle] = int(finish)
        for handle, entries in output.logprobs.items():
            self.logprobs[handle] += entries
        self.errors |= output.errors
        self.cached |= output.prompt_tokens_cached
        self._news.set()

    async def until(self, condition) -> None:
        while not condition():
            self._news.clear()
            await self._news.wait()
        assert self.broken == []

    async def finished(self, *handles: int) -> None:
        await self.until(lambda: all(handle in self.finish for handle in handles))
