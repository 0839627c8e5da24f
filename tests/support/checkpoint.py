"""Checkpoints as Hugging Face lays them out, of a few thousand zeros: for what reads folders and runs no model."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from libs.families import parse_config
from services.worker.engines.torch_engine.weights import expected_shapes
from tests.support.tokenizer import write_byte_tokenizer

REVISION = "0123456789abcdef0123456789abcdef01234567"
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "eos_token_id": 2,
}


def write_checkpoint(folder: Path, config: dict[str, Any] | None = None, dtype: Any = np.float16) -> Path:
    """A model's folder with its tokenizer: the tensors are a Llama's, config.json says what is given."""
    folder.mkdir(parents=True, exist_ok=True)
    write_byte_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(LLAMA if config is None else config))
    tensors = {name: np.zeros(shape, dtype) for name, shape in expected_shapes(parse_config(LLAMA)).items()}
    save_file(tensors, folder / "model.safetensors")
    return folder


def as_in_cache(folder: Path, home: Path, name: str = "Somebody/Tiny-1B", revision: str = REVISION) -> Path:
    """The folder as Hugging Face's cache has it: a snapshot of links to blobs, which it names by their digests."""
    root = home / f"models--{name.replace('/', '--')}"
    snapshot = root / "snapshots" / revision
    (root / "blobs").mkdir(parents=True)
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        content = path.read_bytes()
        # Large files are named by their SHA-256, others by git's digest.
        large = path.suffix in (".safetensors", ".bin", ".pth")
        digest = hashlib.sha256(content).hexdigest()
        blob = root / "blobs" / (digest if large else digest[:40])
        blob.write_bytes(content)
        link = snapshot / path.relative_to(folder)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to("../" * len(link.relative_to(root).parent.parts) + f"blobs/{blob.name}")
    return snapshot
