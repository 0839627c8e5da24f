"""A tokenizer of bytes: token i is byte i, so tests can spell tokens."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from weir.registry.v1 import registry_pb2

from libs.texts import byte_alphabet

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def write_byte_tokenizer(directory: Path) -> Path:
    """Write tokenizer.json and tokenizer_config.json into `directory`."""
    vocabulary = dict(byte_alphabet())
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return directory


def artifacts_in(directory: Path) -> list[registry_pb2.Artifact]:
    """How a model version lists the files of a folder."""
    return [
        registry_pb2.Artifact(
            path=path.name, sha256=hashlib.sha256(path.read_bytes()).hexdigest(), bytes=path.stat().st_size
        )
        for path in sorted(directory.iterdir())
        if path.is_file()
    ]
