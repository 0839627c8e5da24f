"""safetensors: read as the library writes them, lazily; damaged, surplus and misplaced tensors are refused by name."""

import json
import os
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from support_checkpoints import MODEL

from libs.clock import ManualClock
from services.worker.engines.port import EngineLoadError
from services.worker.engines.torch_engine.loading import StageTimer, read_checkpoint
from services.worker.engines.torch_engine.weights import load_weights, open_tensors
from services.worker.model_files import ModelFiles

KINDS = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8,
    torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool,
]  # fmt: skip


@settings(deadline=None, max_examples=50)
@given(
    shapes=st.lists(st.tuples(st.sampled_from(KINDS), st.lists(st.integers(0, 5), max_size=3)), max_size=6),
    metadata=st.sampled_from([None, {"format": "pt"}]),
)
def test_tensors_are_read_as_the_library_writes_them(tmp_path_factory, shapes, metadata):
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    source = torch.Generator().manual_seed(1)
    tensors = {
        f"t{index}": torch.randint(0, 2, shape, generator=source).to(kind) for index, (kind, shape) in enumerate(shapes)
    }
    save_file(tensors, path, metadata=metadata)
    with_ours = open_tensors(ModelFiles(path.parent), [path.name])
    assert set(with_ours) == set(tensors)
    for name, expected in tensors.items():
        found = with_ours[name]
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert torch.equal(found.reshape(-1).view(torch.uint8), expected.reshape(-1).view(torch.uint8))
    with_ours.close()


def write_safetensors(path, header, data=b""):
    content = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(content)) + content + data)


def tensor(begin, end, shape=(1,), kind="F32"):
    return {"dtype": kind, "shape": list(shape), "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("header", "size", "words"),
    [
        ({"a": tensor(0, 4)}, 3, r"has \d+ bytes, its header describes \d+"),
        ({"a": tensor(0, 4)}, 5, "its header describes"),
        ({"a": tensor(0, 4), "b": tensor(4, 8)}, 4, "its header describes"),
        ({"a": tensor(0, 4), "b": tensor(8, 12)}, 12, "tensor b begins"),
        ({"a": tensor(0, 4), "b": tensor(0, 4)}, 4, "tensor b begins"),
        ({"a": tensor(0, 4), "b": tensor(2, 6)}, 6, "tensor b begins"),
        ({"a": tensor(0, 8)}, 8, "takes 8 bytes, its shape and type 4"),
        ({"a": tensor(0, 4, kind="F7")}, 4, "unknown type F7"),
        ({"a": tensor(0, 4, shape=(-1, -1))}, 4, "not whole numbers"),
        ({"a": tensor(0, 4, shape=(1.0,))}, 4, "not whole numbers"),
        ({"a": {"dtype": "F32", "shape": [1]}}, 4, "malformed: KeyError"),
        ({"a": 1}, 0, "malformed"),
        ([], 0, "malformed"),
        (b"{", 0, "malformed"),
        (b"[" * 100_000, 0, "malformed"),
        (b"\xff\xfe{}", 0, "malformed"),
        (b'{"a": {}, "a": {}}', 0, "a appears twice"),
    ],
)
def test_a_wrong_header_is_refused_in_words(tmp_path, header, size, words):
    path = tmp_path / "model.safetensors"
    write_safetensors(path, header, bytes(size))
    with pytest.raises(EngineLoadError, match=words) as caught:
        load_weights(ModelFiles(tmp_path))
    assert str(path) in str(caught.value)


def test_a_header_longer_than_the_file_or_than_any_header_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    for length, words in ((100, "ends inside its header of 100"), (1 << 60, "not safetensors")):
        path.write_bytes(struct.pack("<Q", length) + b"{}")
        with pytest.raises(EngineLoadError, match=words):
            load_weights(ModelFiles(tmp_path))


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_a_damaged_file_is_refused_or_read_but_nothing_else(tmp_path_factory, data):
    folder = tmp_path_factory.getbasetemp()
    path = folder / "damaged.safetensors"
    save_file({"a": torch.arange(6.0), "b": torch.ones(2, 3)}, path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.sampled_from([len(content), len(content) - 1, 40, 7]))])
    try:
        weights = open_tensors(ModelFiles(path.parent), [path.name])
        for name in weights:
            assert weights[name].nbytes == weights.info(name).bytes
    except EngineLoadError as error:
        assert "damaged.safetensors" in str(error)  # noqa: PT017


