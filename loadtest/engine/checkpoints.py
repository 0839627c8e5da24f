"""The two checkpoints of the benchmark: Llama architecture, random weights from a seed, made once in build/bench."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

SEED = 20260101
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
    "s": {
        "hidden_size": 768,
        "intermediate_size": 2304,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "vocab_size": 32000,
    },
}
COMMON = {"max_position_embeddings": 4096, "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2}


def vocabulary(name: str) -> int:
    """Token ids of the checkpoint are below it."""
    return int(SHAPES[name]["vocab_size"])


def kv_bytes_per_token(name: str) -> int:
    """Keys and values of one token in float32."""
    shape = SHAPES[name]
    width = shape["hidden_size"] // shape["num_attention_heads"]
    return int(2 * shape["num_hidden_layers"] * shape["num_key_value_heads"] * width * 4)


def ensure(name: str, root: Path) -> Path:
    """The folder of checkpoint `name` below `root`, made now unless it is there. float32, no tokenizer."""
    folder = root / f"engine-{name}"
    recipe = {"seed": SEED, **SHAPES[name], **COMMON}
    stamp = folder / "recipe.json"
    if stamp.exists() and json.loads(stamp.read_bytes()) == recipe:
        return folder
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    shutil.rmtree(folder, ignore_errors=True)
    torch.manual_seed(SEED)
    model = LlamaForCausalLM(LlamaConfig(**SHAPES[name], **COMMON)).to(torch.float32)
    model.save_pretrained(folder)
    stamp.write_text(json.dumps(recipe))  # last: a folder without it is incomplete
    return folder
