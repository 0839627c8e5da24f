"""What the engine refuses to load, and that it names the file."""

import json

import pytest
import support_checkpoints as support
import torch
from safetensors.torch import load_file, save_file
from support_checkpoints import MODEL, make_core

from services.worker.engines.port import EngineLoadError
from services.worker.engines.torch_engine import runner
from services.worker.engines.torch_engine.attention_torch import TorchAttention


@pytest.fixture
def copy(tiny, tmp_path):
    """A copy of the tiny checkpoint that a test may break."""
    for file in tiny[0].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def change_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    support.write_manifest(folder)


def change_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    support.write_manifest(folder)


def refused(folder, file, *, match=None, **settings):
    with pytest.raises(EngineLoadError, match=match) as caught:
        make_core({MODEL: folder}, **settings)
    assert file in str(caught.value)


def test_a_flipped_byte_is_noticed(copy):
    path = copy / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    refused(copy, "model.safetensors", match="sha256")


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_a_truncated_weight_file_is_refused_with_and_without_a_manifest(copy, kept):
    path = copy / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    refused(copy, "model.safetensors", match="bytes")
    support.write_manifest(copy)
    refused(copy, "model.safetensors", match="cannot be read")
    refused(copy, "model.safetensors", match="cannot be read", require_manifest=False)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "manifest.json"])
def test_a_missing_file_is_named(copy, file):
    (copy / file).unlink()
    refused(copy, file)


def test_a_missing_folder_is_named(tmp_path):
    refused(tmp_path / "absent", "absent")


def test_a_manifest_of_another_model_is_refused(copy):
    support.write_manifest(copy, "tiny@2")
    refused(copy, "manifest.json", match="tiny@2")


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"name": "tiny", "version": "1"}', '{"name": "tiny", "version": "1", "files": [{"path": "x"}]}'],
)
def test_a_malformed_manifest_is_refused(copy, content):
    (copy / "manifest.json").write_text(content)
    refused(copy, "manifest.json")


def test_a_manifest_may_not_point_outside_or_leave_files_out(copy):
    manifest = json.loads((copy / "manifest.json").read_text())
    outside = manifest | {"files": [{"path": "../x", "sha256": "0", "bytes": 1}]}
    (copy / "manifest.json").write_text(json.dumps(outside))
    refused(copy, "manifest.json", match="outside")
    partial = manifest | {"files": [each for each in manifest["files"] if each["path"] != "model.safetensors"]}
    (copy / "manifest.json").write_text(json.dumps(partial))
    refused(copy, "manifest.json", match="does not list model.safetensors")


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": ["GPT2LMHeadModel"]},
        {"architectures": None},
        {"hidden_act": "gelu"},
        {"rope_parameters": {"rope_type": "proportional", "rope_theta": 1e4, "factor": 2.0}},
        {"num_key_value_heads": 3},
        {"num_hidden_layers": "many"},
        {"hidden_size": None},
        {"architectures": ["MistralForCausalLM"], "sliding_window": 0},
    ],
)
def test_unsupported_or_malformed_configurations_are_refused(copy, changes):
    change_config(copy, **changes)
    refused(copy, "config.json")


def test_missing_and_misshapen_tensors_are_named(copy):
    change_weights(copy, lambda weights: weights.update({"model.norm.weight": torch.ones(31)}))
    refused(copy, "model.safetensors", match=r"model\.norm\.weight has shape \(31,\)")
    change_weights(copy, lambda weights: weights.pop("model.norm.weight"))
    refused(copy, "model.safetensors", match=r"model\.norm\.weight is missing")


def test_weights_that_are_not_numbers_fail_the_self_test(copy):
    change_weights(copy, lambda weights: weights["model.norm.weight"].fill_(float("nan")))
    refused(copy, MODEL, match="self-test")


@pytest.mark.parametrize(("forgets", "way"), [("a decode", "decode"), ("a chunk", "chunks")])
def test_e3_attention_that_keeps_nothing_fails_the_self_test(tiny, monkeypatch, forgets, way):
    """Its own token it sees; those after it do not."""

    class Forgetful(TorchAttention):
        def attend(self, plan, layer, query, key, value, arena):
            before = arena.clone()
            attended = super().attend(plan, layer, query, key, value, arena)
            if (len(query) == 1) is (forgets == "a decode"):
                arena.copy_(before)
            return attended

    monkeypatch.setattr(runner, "build_attention", Forgetful)
    refused(tiny[0], MODEL, match=f"self-test failed, prompt and {way} differ")


def test_sharded_checkpoints_load(tiny, tmp_path):
    model = tiny[1]
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    support.write_manifest(tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    core = make_core({MODEL: tmp_path})
    collected = support.run(core, [support.request(1, [5, 6, 7])])
    assert collected.tokens[1] == support.reference(model, [5, 6, 7])
