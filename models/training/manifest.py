"""Writes a model's manifest: every file with its digest, and what a gateway and a worker need to know of the model.

`python -m models.training.manifest [FOLDER …]` recomputes the manifests of existing checkpoints.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path

BLOCK_SIZE = 16
FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


def write(folder: Path, *, name: str, version: str, training_data_sha256: str) -> None:
    """Compute and write `folder`/manifest.json."""
    config = _read(folder / "config.json")
    generation = _read(folder / "generation_config.json")
    template = _read(folder / "tokenizer_config.json")["chat_template"]
    content = {
        "name": name,
        "version": version,
        "files": [_entry(folder / file) for file in FILES],
        "architecture": config["architectures"][0],
        "context_length": config["max_position_embeddings"],
        "block_size": BLOCK_SIZE,
        "eos_token_ids": generation["eos_token_id"],
        "bos_token_id": generation["bos_token_id"],
        "sampling_defaults": {"temperature": generation["temperature"], "top_p": generation["top_p"]},
        "chat_template_sha256": hashlib.sha256(template.encode()).hexdigest(),
        "training_data_sha256": training_data_sha256,
    }
    (folder / "manifest.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def _entry(path: Path) -> dict[str, object]:
    content = path.read_bytes()
    return {"path": path.name, "sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}


def main() -> None:
    """Recompute the manifests of the named folders; name, version and corpus digest are kept."""
    parser = argparse.ArgumentParser(prog="python -m models.training.manifest", description=__doc__)
    parser.add_argument(
        "folders", type=Path, nargs="*", default=[Path("models/demo/fast"), Path("models/demo/quality")]
    )
    for folder in parser.parse_args().folders:
        old = _read(folder / "manifest.json")
        write(
            folder,
            name=old["name"],
            version=old["version"],
            training_data_sha256=old["training_data_sha256"],
        )


if __name__ == "__main__":
    main()
