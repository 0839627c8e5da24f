"""config.json: each variant of the Llama family as transformers reads it; what is not supported is refused in words."""

import pytest
import support_checkpoints as support
import support_oracle as oracle
import torch
import transformers
from safetensors.torch import load_file
from support_checkpoints import MODEL
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from libs.clock import ManualClock
from libs.families import parse_config
from services.worker.engines.port import EngineLoadError
from services.worker.engines.torch_engine.config import load_config
from services.worker.engines.torch_engine.loading import StageTimer, read_checkpoint
from services.worker.engines.torch_engine.rotary import rotate, rotation
from services.worker.engines.torch_engine.weights import expected_shapes
from services.worker.model_files import ModelFiles

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64,
}  # fmt: skip
MISTRAL = LLAMA | {"architectures": ["MistralForCausalLM"], "num_attention_heads": 8, "sliding_window": None}
GRANITE, SMOLLM3 = (LLAMA | {"architectures": [f"{name}ForCausalLM"]} for name in ("Granite", "SmolLM3"))
GEMMA2, GEMMA3 = (LLAMA | {"architectures": [f"Gemma{number}ForCausalLM"]} for number in (2, 3))
PHI3 = LLAMA | {"architectures": ["Phi3ForCausalLM"]}
QWEN2 = LLAMA | {"architectures": ["Qwen2ForCausalLM"], "num_key_value_heads": 2}


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True}),
        ("llama", {"attention_bias": True}),
        ("llama", {"mlp_bias": True, "head_dim": 12, "num_key_value_heads": 1}),
        ("mistral", {"sliding_window": None}),
        ("mistral", {"sliding_window": 128, "head_dim": 20}),
        ("qwen2", {}),
        ("qwen2", {"tie_word_embeddings": True}),
    ],
)
def test_the_tensors_expected_are_those_that_transformers_writes(tmp_path, kind, changes):
    support.save_checkpoint(tmp_path, kind, **changes)
    found = {name: tuple(each.shape) for name, each in load_file(tmp_path / "model.safetensors").items()}
    assert expected_shapes(load_config(ModelFiles(tmp_path))) == found
    checkpoint = read_checkpoint(ModelFiles(tmp_path), StageTimer(MODEL, ManualClock()))
    assert checkpoint.weights.total_bytes == sum(
        each.nbytes for each in load_file(tmp_path / "model.safetensors").values()
    )


def test_fields_left_out_are_what_transformers_takes():
    for raw, make in ((LLAMA, transformers.LlamaConfig), (MISTRAL, transformers.MistralConfig)):
        ours, theirs = parse_config(raw), make(**{key: raw[key] for key in raw if key != "architectures"})
        assert ours.kv_heads == theirs.num_key_value_heads
        assert ours.head_width == theirs.head_dim
        assert (ours.bos_token_id, ours.eos_token_ids) == (theirs.bos_token_id, (theirs.eos_token_id,))
        assert (ours.norm_eps, ours.tied) == (theirs.rms_norm_eps, theirs.tie_word_embeddings)
        assert ours.rope.theta == theirs.rope_parameters["rope_theta"]
    without_heads = {key: value for key, value in MISTRAL.items() if key != "num_key_value_heads"}
    assert parse_config(without_heads).kv_heads == transformers.MistralConfig().num_key_value_heads
    # Its window, when left out, is 4096: without effect below that context.
    windowed = {key: value for key, value in MISTRAL.items() if key != "sliding_window"}
    assert parse_config(windowed).windows == ()
    assert parse_config(windowed | {"max_position_embeddings": 8192}).windows == (4096, 4096)


def test_biases_are_only_those_that_the_architecture_has():
    for raw in (MISTRAL, QWEN2):
        config = parse_config(raw | {"attention_bias": True, "mlp_bias": True})
        assert (config.output_bias, config.mlp_bias) == (False, False)
    assert not parse_config(MISTRAL | {"attention_bias": True}).qkv_bias
    assert parse_config(QWEN2).qkv_bias


LONGROPE = oracle.longrope(8)
ROPES = {
    "default": {"rope_type": "default", "rope_theta": 500000.0},
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "llama3 without its original context": {
        "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    },
    "yarn": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16},
    "yarn without its original context": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0},
    "yarn with other bounds": {
        "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16,
        "beta_fast": 2.0, "beta_slow": 0.5, "truncate": False, "mscale": 0.7, "mscale_all_dim": 1.2,
    },
    "yarn of a given magnitude": {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16,
        "attention_factor": 1.3,
    },
    "longrope beyond its original context": {**LONGROPE, "original_max_position_embeddings": 16},
    "longrope within its original context": {**LONGROPE, "original_max_position_embeddings": 64},
    "longrope of a given factor": {**LONGROPE, "original_max_position_embeddings": 16, "factor": 8.0},
}  # fmt: skip


@pytest.mark.parametrize("name", ROPES)
@pytest.mark.parametrize("old", [True, False])
def test_rotations_equal_those_of_transformers_over_the_whole_context(name, old):
    rope = dict(ROPES[name])
    config = transformers.LlamaConfig(
        hidden_size=64, num_attention_heads=4, max_position_embeddings=64, rope_parameters=dict(rope)
    )
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(64).unsqueeze(0))
    raw = LLAMA | {"hidden_size": 64}
    if old:  # as written before transformers 5
        raw |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": {"type": rope.pop("rope_type"), **rope}}
    else:
        raw |= {"rope_parameters": rope}
    ours = parse_config(raw)
    heads = torch.randn(64, 2, 16)
    found = rotate(heads, *(part.unsqueeze(1) for part in rotation(ours.rope, ours.head_width, ours.context)))
    expected, _ = apply_rotary_pos_emb(heads, heads, cos[0], sin[0], unsqueeze_dim=1)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("old", [True, False])
