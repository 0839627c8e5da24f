"""Each family of decoders as transformers computes it; `make test-engine` runs every case of the oracle on each."""

import subprocess
import sys
from pathlib import Path

import pytest
import support_checkpoints as support
import support_oracle as oracle
from safetensors.torch import load_file
from support_checkpoints import make_core

from libs.families import FAMILIES
from services.worker.engines.torch_engine.config import load_config
from services.worker.engines.torch_engine.weights import expected_shapes
from services.worker.model_files import ModelFiles

ROOT = Path(__file__).parents[3]
ROWS = oracle.ARCHITECTURES | oracle.FAMILIES


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return oracle.World(tmp_path_factory.mktemp("families"), prompts=14, adapted=14)


def test_every_family_is_held_against_transformers():
    assert {support.ARCHITECTURES.get(kind, kind) for kind, _ in ROWS.values()} == FAMILIES.keys()


@pytest.mark.parametrize("model", oracle.FAMILIES)
def test_answers_in_chunks_and_from_the_cache_are_those_of_transformers(world, model):
    assert oracle.check(world, "chunks, cached", [model]) == 0


def test_adapters_of_fused_projections_are_those_of_transformers(world):
    assert oracle.check(world, "adapters in one batch", ["phi3@1"]) == 0


@pytest.mark.parametrize("model", oracle.FAMILIES)
def test_the_tensors_expected_are_those_that_transformers_writes(world, model):
    folder = world.folder(model)
    found = {name: tuple(each.shape) for name, each in load_file(folder / "model.safetensors").items()}
    assert expected_shapes(load_config(ModelFiles(folder))) == found


@pytest.mark.parametrize("weights", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("model", oracle.FAMILIES)
def test_rows_have_the_same_bits_alone_and_in_a_batch(world, model, weights):
    found = []
    for running in (1, len(world.prompts)):
        core = make_core(
            {model: world.folder(model)}, weights=weights, max_running=running, max_step_tokens=1024, prefix_cache=False
        )
        assert core.info.numerics.keys() == {model}
        asked = [support.request(i, each, model=model, logprobs=2) for i, each in enumerate(world.prompts)]
        collected = support.run(core, asked)
        found.append((collected.tokens, collected.logprobs))
    assert found[0] == found[1]


def test_longrope_beyond_the_original_context_takes_its_long_factors(tmp_path):
    rope = {"rope_parameters": oracle.longrope(6, partial_rotary_factor=0.75), "original_max_position_embeddings": 8}
    model = support.save_checkpoint(tmp_path, "Phi3ForCausalLM", **oracle.WIDE, **rope, pad_token_id=0)
    prompt = list(range(3, 15))
    asked = [support.request(0, prompt, model=support.MODEL)]
    collected = support.run(make_core({support.MODEL: tmp_path}, max_running=2, max_step_tokens=5), asked)
    assert collected.tokens[0] == support.reference(model, prompt)


@pytest.mark.parametrize(("model", "most"), [("mistral@1", 6), ("gemma2@1", 16)])
def test_memory_before_the_windows_of_all_layers_is_given_back(world, model, most):
    core = make_core({model: world.folder(model)}, prefix_cache=False)
    core.add([support.request(0, [5, 9, 60] * 15, model=model, max_tokens=20, ignore_eos=True)])
    held = []
    while core.has_work():
        core.step()
        held.append(256 - core.capacity().free_blocks)
    assert max(held[1:]) == most  # blocks of four: the window's 19 tokens and one before them, or all 64


def test_tables_of_the_rotary_embedding_are_as_long_as_a_sequence_can_be(tmp_path):
    support.save_checkpoint(tmp_path, max_position_embeddings=100_000)
    core = make_core({support.MODEL: tmp_path}, block_size=4, total_blocks=16)
    [(cos, _)] = core._parts.models.shelf.loaded(support.MODEL).runner.model._turns
    assert len(cos) == 64
    vector, _ = support.embed(core, [5] * 70)  # whose keys and values are in memory of their own
    assert len(vector) == 32


def test_the_page_has_the_table_of_families():
    page = [sys.executable, ROOT / "bin" / "engine-docs", "--check"]
    assert subprocess.run(page, env={"PYTHONPATH": str(ROOT)}, check=False).returncode == 0


def test_families_are_read_without_torch():
    code = "import sys, libs.families; sys.exit(bool({'torch', 'numba', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
