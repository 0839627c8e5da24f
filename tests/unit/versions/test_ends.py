"""What ends a sequence is said in three places, which count together."""

from __future__ import annotations

from typing import Any

import pytest

from libs.versions.ends import ends_of

CONFIG = {"eos_token_id": 2}
MARK = {"eos_token": "<|im_end|>"}


@pytest.mark.parametrize(
    ("files", "ends"),
    [
        ({}, ()),
        ({"config": CONFIG}, (2,)),
        ({"config": {"eos_token_id": [3, 2]}, "generation_config": {"eos_token_id": [3, 5]}}, (2, 3, 5)),
        ({"config": CONFIG, "generation_config": {"eos_token_id": 7}}, (2, 7)),
        # A fine-tune whose tokenizer alone knows the end of a turn.
        (
            {
                "config": CONFIG,
                "tokenizer_config": MARK | {"added_tokens_decoder": {"7": {"content": "<|im_end|>", "special": True}}},
            },
            (2, 7),
        ),
        (
            {
                "config": CONFIG,
                "tokenizer_config": {"eos_token": {"content": "<|im_end|>"}},
                "tokenizer": {"added_tokens": [{"id": 1, "content": "x"}, {"id": 9, "content": "<|im_end|>"}]},
            },
            (2, 9),
        ),
        (
            {"special_tokens_map": {"eos_token": "</s>"}, "tokenizer": {"model": {"vocab": {"a": 0, "</s>": 4}}}},
            (4,),
        ),
        ({"config": CONFIG, "tokenizer_config": MARK}, (2,)),
        ({"tokenizer_config": {"eos_token": None}, "tokenizer": {"model": {"vocab": [["a", 0.5]]}}}, ()),
    ],
)
def test_the_three_count_together(files: dict[str, dict[str, Any]], ends: tuple[int, ...]) -> None:
    assert ends_of(lambda name: files.get(name.removesuffix(".json"), {})) == ends


def test_what_is_no_id_is_no_end() -> None:
    with pytest.raises(ValueError, match="x"):
        ends_of(lambda name: {"eos_token_id": "x"} if name == "config.json" else {})
