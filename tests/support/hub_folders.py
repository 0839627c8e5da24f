"""Made-up checkpoints in the layout of their Hugging Face repositories, as its cache has them: a folder of links.

Small and random, but for this: behind the prompt's last token the likeliest one is "y", then "e", "s" and the end of
the turn, which each layout names in another place. Layers add next to nothing to the embeddings, and those of the five
tokens lie in a plane, each an angle and a factor beyond the one before it: also where input and output have one table,
the next one's product with a token's own is the largest.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from libs.families import FAMILIES
from libs.texts import TextModel, byte_alphabet
from libs.texts.conversation import ChatMessage

ARCHITECTURES = tuple(FAMILIES)
"""Those that the torch engine runs, by their names in config.json."""
ANSWER = "yes"
ASKED = "Is it? <|im_end|></s>"
"""A question, with words that would end a turn."""
CONTEXT = 512
SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": CONTEXT, "pad_token_id": 0,
}  # fmt: skip
_ANGLE, _FACTOR, _LENGTH = math.pi / 3, 2.5, 0.3
_NEXT_TO_NOTHING = 1e-3
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HEADERS = (
    "{{- bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
INST = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %}{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
TURNS = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


@dataclass
class Repository:
    """What a repository holds beside the weights, and how it differs."""

    tokenizer: Tokenizer
    end: str
    """The token that ends a turn."""
    template: str
    config: dict[str, Any] = field(default_factory=dict)
    files: dict[str, Any] = field(default_factory=dict)
    """By path: bytes, or what is written as JSON."""
    shard: str = "1GB"


def _bytes(*special: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab=dict(byte_alphabet()), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(each, special=True, normalized=False) for each in special])
    return tokenizer


def _pieces() -> Tokenizer:
    """As SentencePiece's vocabularies are converted."""
    vocabulary = {text: at for at, text in enumerate(["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))])}
    for text in ["\u2581", *map(chr, range(33, 127))]:
        vocabulary[text] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    parts = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)
    special = [AddedToken(each, special=True, normalized=False) for each in ("<s>", "</s>", "[INST]", "[/INST]")]
    tokenizer.add_special_tokens(special)
    return tokenizer


def llama() -> Repository:
    """As meta-llama's: several ends in the generation defaults, shards with an index, the original beside them."""
    tokenizer = _bytes("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
    begin, text_end, turn_end = map(tokenizer.token_to_id, ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"))
    return Repository(
        tokenizer,
        "<|eot_id|>",
        HEADERS,
        {"bos_token_id": begin, "eos_token_id": text_end},
        {
            "generation_config.json": {
                "bos_token_id": begin, "eos_token_id": [text_end, turn_end], "do_sample": True,
                "temperature": 0.6, "top_p": 0.9,
            },
            "tokenizer_config.json": {
                "bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>", "chat_template": HEADERS,
                "tokenizer_class": "PreTrainedTokenizerFast",
            },
            "special_tokens_map.json": {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"},
            "original/consolidated.00.pth": b"no engine reads it",
            "original/params.json": {"dim": 64},
            "LICENSE.txt": b"made up",
            ".gitattributes": b"*.safetensors filter=lfs",
        },
        shard="60KB",
    )  # fmt: skip


def mistral() -> Repository:
    """As mistralai's: a vocabulary of pieces, weights in its own format beside the others, one end in config.json."""
    tokenizer = _pieces()
    return Repository(
        tokenizer,
        "</s>",
        INST,
        {"bos_token_id": 1, "eos_token_id": 2},
        {
            "generation_config.json": {"bos_token_id": 1, "eos_token_id": 2, "_from_model_config": True},
            "tokenizer_config.json": {
                "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "chat_template": INST,
                "tokenizer_class": "LlamaTokenizer", "add_bos_token": True,
            },
            "consolidated.safetensors": b"no engine reads it",
            "params.json": {"dim": 64},
            "tokenizer.model.v3": b"no engine reads it",
        },
        shard="60KB",
    )  # fmt: skip


def qwen() -> Repository:
    """As a fine-tune of Qwen's: named templates, one file of weights, and an end that its tokenizer alone knows."""
    tokenizer = _bytes("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    end = tokenizer.token_to_id("<|endoftext|>")
    marks = {"content": "<|im_end|>", "lstrip": False, "normalized": False, "special": True}
    return Repository(
        tokenizer,
        "<|im_end|>",
        CHATML,
        {"bos_token_id": end, "eos_token_id": end},
        {
            "generation_config.json": {
                "do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.1,
                "eos_token_id": [end],
            },
            "tokenizer_config.json": {
                "added_tokens_decoder": {str(tokenizer.token_to_id("<|im_end|>")): marks},
                "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "tokenizer_class": "Qwen2Tokenizer",
                "chat_template": [
                    {"name": "default", "template": CHATML}, {"name": "tool_use", "template": "{{ tools | tojson }}"},
                ],
            },
            "vocab.json": tokenizer.get_vocab(),
            "merges.txt": b"#version: 0.2\n",
            "onnx/model.onnx": b"no engine reads it",
            "runs/events.out": b"",
        },
    )  # fmt: skip


def newer() -> Repository:
    """As what transformers writes by now: the template in a file of its own, which a byte-order mark begins."""
    tokenizer = _bytes("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>")
    begin, end = map(tokenizer.token_to_id, ("<bos>", "<eos>"))
    return Repository(
        tokenizer,
        "<end_of_turn>",
        TURNS,
        {"bos_token_id": begin, "eos_token_id": [end, tokenizer.token_to_id("<end_of_turn>")]},
        {
            "tokenizer_config.json": {
                "bos_token": "<bos>", "eos_token": "<eos>", "tokenizer_class": "PreTrainedTokenizerFast",
            },
            "chat_template.jinja": b"\xef\xbb\xbf" + TURNS.encode(),
            "README.md": b"made up",
        },
    )  # fmt: skip


LAYOUTS: Mapping[str, Callable[[], Repository]] = {
    "LlamaForCausalLM": llama,
    "MistralForCausalLM": mistral,
    "Qwen2ForCausalLM": qwen,
}
"""Those of other architectures are `newer`."""


def snapshot(cache: Path, architecture: str) -> Path:
    """A repository in a cache of Hugging Face's: the folder of its newest snapshot, whose files are links to blobs."""
    made = LAYOUTS.get(architecture, newer)()
    repository = cache / f"models--made-up--{architecture}"
    work, folder = repository / "work", repository / "snapshots" / ("0" * 40)
    model = _model(architecture, made)
    model.save_pretrained(work, max_shard_size=made.shard)
    (work / "generation_config.json").unlink(missing_ok=True)  # of transformers' own making
    made.tokenizer.save(str(work / "tokenizer.json"))
    for name, content in made.files.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content, indent=2).encode())
    (repository / "blobs").mkdir()
    for path in sorted(work.rglob("*")):
        if path.is_file():
            blob = repository / "blobs" / hashlib.sha256(path.read_bytes()).hexdigest()
            link = folder / path.relative_to(work)
            link.parent.mkdir(parents=True, exist_ok=True)
            path.replace(blob)
            link.symlink_to(os.path.relpath(blob, link.parent))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(folder.name)
    return folder


def prompt_of(made: Repository) -> list[int]:
    """The tokens of a question."""
    files = {"tokenizer.json": made.tokenizer.to_str().encode()}
    files |= {name: json.dumps(made.files[name]).encode() for name in ("tokenizer_config.json",)}
    files["chat_template.jinja"] = made.template.encode()
    return TextModel(files).encode_chat([ChatMessage("user", ASKED)])


def _model(architecture: str, made: Repository) -> Any:
    kind = getattr(transformers, architecture)
    last = made.tokenizer.get_vocab_size()
    torch.manual_seed(0)
    model = kind(kind.config_class(**SIZES, **made.config, vocab_size=last + 3)).eval()
    chain = [prompt_of(made)[-1], *map(made.tokenizer.token_to_id, ANSWER), made.tokenizer.token_to_id(made.end)]
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "layers." in name and "norm" in name and not name.endswith(("q_norm.weight", "k_norm.weight")):
                weight.fill_(_NEXT_TO_NOTHING - (0.0 if weight.all() else 1.0))  # some norms count from one
        for table in {model.get_input_embeddings().weight, model.get_output_embeddings().weight}:
            table.normal_(std=0.005)
            table[:, :2] = 0.0
            for place, token in enumerate(chain):
                length, angle = _LENGTH * _FACTOR**place, _ANGLE * place
                table[token] = 0.0
                table[token, 0], table[token, 1] = length * math.cos(angle), length * math.sin(angle)
    return model.to(torch.bfloat16)
