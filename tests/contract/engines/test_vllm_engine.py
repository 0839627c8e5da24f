"""What vLLM itself does behind the adapter, beyond the contract. Runs in vLLM's environment (`make test-engines`)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import engine_cases
import pytest
import pytest_asyncio
from conftest import quiet
from engine_cases import MODEL, Driver, request

from services.worker.engines.port import EngineLoadError, FinishReason, Structure

pytest.importorskip("vllm", reason="vLLM is not installed in this environment: make test-engines")
pytestmark = pytest.mark.asyncio(loop_scope="module")

ADAPTER, BROKEN, CHANGED = "tuned@1", "broken@1", "changed@1"
PROMPT = [7, 8, 9, 30, 31]
RANK = 4


class Rig:
    """An engine with three adapters: a sound one, one that vLLM cannot load, one that is not what its manifest says."""

    def __init__(self, folder: Path) -> None:
        self.base, self.tuned, broken, changed = (folder / name for name in ("base", "tuned", "broken", "changed"))
        self.base.mkdir()
        engine_cases.save_tiny_checkpoint(self.base)
        for adapter in (self.tuned, broken, changed):
            save_adapter(adapter)
        (broken / "adapter_model.safetensors").write_bytes(b"no weights")
        for adapter in (self.tuned, broken, changed):
            engine_cases.save_manifest(adapter, adapter.name, "1")
        save_adapter(changed, seed=8)
        self.failures: asyncio.Queue[BaseException] = asyncio.Queue()
        self.engine = engine_cases.make_vllm(
            self.base,
            on_failure=self.failures.put_nowait,
            adapters={ADAPTER: str(self.tuned), BROKEN: str(broken), CHANGED: str(changed)},
        )
        self.driver = Driver("vllm", self.engine)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    made = Rig(tmp_path_factory.mktemp("vllm"))
    with quiet():
        await made.engine.start(made.driver.sink)
        yield made
        await made.engine.stop()


def save_adapter(folder: Path, *, seed: int = 7) -> None:
    """A LoRA adapter in PEFT format whose effect is large enough to change greedy output."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for module in ("q_proj", "v_proj", "o_proj"):
        name = f"base_model.model.model.layers.0.self_attn.{module}"
        weights[f"{name}.lora_A.weight"] = torch.randn(RANK, 64, generator=generator)
        weights[f"{name}.lora_B.weight"] = torch.randn(64, RANK, generator=generator)
    save_file(weights, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": ["q_proj", "v_proj", "o_proj"],
              "bias": "none", "base_model_name_or_path": "", "task_type": "CAUSAL_LM"}  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))


def reference(base: Path, adapter: Path | None, tokens: int) -> list[int]:
    """Greedy output of transformers, with the adapter merged into the weights."""
    import torch
    import transformers
    from safetensors.torch import load_file

    model = transformers.LlamaForCausalLM.from_pretrained(base).eval().float()
    if adapter is not None:
        weights = load_file(adapter / "adapter_model.safetensors")
        attention = model.model.layers[0].self_attn
        for module in ("q_proj", "v_proj", "o_proj"):
            name = f"base_model.model.model.layers.0.self_attn.{module}"
            change = weights[f"{name}.lora_B.weight"] @ weights[f"{name}.lora_A.weight"]
            getattr(attention, module).weight.data += change
    ids = torch.tensor([PROMPT])
    for _ in range(tokens):
        with torch.no_grad():
            ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], dim=1)
    return ids[0, len(PROMPT) :].tolist()


async def test_the_base_and_an_adapter_in_one_batch_equal_the_reference(rig):
    assert rig.engine.info.models == (MODEL, ADAPTER, BROKEN, CHANGED)
    await rig.driver.run(
        request(1, PROMPT, max_tokens=12),
        request(2, PROMPT, max_tokens=12, model=ADAPTER),
        request(3, PROMPT, max_tokens=12),
    )
    base = reference(rig.base, None, 12)
    tuned = reference(rig.base, rig.tuned, 12)
    assert base != tuned
    assert [rig.driver.tokens[handle] for handle in (1, 2, 3)] == [base, tuned, base]


async def test_an_adapter_shares_no_prefix_with_its_base(rig):
    prompt = [40 + number % 30 for number in range(70)]
    await rig.driver.run(request(10, prompt))
    await rig.driver.run(request(11, prompt, model=ADAPTER))
    await rig.driver.run(request(12, prompt, model=ADAPTER))
    assert (rig.driver.cached[10], rig.driver.cached[11]) == (0, 0)
    assert rig.driver.cached[12] == 64


@pytest.mark.parametrize("adapter", [BROKEN, CHANGED])
async def test_an_adapter_that_cannot_be_loaded_fails_its_requests_alone(rig, adapter):
    start = 20 if adapter == BROKEN else 40
    for first in (start, start + 10):
        await rig.driver.run(request(first, model=adapter), request(first + 1), request(first + 2, model=ADAPTER))
        assert rig.driver.finish[first] == FinishReason.ERROR
        assert rig.driver.errors[first] == f"the adapter {adapter} cannot be loaded"
        assert len(rig.driver.tokens[first + 1]) == len(rig.driver.tokens[first + 2]) == 6
    assert rig.failures.empty()


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": 9.0}, {"logprobs": 90}, {"logit_bias": {10**6: 1.0}}, {"prompt": [10**6]}],
    ids=["temperature", "logprobs", "bias out of vocabulary", "token out of vocabulary"],
)
async def test_what_vllm_refuses_is_told_to_the_caller_alone(rig, wrong):
    handle = 100 + len(rig.driver.finish)
    await rig.driver.run(request(handle, **wrong), request(handle + 1))
    assert rig.driver.finish[handle] == FinishReason.ERROR
    assert rig.driver.errors[handle] not in ("", "the engine failed on this sequence")
    assert len(rig.driver.tokens[handle + 1]) == 6


async def test_a_structured_output_begun_elsewhere_is_refused(rig):
    structure = Structure("regex", "[a-z]{9}")
    await rig.driver.run(request(300, resumed=2, structure=structure), request(301, resumed=2))
    assert rig.driver.finish[300] == FinishReason.ERROR
    assert "begun elsewhere" in rig.driver.errors[300]
    assert len(rig.driver.tokens[301]) == 6


async def test_a_checkpoint_that_was_tampered_with_is_refused_by_name(tmp_path):
    engine_cases.save_tiny_checkpoint(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x00")
    engine = engine_cases.make_vllm(tmp_path)
    with pytest.raises(EngineLoadError, match=r"model\.safetensors"):
        await engine.start(lambda output: None)
    await engine.stop()


async def test_the_death_of_its_processes_is_reported_once_and_ends_everything(rig):
    """The last of this module: nothing runs on the engine afterwards."""
    import psutil

    rig.driver.engine.submit([request(handle, max_tokens=120) for handle in range(900, 906)])
    await rig.driver.until(lambda: rig.driver.tokens[900])
    [core] = [each for each in psutil.Process().children() if "EngineCore" in each.name()]
    core.kill()
    await rig.driver.finished(*range(900, 906))
    assert FinishReason.ERROR in {rig.driver.finish[handle] for handle in range(900, 906)}
    rig.engine.submit([request(910)])
    await rig.driver.finished(910)
    assert rig.driver.finish[910] == FinishReason.ERROR
    await rig.failures.get()
    assert rig.failures.empty()