def test_what_was_read_is_the_readers_own_and_what_was_not_is_refused_once_the_file_changed(copy):
    path, name = copy / "model.safetensors", "model.embed_tokens.weight"
    weights = load_weights(ModelFiles(copy))
    before, expected = weights[name], load_file(path)[name].clone()
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(1, 1))
    with pytest.raises(EngineLoadError, match=r"model\.safetensors.*written since"):
        weights[name]
    os.truncate(path, weights.info(name).offset)
    with pytest.raises(EngineLoadError, match=r"model\.safetensors.*became shorter"):
        weights[name]
    assert torch.equal(before, expected)


def test_a_replaced_or_removed_file_is_read_as_it_was(copy):
    path, name = copy / "model.safetensors", "model.norm.weight"
    weights = load_weights(ModelFiles(copy))
    path.unlink()
    path.write_bytes(b"")
    assert weights[name].shape == (32,)
    weights.close()
    weights.close()
    assert name not in weights


def test_asking_for_an_unknown_tensor_is_a_key_error(copy):
    weights = load_weights(ModelFiles(copy))
    assert "surplus" not in weights
    assert weights.get("surplus") is None
    with pytest.raises(KeyError):
        weights["surplus"]


@pytest.fixture
def copy(tiny, tmp_path):
    """A copy of the tiny checkpoint that a test may break."""
    for file in tiny[0].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def change_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_surplus_and_quantised_tensors_are_named(copy):
    change_weights(copy, lambda weights: weights.update({"model.layers.2.mlp.up_proj.weight": torch.ones(1)}))
    refused_checkpoint(copy, r"model\.layers\.2\.mlp\.up_proj\.weight belongs to no layer")
    change_weights(copy, lambda weights: weights.pop("model.layers.2.mlp.up_proj.weight"))
    change_weights(copy, lambda weights: weights.update({"model.norm.weight": torch.ones(32, dtype=torch.int8)}))
    refused_checkpoint(copy, r"model\.norm\.weight has type I8")


def test_rotary_frequencies_and_a_tied_head_are_no_surplus(copy):
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    change_weights(copy, lambda weights: weights.update({name: torch.ones(4)}))
    path = copy / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tie_word_embeddings": True}))
    read_checkpoint(ModelFiles(copy), StageTimer(MODEL, ManualClock()))


def refused_checkpoint(folder, match):
    with pytest.raises(EngineLoadError, match=match):
        read_checkpoint(ModelFiles(folder), StageTimer(MODEL, ManualClock()))


@pytest.fixture
def shards(tmp_path):
    """A checkpoint in two files, each tensor in one of them."""
    save_file({"a": torch.ones(1), "b": torch.ones(2)}, tmp_path / "1.safetensors")
    save_file({"c": torch.ones(3)}, tmp_path / "2.safetensors")
    index = {"weight_map": {"a": "1.safetensors", "b": "1.safetensors", "c": "2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


@pytest.mark.parametrize(
    ("file", "tensors", "words"),
    [
        ("2.safetensors", {"c": (3,), "a": (1,)}, r"2\.safetensors: tensor a is also in 1\.safetensors"),
        ("2.safetensors", {}, r"2\.safetensors: tensor c is missing"),
        ("2.safetensors", {"c": (3,), "d": (1,)}, r"2\.safetensors: tensor d is not in"),
        ("1.safetensors", {"a": (1,)}, r"1\.safetensors: tensor b is missing"),
    ],
)
def test_duplicate_missing_and_surplus_tensors_of_shards_are_named(shards, file, tensors, words):
    assert set(load_weights(ModelFiles(shards))) == {"a", "b", "c"}
    save_file({name: torch.ones(shape) for name, shape in tensors.items()}, shards / file)
    with pytest.raises(EngineLoadError, match=words):
        load_weights(ModelFiles(shards))


def test_a_tensor_in_another_shard_than_the_index_says_is_named(shards):
    save_file({"b": torch.ones(2)}, shards / "1.safetensors")
    save_file({"c": torch.ones(3), "a": torch.ones(1)}, shards / "2.safetensors")
    with pytest.raises(EngineLoadError, match=r"tensor a should be in 1\.safetensors"):
        load_weights(ModelFiles(shards))


@pytest.mark.parametrize(
    "content", ["", "{}", '{"weight_map": []}', '{"weight_map": {}}', '{"weight_map": {"a": "../x"}}']
)
def test_a_malformed_index_is_refused(shards, content):
    (shards / "model.safetensors.index.json").write_text(content)
    with pytest.raises(EngineLoadError, match=r"index\.json"):
        load_weights(ModelFiles(shards))


def test_a_missing_shard_is_named(shards):
    (shards / "2.safetensors").unlink()
    with pytest.raises(EngineLoadError, match=r"2\.safetensors"):
        load_weights(ModelFiles(shards))
