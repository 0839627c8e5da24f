"""Which tokens end what a model says: what its configuration, its generation defaults and its tokenizer name, together.

A fine-tune often changes the end of a turn in its tokenizer alone, and vLLM and transformers' own pipelines stop there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Read = Callable[[str], Mapping[str, Any]]
"""A JSON object of the model's folder by its file's name; empty where there is no such file."""


def ends_of(read: Read) -> tuple[int, ...]:
    """Token ids, sorted.

    :raises ValueError: an id is no whole number.
    :raises TypeError: likewise.
    """
    found = {*token_ids(read("config.json").get("eos_token_id"))}
    found |= {*token_ids(read("generation_config.json").get("eos_token_id"))}
    if text := _text(
        read("tokenizer_config.json").get("eos_token") or read("special_tokens_map.json").get("eos_token")
    ):
        found |= {*_ids_of(text, read)}
    return tuple(sorted(found))


def token_ids(value: Any) -> tuple[int, ...]:
    """What stands under `eos_token_id` or `bos_token_id`: one id, several or none."""
    if value is None:
        return ()
    return tuple(int(each) for each in value) if isinstance(value, list) else (int(value),)


def _text(value: Any) -> str:
    found = value.get("content") if isinstance(value, Mapping) else value
    return found if isinstance(found, str) else ""


def _ids_of(text: str, read: Read) -> tuple[int, ...]:
    for number, token in _mapping(read("tokenizer_config.json").get("added_tokens_decoder")).items():
        if _text(token) == text:
            return (int(number),)
    tokenizer = read("tokenizer.json")
    for token in tokenizer.get("added_tokens") or ():
        if _text(token) == text:
            return token_ids(token.get("id"))
    vocabulary = _mapping(tokenizer.get("model")).get("vocab")
    return token_ids(_mapping(vocabulary).get(text))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
