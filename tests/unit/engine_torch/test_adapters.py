"""LoRA adapters against PEFT itself: the same change of every weight; and what is refused, by file and field."""

import json
import warnings

import pytest
import support_checkpoints as support
import torch
from safetensors.torch import load_file, save_file

from services.worker.engines.port import EngineLoadError
from services.worker.engines.torch_engine.adapters import (
    TARGETS,
    LoraShape,
    load_adapter,
)
from services.worker.engines.torch_engine.config import load_config
from services.worker.model_files import ModelFiles

MODULES = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    """Folders of tiny base models by kind."""
    found = {}
    for kind, changes in (("llama", {}), ("qwen2", {"tie_word_embeddings": True}), ("wide", {"head_dim": 12})):
        found[kind] = tmp_path_factory.mktemp(kind)
        support.save_checkpoint(found[kind], "llama" if kind == "wide" else kind, **changes)
    return found


def peft_adapter(base, folder, seed=0, **options):
    """Save a random adapter with PEFT; returns the base's and the merged model's weights by name."""
    import peft
    import transformers

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **options))
        torch.manual_seed(seed)
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(parameter, std=0.5)
        adapted.save_pretrained(folder)
        return before, adapted.merge_and_unload().state_dict()


ALL = [module.partition(".")[2] for module in MODULES.values()]
OPTIONS = {
    "all layers": {"r": 4, "lora_alpha": 8, "target_modules": ALL},
    "some targets": {"r": 3, "lora_alpha": 5, "target_modules": ["q_proj", "v_proj", "down_proj"]},
    "rank-stabilised": {"r": 4, "lora_alpha": 8, "use_rslora": True, "target_modules": ALL},
    "rank and alpha patterns": {
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ALL,
        "rank_pattern": {"q_proj": 2, r"layers\.1\.mlp\.up_proj": 7, "^model.layers.0.self_attn.k_proj": 1},
        "alpha_pattern": {"v_proj": 3, r"layers\.0\.mlp\.down_proj": 32},
    },
    "patterns, rank-stabilised": {
        "r": 4, "target_modules": ALL, "use_rslora": True, "rank_pattern": {"o_proj": 9},
    },
    "one layer": {"r": 2, "target_modules": ALL, "layers_to_transform": [1]},
    "one layer, of a pattern": {
        "r": 2, "target_modules": ["q_proj"], "layers_to_transform": 0, "layers_pattern": "layers",
    },
    "all-linear": {"r": 2, "target_modules": "all-linear"},
    "expression": {"r": 2, "target_modules": r".*\.0\.(self_attn|mlp)\.(q|up)_proj"},
    "all but some": {"r": 2, "target_modules": ALL, "exclude_modules": ["k_proj", "model.layers.0.mlp.gate_proj"]},
}  # fmt: skip


@pytest.mark.parametrize("kind", ["llama", "qwen2", "wide"])
@pytest.mark.parametrize("name", OPTIONS)
def test_base_plus_product_is_what_peft_merges(bases, tmp_path, kind, name):
    before, merged = peft_adapter(bases[kind], tmp_path, **OPTIONS[name])
    config = load_config(ModelFiles(bases[kind]))
    adapter = load_adapter(ModelFiles(tmp_path), config)
    changed = 0
    for layer in range(config.layers):
        for target in TARGETS:
            weight = f"model.layers.{layer}.{MODULES[target]}.weight"
            expected = merged[weight] - before[weight]
            pair = adapter.layers[layer].get(target)
            if pair is None:
                assert not expected.any(), weight
                continue
            changed += 1
            assert pair.a.is_contiguous()
            assert pair.b.is_contiguous()
            assert pair.a.dtype == pair.b.dtype == torch.float32
            assert (pair.b.shape[0], pair.a.shape[1]) == LoraShape.of(config).features(target)[::-1]
            torch.testing.assert_close(before[weight] + pair.b @ pair.a, merged[weight], rtol=1e-5, atol=1e-5)
    assert changed == len(load_file(tmp_path / "adapter_model.safetensors")) // 2
    assert adapter.rank == max(pair.rank for each in adapter.layers for pair in each.values())


