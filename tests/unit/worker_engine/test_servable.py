"""What each engine would say of a checkpoint that nobody has loaded."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from libs.children.alone import run_alone
from libs.families import parse_config
from services.worker.engines.port import EngineLoadError
from services.worker.engines.servable import ENGINES, refusals, verdicts
from services.worker.model_files import ModelFiles
from tests.support.checkpoint import LLAMA, write_checkpoint


def said(folder: Path, context: int = 0) -> dict[str, tuple[str, ...]]:
    return {each.engine: each.reasons for each in verdicts(ModelFiles(folder), context)}


def test_what_can_be_served_has_no_reasons_and_says_its_memory(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    assert said(tmp_path) == dict.fromkeys(ENGINES, ())
    torch, vllm = verdicts(ModelFiles(tmp_path), 64)[:2]
    # Keys and values: 2 layers of 2 heads of 8 numbers, twice, for 64 tokens.
    assert (torch.kv_bytes, vllm.kv_bytes) == (4 * 4096, 2 * 4096)
    assert torch.weight_bytes == 2 * vllm.weight_bytes > 0


@pytest.mark.parametrize(
    ("config", "reasons"),
    [
        (
            LLAMA | {"architectures": ["NobodyForCausalLM"]},
            [r'NobodyForCausalLM.* \(config.json: architectures is \["NobodyForCausalLM"\]\)'],
        ),
        (LLAMA | {"rope_scaling": {"type": "odd", "factor": 4.0}}, [r'odd .*rope_scaling is \{"type": "odd"']),
        (
            LLAMA | {"quantization_config": {"quant_method": "gptq"}},
            [r'gptq .*quantization_config is \{"quant_method"'],
        ),
        (LLAMA | {"hidden_act": "none"}, [r'hidden_act is "none"']),
        (
            LLAMA
            | {"hidden_act": "none", "rope_scaling": {"type": "odd"}, "quantization_config": {"quant_method": "fp8"}},
            ["hidden_act is", "quantization_config is", "rope_scaling is"],
        ),
        ({key: value for key, value in LLAMA.items() if key != "hidden_size"}, ["config.json: hidden_size is missing"]),
        (
            LLAMA | {"num_hidden_layers": "two"},
            [r'config.json is malformed .* \(config.json: num_hidden_layers is "two"\)'],
        ),
        (LLAMA | {"rope_scaling": 1}, [r"config.json is malformed .* \(config.json: rope_scaling is 1\)"]),
    ],
)
def test_every_reason_has_its_field_and_its_value(tmp_path: Path, config: dict[str, Any], reasons: list[str]) -> None:
    write_checkpoint(tmp_path, config)
    found = said(tmp_path)["torch"]
    assert len(found) == len(reasons)
    for reason in reasons:
        assert any(re.search(reason, each) for each in found), found
    assert said(tmp_path)["simulated"] == ()


@given(
    st.dictionaries(
        st.sampled_from([*LLAMA, "hidden_act", "sliding_window", "rope_scaling", "quantization_config", "head_dim"]),
        st.none() | st.integers(-2, 9) | st.sampled_from(["silu", "gelu"]) | st.lists(st.text(max_size=3), max_size=2)
        | st.dictionaries(st.sampled_from(["type", "factor", "quant_method"]), st.integers() | st.text(max_size=3)),
    )
)  # fmt: skip
def test_it_is_refused_where_the_engine_refuses_it_and_nowhere_else(changes: dict[str, Any]) -> None:
    try:
        parse_config(LLAMA | changes)
        refused = False
    except (EngineLoadError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        refused = True
    assert bool(refusals(LLAMA | changes, parse_config)) == refused


def test_a_field_that_is_wrong_even_where_it_is_left_out_hides_no_other() -> None:
    def parse(raw: Mapping[str, Any]) -> None:
        if raw.get("window", 4096) is not None:
            raise EngineLoadError(f"a window of {raw.get('window', 4096)}")
        if raw.get("rope"):
            raise EngineLoadError("a rope")

    assert refusals({"window": 32, "rope": [1], "size": 5}, parse) == [
        "a window of 32 (config.json: window is 32)",
        "a rope (config.json: rope is [1])",
    ]
    assert refusals({"window": None, "rope": None}, parse) == []
    assert refusals({}, parse) == ["a window of 4096"]


def test_many_faults_at_once_are_looked_for_within_a_bound() -> None:
    """Each of these fields is a fault of its own, so that what is left of them could be tried in 2 to the 40 ways."""
    tried = 0

    def parse(raw: Mapping[str, Any]) -> None:
        nonlocal tried
        tried += 1
        assert tried < 10_000
        wrong = [name for name, value in raw.items() if value not in (None, 0)]
        if wrong:
            raise EngineLoadError(f"{min(wrong)} is not done")

    found = refusals({f"field{number:02}": 2 for number in range(40)}, parse)
    assert found[0].startswith("field00 is not done")


def test_a_context_longer_than_the_models_is_a_reason(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    assert said(tmp_path, 128)["torch"] == ()
    (reason,) = said(tmp_path, 129)["torch"]
    assert "129" in reason
    assert "max_position_embeddings is 128" in reason


def test_weights_that_are_not_what_the_configuration_says(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, LLAMA | {"intermediate_size": 64})
    assert "has shape (48, 32) instead of (64, 32)" in said(tmp_path)["torch"][0]
    write_checkpoint(tmp_path, dtype=np.int8)
    assert "type I8" in said(tmp_path)["torch"][0]
    assert said(tmp_path)["vllm"] == ()
    write_checkpoint(tmp_path, LLAMA | {"architectures": ["NobodyForCausalLM"]}, dtype=np.int8)
    assert any("type I8" in each for each in said(tmp_path)["torch"])
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:-5])
    for engine in ("torch", "vllm", "tensorrt_llm"):
        assert any("its header describes" in each for each in said(tmp_path)[engine])


def test_pickles_alone_are_refused_by_their_name(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    for engine in ("torch", "vllm", "tensorrt_llm"):
        (reason,) = said(tmp_path)[engine]
        assert reason.startswith("pytorch_model.bin: weights are a pickle")
    (tmp_path / "pytorch_model.bin").unlink()
    assert "model.safetensors" in said(tmp_path)["torch"][0]


def asked(folder: Path, context: int = 0) -> dict[str, Any]:
    paths = [each.name for each in folder.iterdir()]
    given = json.dumps({"folder": str(folder), "paths": paths, "context": context}).encode()
    tried = run_alone("services.worker.check", given, seconds=120)
    assert tried.returncode == 0, tried.stderr
    found: dict[str, Any] = json.loads(tried.stdout)
    return found


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"tokenizer.json": None}, "tokenizer.json is missing; AutoTokenizer"),
        ({"tokenizer.json": "{}"}, "tokenizer: "),
        ({"chat_template.jinja": "{{ raise_exception('no') }}"}, "chat_template: "),
        ({"chat_template.jinja": "{% if %}"}, "chat_template: "),
    ],
)
def test_what_the_gateway_needs_is_needed_by_every_engine(
    tmp_path: Path, change: dict[str, str | None], why: str
) -> None:
    write_checkpoint(tmp_path)
    for name, text in change.items():
        (tmp_path / name).unlink(missing_ok=True)
        if text is not None:
            (tmp_path / name).write_text(text)
    for verdict in asked(tmp_path)["verdicts"]:
        assert any(each.startswith(why) for each in verdict["reasons"]), verdict


def test_a_model_without_a_chat_template_completes(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    found = asked(tmp_path)
    assert found["notes"] == ["no chat template: completions alone, no chats"]
    assert [each["reasons"] for each in found["verdicts"]] == [[]] * len(ENGINES)


def test_it_needs_nothing_that_only_an_engine_has() -> None:
    """Neither does the image that has `weir` (bin/image-locks)."""
    absent = {"torch", "numba", "safetensors", "vllm", "transformers"}
    looked = f"import sys, services.worker.check; sys.exit(not {absent}.isdisjoint(sys.modules))"
    assert subprocess.run([sys.executable, "-c", looked], check=False).returncode == 0
