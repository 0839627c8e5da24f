"""What a file of a model is for, by its name."""

from __future__ import annotations

from pathlib import PurePosixPath

_TOKENIZER = frozenset(
    {
        "tokenizer.json",
        "tokenizer.model",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "vocab.txt",
        "merges.txt",
    }
)
_CONFIG = frozenset({"config.json", "generation_config.json", "preprocessor_config.json"})
_TEMPLATE = frozenset({"chat_template.jinja", "chat_template.json"})
_WEIGHTS = frozenset({".safetensors", ".bin", ".pt", ".pth", ".gguf", ".onnx", ".ubj", ".pt2", ".skops"})


def role_of(path: str) -> str:
    """The role of a file by the names that Hugging Face checkpoints, PEFT adapters and the formats of predictions use;
    empty for others."""
    pure = PurePosixPath(path)
    if pure.name.startswith("adapter_"):
        return "adapter"
    if pure.name in _TOKENIZER:
        return "tokenizer"
    if pure.name in _CONFIG:
        return "config"
    if pure.name in _TEMPLATE:
        return "chat_template"
    # The index of weights in several files is of no use without them.
    if pure.suffix in _WEIGHTS or pure.name.endswith(".safetensors.index.json"):
        return "weights"
    return ""
