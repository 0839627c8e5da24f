"""A short bench of the engine's core on a device: how long prompts take, and steps of a batch that decodes."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path

import torch

from libs.clock import SystemClock
from loadtest.engine.checkpoints import COMMON, SEED, SHAPES
from loadtest.gpucheck.reference import write_tensors
from services.worker.engines.port import SamplingParams, SequenceRequest
from services.worker.engines.torch_engine import TorchCore, TorchSettings

BATCH = 32
MODEL = "bench@1"


def make_checkpoint(folder: Path, shape: str) -> Path:
    """A Llama of random weights in the shape `shape` of `loadtest.engine.checkpoints`, without a manifest."""
    sizes = SHAPES[shape]
    folder.mkdir(parents=True)
    config = {"architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-6, **sizes, **COMMON}
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(SEED)
    width, hidden = sizes["hidden_size"], sizes["intermediate_size"]
    key = width // sizes["num_attention_heads"] * sizes["num_key_value_heads"]
    linear = {
        "self_attn.q_proj": (width, width),
        "self_attn.k_proj": (key, width),
        "self_attn.v_proj": (key, width),
        "self_attn.o_proj": (width, width),
        "mlp.gate_proj": (hidden, width),
        "mlp.up_proj": (hidden, width),
        "mlp.down_proj": (width, hidden),
    }
    tensors = {"model.embed_tokens.weight": torch.randn(sizes["vocab_size"], width) * 0.02}
    for index in range(sizes["num_hidden_layers"]):
        layer = f"model.layers.{index}."
        tensors |= {f"{layer}{name}.weight": torch.randn(size) * 0.02 for name, size in linear.items()}
        tensors |= {
            f"{layer}{name}.weight": torch.ones(width) for name in ("input_layernorm", "post_attention_layernorm")
        }
    tensors["model.norm.weight"] = torch.ones(width)
    write_tensors(folder / "model.safetensors", tensors)
    return folder


def measure(folder: Path, *, device: str, weights: str, prompt: int, steps: int) -> dict[str, float]:
    """Seconds to load, prompt tokens a second, milliseconds of a decode step of a full batch (median), and output
    tokens a second. One run of everything goes before, and does not count."""
    settings = TorchSettings(
        models={MODEL: folder},
        device=device,
        weights=weights,  # type: ignore[arg-type]
        require_manifest=False,
        prefix_cache=False,
        max_running=BATCH,
        max_step_tokens=1024,
    )
    core = TorchCore(settings, clock=SystemClock())
    try:
        began = time.perf_counter()
        core.load()
        found = {"load_s": time.perf_counter() - began}
        for _ in range(2):
            found |= _run(core, prompt, steps)
    finally:
        core.close()
    return {name: round(value, 4) for name, value in found.items()}


def _run(core: TorchCore, prompt: int, steps: int) -> dict[str, float]:
    params = SamplingParams(max_tokens=steps, temperature=0.0, ignore_eos=True)
    prompts = [[5 + (7 * row + 3 * place) % 4000 for place in range(prompt)] for row in range(BATCH)]
    core.add([SequenceRequest(handle=row, model=MODEL, prompt=each, params=params) for row, each in enumerate(prompts)])
    began, first, times = time.perf_counter(), set[int](), list[float]()
    prompt_seconds = 0.0
    while core.has_work():
        start = time.perf_counter()
        whole = len(first) == BATCH
        step = core.step()
        first.update(handle for handle, tokens in zip(step.handles, step.tokens, strict=True) if tokens)
        if whole and not any(step.finish):
            times.append(time.perf_counter() - start)
        elif not prompt_seconds and len(first) == BATCH:
            prompt_seconds = time.perf_counter() - began
    seconds = time.perf_counter() - began
    return {
        "prompt_tokens_per_s": BATCH * prompt / prompt_seconds,
        "decode_step_ms": 1000 * statistics.median(times),
        "output_tokens_per_s": BATCH * steps / seconds,
    }
