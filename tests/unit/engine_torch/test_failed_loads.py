"""Models and adapters that cannot be read while others are being served."""

import json
import os

import pytest
import support_checkpoints as support
import torch
from safetensors.torch import save_file
from support_checkpoints import MODEL, make_core, request, run

from libs.clock import ManualClock
from services.worker.engines.port import FinishReason
from services.worker.engines.torch_engine.settings import AdapterSource

OTHER = "other@1"
PROMPT = [1, 5, 9, 13]


@pytest.fixture
def other(tmp_path):
    """The folder of a second model, to be damaged."""
    support.save_checkpoint(tmp_path / "other", seed=1)
    support.write_manifest(tmp_path / "other", OTHER)
    return tmp_path / "other"


def save_adapter(folder, name, factor):
    """An adapter of the queries of the first layer that multiplies by about `factor`."""
    folder.mkdir()
    prefix = "base_model.model.model.layers.0.self_attn.q_proj"
    halves = {f"{prefix}.lora_A.weight": torch.ones(2, 32), f"{prefix}.lora_B.weight": torch.full((32, 2), factor)}
    save_file(halves, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 1e10, "target_modules": ["q_proj"], "layers_to_transform": [0]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    support.write_manifest(folder, name)
    return AdapterSource(base=MODEL, folder=folder)


def damage(folder):
    """Write to the weights without changing them; it is noticed all the same."""
    os.utime(folder / "model.safetensors", ns=(1, 1))


def counted(core, monkeypatch):
    """The models whose reading begins from now on."""
    shelf, started = core._parts.models.shelf, []
    read = shelf._read_model
    monkeypatch.setattr(shelf, "_read_model", lambda model, reason: (started.append(model), read(model, reason)))
    return started


def test_a_model_that_cannot_be_read_is_not_read_again_and_again(tiny, other, monkeypatch):
    clock = ManualClock()
    weights = sum(each.stat().st_size for each in tiny[0].glob("*.safetensors"))
    core = make_core({MODEL: tiny[0], OTHER: other}, clock, weight_bytes=weights * 3 // 2, min_residency=0.0)
    started = counted(core, monkeypatch)
    damage(other)
    wanted = run(core, [request(1, PROMPT, model=OTHER)])
    assert wanted.finish == {1: FinishReason.ERROR}
    again = run(core, [request(2, PROMPT, model=OTHER), request(3, PROMPT)])
    assert again.finish[2] == FinishReason.ERROR
    assert again.tokens[3]
    assert started == [OTHER, MODEL]
    clock.advance(60.0)
    assert run(core, [request(4, PROMPT, model=OTHER)]).finish == {4: FinishReason.ERROR}
    assert started == [OTHER, MODEL, OTHER]


def test_e1_an_adapter_stays_what_it_was_when_it_was_first_read(tiny, tmp_path):
    """What it computed lies in the cache under its name."""
    first, other = (save_adapter(tmp_path / name, f"{name}@1", 1e-10) for name in ("first", "other"))
    core = make_core({MODEL: tiny[0]}, adapters={"first@1": first, "other@1": other}, max_adapters=1, min_residency=0.0)
    before = run(core, [request(1, PROMPT, model="first@1")]).tokens[1]
    assert run(core, [request(2, PROMPT, model="other@1")]).tokens[2]  # in its place
    for file in first.folder.iterdir():
        file.unlink()
    first.folder.rmdir()
    save_adapter(tmp_path / "first", "first@1", 2e-10)
    assert run(core, [request(3, PROMPT, model="first@1")]).finish == {3: FinishReason.ERROR}
    assert "is not what it was" in core._parts.models.shelf.reasons["first@1"]
    assert run(core, [request(4, PROMPT, model="other@1")]).tokens[4]
    assert before


def test_an_adapter_whose_numbers_overflow_fails_alone_and_pushes_nobody_out(tiny, tmp_path):
    adapters = {
        "sound@1": save_adapter(tmp_path / "sound", "sound@1", 1e-10),
        "broken@1": save_adapter(tmp_path / "broken", "broken@1", 1e30),
    }
    core = make_core({MODEL: tiny[0]}, adapters=adapters, max_adapters=1, min_residency=0.0)
    before = run(core, [request(1, PROMPT, model="sound@1")]).tokens[1]
    plain = run(core, [request(2, PROMPT)]).tokens[2]
    assert before != plain
    assert run(core, [request(3, PROMPT, model="broken@1")]).finish == {3: FinishReason.ERROR}
    assert run(core, [request(4, PROMPT, model="sound@1")]).tokens[4] == before
