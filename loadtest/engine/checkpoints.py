"""The checkpoints of the benchmark: two Llamas and one of each of some other families, random weights from a seed, made
once in build/bench."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

SEED = 20260101
_SIZES = {
    "hidden_size": 768,
    "intermediate_size": 2304,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
}
_LONGROPE = {  # of Phi-4-mini, within its original context
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0] * 24,
    "long_factor": [2.0] * 24,
}
SHAPES: dict[str, dict[str, Any]] = {
    # 5.5 and 107 million parameters
    "t": {
        "hidden_size": 256,
        "intermediate_size": 704,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 4096,
    },
    "s": _SIZES,
    # 107, 103 and 107 million
    "qwen3": _SIZES | {"head_dim": 64},
    "gemma2": _SIZES
    | {"hidden_size": 640, "intermediate_size": 2560, "num_attention_heads": 8, "head_dim": 128}
    | {"query_pre_attn_scalar": 128, "sliding_window": 256, "pad_token_id": 0},
    "phi3": _SIZES | {"rope_parameters": _LONGROPE, "pad_token_id": 0},
}
ARCHITECTURES = {"qwen3": "Qwen3ForCausalLM", "gemma2": "Gemma2ForCausalLM", "phi3": "Phi3ForCausalLM"}
"""Of those that are no Llamas."""
COMMON = {"max_position_embeddings": 4096, "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2}


def vocabulary(name: str) -> int:
    """Token ids of the checkpoint are below it."""
    return int(SHAPES[name]["vocab_size"])


def kv_bytes_per_token(name: str) -> int:
    """Keys and values of one token in float32."""
    shape = SHAPES[name]
    width = shape.get("head_dim") or shape["hidden_size"] // shape["num_attention_heads"]
    return int(2 * shape["num_hidden_layers"] * shape["num_key_value_heads"] * width * 4)


def ensure(name: str, root: Path) -> Path:
    """The folder of checkpoint `name` below `root`, made now unless it is there. float32, no tokenizer."""
    folder = root / f"engine-{name}"
    recipe = {"seed": SEED, **SHAPES[name], **COMMON}
    stamp = folder / "recipe.json"
    if stamp.exists() and json.loads(stamp.read_bytes()) == recipe:
        return folder
    import torch
    import transformers

    shutil.rmtree(folder, ignore_errors=True)
    torch.manual_seed(SEED)
    make = getattr(transformers, ARCHITECTURES.get(name, "LlamaForCausalLM"))
    model = make(make.config_class(**SHAPES[name], **COMMON)).to(torch.float32)
    model.save_pretrained(folder)
    stamp.write_text(json.dumps(recipe))  # last: a folder without it is incomplete
    return folder
