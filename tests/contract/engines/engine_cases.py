"""The engines under contract, what each offers, and a driver that checks the port's promises on every step."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import trtllm_double

from libs.clock import SystemClock
from services.worker.engines.port import Capacity, SamplingParams, SequenceRequest, StepOutput
from services.worker.engines.simulated import SimulatedEngine
from services.worker.engines.simulated_model import SimulatedModel
from services.worker.engines.tensorrt_llm import TensorrtSettings
from services.worker.engines.tensorrt_llm import build as build_tensorrt

MODEL = "tiny@1"
CLOCK = SystemClock()
CONTEXT = 128
SIZES = {"block_size": 4, "total_blocks": 64, "max_running": 4}
VOCABULARY = 97
EOS = 2
FIRST_CHARACTER = 3
"""The tiny tokenizer: ids 0 to 2 are special, each further one is a printable character, from "!" on."""

NAMES = ["simulated", "simulated-costed", "simulated-paced", "simulated-preemptive", "tensorrt_llm", "torch"]
"""Every engine that can run in any environment of the project."""
OPTIONAL = {"vllm": "vllm", "tensorrt_llm-real": "tensorrt_llm"}
"""Engines whose library is not among the project's own dependencies, with the package that tells that it is there."""

OFFERS = {
    "simulated": {"priorities", "embeddings", "min tokens"},
    "tensorrt_llm": set(),
    "torch": {"priorities", "embeddings", "prefix cache", "structure", "logit bias", "min tokens", "bad words"},
    "vllm": {"priorities", "prefix cache", "structure", "logit bias", "min tokens", "bad words"},
}
"""What an engine offers beyond what all must do; the tests of what it lacks see that it says so."""


def names() -> list[str]:
    """The engines that this environment can run."""
    return [*NAMES, *(name for name, package in OPTIONAL.items() if importlib.util.find_spec(package) is not None)]


def simulated(**costs: Any) -> SimulatedEngine:
    interval = costs.pop("step_interval", 0.0)
    model = SimulatedModel(
        models=(MODEL,),
        vocabulary=VOCABULARY,
        first_token=5,
        eos_token_ids=frozenset({EOS}),
        max_context=CONTEXT,
        **SIZES,
        **costs,
    )
    return SimulatedEngine(model, clock=CLOCK, step_interval=interval)


def make(name: str, folder: Path) -> Any:
    """An engine that is not started yet. `folder` is an empty folder of its own."""
    match name:
        case "simulated":
            return simulated()
        case "simulated-costed":
            return simulated(step_base=0.0005, step_per_sequence=0.0001, prefill_tokens_per_second=1e5)
        case "simulated-preemptive":
            return simulated(preemptive=True)
        case "simulated-paced":
            return simulated(step_interval=0.002)
        case "tensorrt_llm":
            save_tiny_checkpoint(folder)
            settings = TensorrtSettings(
                model=MODEL, folder=str(folder), max_context=CONTEXT, eos_token_ids=(EOS,), **SIZES
            )
            return build_tensorrt(settings, clock=CLOCK, load_module=trtllm_double.module)
        case "tensorrt_llm-real":
            save_tiny_checkpoint(folder)
            settings = TensorrtSettings(
                model=MODEL, folder=str(folder), max_context=CONTEXT, eos_token_ids=(EOS,), **SIZES
            )
            return build_tensorrt(settings, clock=CLOCK)
        case "torch":
            from services.worker.engines.torch_engine import TorchSettings
            from services.worker.engines.torch_engine.hosting import build

            save_tiny_checkpoint(folder)
            return build(TorchSettings(models={MODEL: folder}, **SIZES))
        case "vllm":
            save_tiny_checkpoint(folder)
            return make_vllm(folder)
    raise ValueError(name)


def make_vllm(folder: Path, *, on_failure: Any = None, **settings: Any) -> Any:
    """A vLLM engine on a checkpoint; on a CPU its blocks are of 32 tokens or multiples."""
    from services.worker.engines.vllm import VllmSettings, build

    chosen = {
        "block_size": 32,
        "total_blocks": 64,
        "max_running": 4,
        "max_step_tokens": 512,
        "kv_cache_bytes": 64 * 2**20,
        "dtype": "float32",
        "enforce_eager": True,
    }
    return build(
        VllmSettings(model=MODEL, folder=str(folder), **(chosen | settings)), clock=CLOCK, on_failure=on_failure
    )