def test_layers_of_gemma_3_have_the_rotations_that_transformers_gives_them(old):
    if old:  # as on the hub
        rope = {"rope_theta": 5e5, "rope_local_base_freq": 2e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    else:
        whole = {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5}
        local = {"rope_type": "default", "rope_theta": 2e4}
        rope = {"rope_parameters": {"full_attention": whole, "sliding_attention": local}}
    raw = GEMMA3 | rope | {"sliding_window": 8, "sliding_window_pattern": 2, "head_dim": 16}
    theirs = transformers.Gemma3TextConfig(**{key: raw[key] for key in raw if key != "architectures"})
    ours, embedding = parse_config(raw), Gemma3RotaryEmbedding(theirs)
    assert ours.windows == (8, 0)
    heads = torch.randn(64, 2, 16)
    for layer, kind in enumerate(theirs.layer_types):
        cos, sin = embedding(torch.zeros(1), torch.arange(64).unsqueeze(0), kind)
        found = rotate(heads, *(part.unsqueeze(1) for part in rotation(ours.rope_of(layer), 16, 64)))
        expected, _ = apply_rotary_pos_emb(heads, heads, cos[0], sin[0], unsqueeze_dim=1)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_layers_without_rotation_are_those_of_transformers():
    for changes in ({}, {"no_rope_layer_interval": 3}, {"no_rope_layers": [0, 1, 1, 1, 0, 1]}):
        raw = SMOLLM3 | {"num_hidden_layers": 6} | changes
        theirs = transformers.SmolLM3Config(**{key: raw[key] for key in raw if key != "architectures"})
        ours = parse_config(raw)
        assert [int(rope is not None) for rope in ours.layer_ropes] == theirs.no_rope_layers
        assert ours.rope.theta == theirs.rope_parameters["rope_theta"]


def test_caps_that_are_null_are_none():
    config = parse_config(GEMMA2 | {"attn_logit_softcapping": None, "final_logit_softcapping": None})
    assert (config.attention_cap, config.logit_cap) == (0.0, 0.0)
    config = parse_config(GEMMA2)
    assert (config.attention_cap, config.logit_cap, config.query_scale) == (50.0, 30.0, 1 / 16)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (LLAMA | {"rope_scaling": {"type": "proportional", "factor": 4.0}}, "type proportional"),
        (LLAMA | {"rope_scaling": oracle.longrope(3)}, "3 factors for 4 frequencies"),
        (PHI3 | {"partial_rotary_factor": 0.4}, "turns 3 numbers"),
        (LLAMA | {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "differ between layers"),
        (LLAMA | {"partial_rotary_factor": 0.5}, "part of each head"),
        (LLAMA | {"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        (LLAMA | {"num_attention_heads": 5}, "head_dim is not given"),
        (LLAMA | {"head_dim": 7}, "head_dim 7 is odd"),
        (LLAMA | {"num_key_value_heads": 3}, "3 key heads"),
        (LLAMA | {"num_hidden_layers": 0}, "below 1"),
        (LLAMA | {"intermediate_size": -1}, "below 1"),
        (MISTRAL | {"sliding_window": 0}, "sliding_window is 0"),
        (GEMMA2 | {"layer_types": ["full_attention"]}, "layer_types says nothing of layer 1"),
        (SMOLLM3 | {"no_rope_layers": []}, "no_rope_layers says nothing of layer 0"),
        (GRANITE | {"residual_multiplier": float("inf")}, "residual_multiplier is inf"),
        (LLAMA | {"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        (LLAMA | {"vocab_size": None}, "malformed"),
        ({key: LLAMA[key] for key in LLAMA if key != "hidden_size"}, "malformed .*hidden_size"),
        (LLAMA | {"architectures": [{}]}, "malformed"),
        (LLAMA | {"rope_scaling": "yarn"}, "malformed"),
        (LLAMA | {"architectures": ["MambaForCausalLM"]}, "architecture MambaForCausalLM is not supported"),
        (GEMMA2 | {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0"),
        (GEMMA3 | {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        (GEMMA2 | {"hidden_activation": "relu"}, "activation relu"),
    ],
)
def test_variants_that_are_not_supported_are_refused_in_words(raw, words):
    with pytest.raises(EngineLoadError, match=words):
        parse_config(raw)


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"max_window_layers": 2}, ()),
        ({"max_window_layers": 1}, (0, 8)),
        ({"layer_types": ["full_attention"] * 2}, ()),
        ({"layer_types": ["sliding_attention", "full_attention"]}, (8, 0)),
        ({"use_sliding_window": False}, ()),
        ({"sliding_window": None}, ()),
        ({"sliding_window": 64, "max_window_layers": 1}, ()),
    ],
)
def test_layers_have_the_windows_that_transformers_gives_them(changes, windows):
    raw = QWEN2 | {"use_sliding_window": True, "sliding_window": 8} | changes
    theirs = transformers.Qwen2Config(**{key: raw[key] for key in raw if key != "architectures"})
    if theirs.sliding_window != 64:  # a window of the whole context is none
        sliding = [kind == "sliding_attention" and theirs.sliding_window is not None for kind in theirs.layer_types]
        assert [bool(each) for each in windows or (0, 0)] == sliding
    assert parse_config(raw).windows == windows