def test_halves_are_read_as_float32(bases, tmp_path):
    peft_adapter(bases["llama"], tmp_path, r=2, target_modules=["q_proj"])
    path = tmp_path / "adapter_model.safetensors"
    save_file({name: tensor.to(torch.bfloat16) for name, tensor in load_file(path).items()}, path)
    adapter = load_adapter(ModelFiles(tmp_path), load_config(ModelFiles(bases["llama"])))
    pair = adapter.layers[0]["q"]
    stored = load_file(path)
    prefix = "base_model.model.model.layers.0.self_attn.q_proj"
    assert torch.equal(pair.a, stored[f"{prefix}.lora_A.weight"].float())
    assert torch.equal(pair.b, stored[f"{prefix}.lora_B.weight"].float() * 4.0)  # alpha 8 over rank 2
    assert adapter.bytes == 4 * 2 * (2 * 32 + 32 * 2)


# ---- what is refused ------------------------------------------------------------------------------------------------


@pytest.fixture
def adapter(bases, tmp_path):
    """(folder of an adapter that a test may break, the base's configuration)."""
    peft_adapter(bases["llama"], tmp_path, r=2, target_modules=["q_proj", "down_proj"])
    return tmp_path, load_config(ModelFiles(bases["llama"]))


def refused(adapter, *words):
    with pytest.raises(EngineLoadError) as caught:
        load_adapter(ModelFiles(adapter[0]), adapter[1])
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"peft_type": "IA3"}, "peft_type"),
        ({"bias": "lora_only"}, "bias"),
        ({"use_dora": True}, "use_dora"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"lora_bias": True}, "lora_bias"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"target_parameters": ["x"]}, "target_parameters"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"layer_replication": [[0, 1]]}, "layer_replication"),
        ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens"),
        ({"a_field_of_tomorrow": 1}, "a_field_of_tomorrow"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights"),
        ({"init_lora_weights": "olora"}, "init_lora_weights"),
        ({"target_modules": ["q_proj", "lm_head"]}, "lm_head"),
        ({"target_modules": ["model.layers.2.self_attn.q_proj"]}, "model.layers.2"),
        ({"target_modules": []}, "target_modules"),
        ({"target_modules": None}, "malformed"),
        ({"target_modules": "nothing"}, "target_modules"),
        ({"target_modules": "("}, "malformed"),
        ({"rank_pattern": {"q_proj": 0}}, "rank 0"),
        ({"lora_alpha": "much"}, "malformed"),
        ({"lora_alpha": float("inf")}, "lora_alpha"),
        ({"r": None}, "malformed"),
    ],
)
def test_unsupported_or_malformed_fields_are_named(adapter, changes, word):
    path = adapter[0] / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    refused(adapter, str(path), word)


@pytest.mark.parametrize("content", ["", "[]", "{"])
def test_a_configuration_that_is_no_object_is_refused(adapter, content):
    (adapter[0] / "adapter_config.json").write_text(content)
    refused(adapter, "adapter_config.json")


@pytest.mark.parametrize("file", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_missing_file_is_named(adapter, file):
    (adapter[0] / file).unlink()
    refused(adapter, file, "No such file")


def change_tensors(adapter, change):
    path = adapter[0] / "adapter_model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


NAME = "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tensors: tensors.pop(NAME), (NAME, "missing")),
        (lambda tensors: tensors.update({NAME: torch.ones(3, 32)}), (NAME, "(3, 32)", "(2, 32)")),
        (lambda tensors: tensors.update({NAME: torch.full((2, 32), torch.nan)}), (NAME, "finite")),
        (lambda tensors: tensors.update({NAME: torch.ones(2, 32, dtype=torch.int8)}), (NAME, "I8")),
        (lambda tensors: tensors.update(surplus=torch.ones(1)), ("surplus", "announces")),
    ],
)
def test_missing_surplus_and_misshapen_tensors_are_named(adapter, change, words):
    change_tensors(adapter, change)
    refused(adapter, "adapter_model.safetensors", *words)


def test_an_adapter_of_a_larger_model_is_refused(adapter, bases, tmp_path_factory):
    folder = tmp_path_factory.mktemp("deep")
    support.save_checkpoint(folder, num_hidden_layers=3)
    refused((adapter[0], load_config(ModelFiles(folder))), "layers.2", "missing")


def test_a_truncated_file_is_refused(adapter):
    path = adapter[0] / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    refused(adapter, "adapter_model.safetensors", "cannot be read")