def save_tiny_checkpoint(folder: Path) -> None:
    """A random Llama checkpoint of some ten thousand parameters and its tokenizer, with a manifest."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    # Heads of 32: vLLM's attention on a CPU takes no narrower ones.
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=CONTEXT, bos_token_id=1, eos_token_id=EOS,
        tie_word_embeddings=False, initializer_range=0.15,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).eval().float().save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(tiny_tokenizer()))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<bos>", "eos_token": "<eos>"})
    )
    save_manifest(folder, "tiny", "1")


def save_manifest(folder: Path, name: str, version: str) -> None:
    """A manifest of the files that are in the folder."""
    files = [
        {"path": each.name, "sha256": hashlib.sha256(each.read_bytes()).hexdigest(), "bytes": each.stat().st_size}
        for each in sorted(folder.iterdir())
        if each.name != "manifest.json"
    ]
    (folder / "manifest.json").write_text(json.dumps({"name": name, "version": version, "files": files}))


def tiny_tokenizer() -> dict[str, Any]:
    """A tokenizers file: one token per printable character."""
    special = ["<pad>", "<bos>", "<eos>"]
    characters = [chr(33 + index) for index in range(VOCABULARY - FIRST_CHARACTER)]
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": number, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
            for number, token in enumerate(special)
        ],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {
            "type": "BPE",
            "vocab": {token: number for number, token in enumerate([*special, *characters])},
            "merges": [],
        },
    }  # fmt: skip


def text_of(tokens: list[int]) -> str:
    """What the tiny tokenizer makes of them."""
    return "".join(chr(33 + token - FIRST_CHARACTER) for token in tokens)


def request(handle: int, prompt: list[int] | None = None, **params: Any) -> SequenceRequest:
    """A greedy sequence of 6 tokens that ignores the end of sequence, unless told otherwise. Fields of the request
    and of its sampling parameters go by their names."""
    own = {
        each: params.pop(each)
        for each in ("deadline", "priority", "cache_salt", "group", "model", "resumed")
        if each in params
    }
    chosen = {"max_tokens": 6, "temperature": 0.0, "ignore_eos": True} | params
    return SequenceRequest(
        **({"model": MODEL} | own),
        handle=handle,
        prompt=[7, 8, 9] if prompt is None else prompt,
        params=SamplingParams(**chosen),
    )


class Driver:
    """A step sink that remembers everything and notes every broken promise."""

    def __init__(self, name: str, engine: Any) -> None:
        self.engine = engine
        self.offers = OFFERS[name.partition("-")[0]]
        self.tokens: dict[int, list[int]] = defaultdict(list)
        self.finish: dict[int, int] = {}
        self.errors: dict[int, str] = {}
        self.logprobs: dict[int, list[Any]] = defaultdict(list)
        self.cached: dict[int, int] = {}
        self.started: list[int] = []
        """Handles in the order of their first tokens."""
        self.frames = 0
        """Steps that carried tokens."""
        self.broken: list[str] = []
        self._load: Capacity | None = None
        self._news = asyncio.Event()

    def sink(self, output: StepOutput) -> None:
        if not len(output.handles) == len(set(output.handles)) == len(output.tokens) == len(output.finish):
            self.broken.append("arrays differ in length or a handle appears twice")
        self.frames += any(output.tokens)
        for handle, tokens, finish in zip(output.handles, output.tokens, output.finish, strict=True):
            if handle in self.finish:
                self.broken.append(f"{handle} appears after its end")
            if tokens and not self.tokens[handle]:
                self.started.append(handle)
                if handle not in output.prompt_tokens_cached:
                    self.broken.append(f"{handle}: first token without prompt_tokens_cached")
            if handle in output.prompt_tokens_cached and handle in self.cached:
                self.broken.append(f"{handle}: prompt_tokens_cached twice")
            if len(output.logprobs.get(handle, tokens)) != len(tokens):
                self.broken.append(f"{handle}: not one entry of logprobs per token")
            if (finish == 5) != (handle in output.errors):
                self.broken.append(f"{handle}: an error without a message, or a message without an error")
            self.tokens[handle] += tokens
            if finish:
                self.finish[handle] = int(finish)
        for handle, entries in output.logprobs.items():
            self.logprobs[handle] += entries
        self.errors |= output.errors
        self.cached |= output.prompt_tokens_cached
        self.check_capacity()
        self._news.set()

    def check_capacity(self) -> None:
        """The bounds that hold at any time, and counters that never fall."""
        load, info, before = self.engine.capacity(), self.engine.info, self._load
        bounds = {
            "free_blocks": info.total_blocks,
            "running": info.max_running,
            "waiting": math.inf,
            "queued_prefill_tokens": math.inf,
            "last_step_seconds": math.inf,
            "decode_step_seconds": math.inf,
            "prefill_tokens_per_second": math.inf,
            "cached_blocks": load.free_blocks,
            "swapped": load.waiting,
            "fragmentation": 1,
            "prefix_queried_total": math.inf,
            "prefix_hit_total": load.prefix_queried_total,
            "preemptions_total": math.inf,
            "spilled_blocks": math.inf,
        }
        for name, most in bounds.items():
            if not 0 <= getattr(load, name) <= most:
                self.broken.append(f"{name} is {getattr(load, name)} of at most {most}")
            if before is not None and name.endswith("_total") and getattr(load, name) < getattr(before, name):
                self.broken.append(f"{name} fell")
        self._load = load

    async def until(self, condition: Any) -> None:
        while not condition():
            self._news.clear()
            await self._news.wait()
        assert not self.broken, self.broken

    async def finished(self, *handles: int) -> None:
        await self.until(lambda: all(handle in self.finish for handle in handles))

    async def run(self, *requests: SequenceRequest) -> None:
        """Submit together and wait until all have ended."""
        self.engine.submit(requests)
        await self.finished(*(each.handle for each in requests))
