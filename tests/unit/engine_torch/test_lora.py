"""Adapters in one batch against weights they are merged into."""

import pytest
import torch
from torch.nn import functional

from services.worker.engines.torch_engine import lora
from services.worker.engines.torch_engine.lora import GROUPS, LoraBank, LoraShape

SHAPE = LoraShape(layers=2, width=24, query=32, key=16, hidden=40)
TARGETS = tuple(target for targets in GROUPS.values() for target in targets)


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def adapter(seed, rank=4, targets=TARGETS, layers=range(2)):
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in layers:
        for target in targets:
            inner, outer = SHAPE.features(target)
            a = torch.randn(rank, inner, generator=generator) / inner**0.5
            weights[layer, target] = (a, torch.randn(outer, rank, generator=generator))
    return weights


def merged(base, weights, group, layer):
    """`base` (in, out) with what the adapter adds to each slice of the group's output."""
    parts = []
    for target in GROUPS[group]:
        inner, outer = SHAPE.features(target)
        a, b = weights.get((layer, target), (torch.zeros(1, inner), torch.zeros(outer, 1)))
        parts.append(b.double() @ a.double())
    return base.double() + torch.cat(parts)


@pytest.fixture
def adapters():
    return {0: adapter(1), 2: adapter(2, rank=7, targets=("q", "v", "up")), 3: adapter(3, layers=[1])}


@pytest.fixture
def bank(adapters):
    bank = LoraBank(SHAPE, 4)
    for slot, weights in adapters.items():
        bank.put(slot, weights)
    return bank


@pytest.mark.parametrize(
    "slots",
    [
        [0],
        [0, 0, 0],
        [None, 0, 0, None],
        [0, 0, 2, 2, None, 3],
        [3, None, 0, 2, 0, None, 3, 2, 0, 2, 3],
        [None, 2, None, 2, None, 2, None, 2],
        [0] * 5 + [None] * 3 + [0, 2, 3],
    ],
)
@pytest.mark.parametrize("group", GROUPS)
def test_every_row_is_as_with_merged_weights(bank, adapters, group, slots):
    torch.manual_seed(0)
    inner = SHAPE.features(GROUPS[group][0])[0]
    base = torch.randn(sum(SHAPE.features(target)[1] for target in GROUPS[group]), inner) / inner**0.5
    plan = bank.plan(slots)
    for layer in range(SHAPE.layers):
        x = torch.randn(len(slots), inner)
        shared = functional.linear(x, base)
        out = shared.clone()
        plan.apply(group, layer, x, out)
        for row, slot in enumerate(slots):
            if slot is None:
                assert torch.equal(out[row], shared[row])
                continue
            wanted = functional.linear(x[row].double(), merged(base, adapters[slot], group, layer))
            assert float((out[row] - wanted).abs().max() / wanted.abs().max()) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("group", GROUPS)
def test_a_row_has_the_same_bits_alone_and_in_a_batch(group, dtype):
    torch.manual_seed(0)
    inner, outer = 768, 3072
    shape = LoraShape(layers=1, width=inner, query=inner, key=inner // 4, hidden=outer)
    weights = {}
    for target in GROUPS[group]:
        width, height = shape.features(target)
        weights[0, target] = (torch.randn(8, width) / width**0.5, torch.randn(height, 8))
    bank = LoraBank(shape, 1, dtype=dtype)
    bank.put(0, weights)
    x = torch.randn(70, shape.features(GROUPS[group][0])[0], dtype=dtype)

    def added(x):
        out = torch.ones(len(x), sum(shape.features(target)[1] for target in GROUPS[group]), dtype=dtype)
        bank.plan([0] * len(x)).apply(group, 0, x, out)
        return out

    if not bank.exact(0):
        pytest.skip("products depend on the number of rows here, and workers tell no numerics")
    whole = added(x)
    for rows in (1, 2, 3, 4, 8, 17, 33, 64):
        assert torch.equal(added(x[:rows]), whole[:rows])
        assert torch.equal(added(x[70 - rows :]), whole[70 - rows :])


def test_an_adapter_whose_bits_depend_on_the_batch_is_known(adapters, monkeypatch):
    bank = LoraBank(SHAPE, 2)
    bank.put(0, adapters[0])
    monkeypatch.setattr(lora, "least_rows", lambda *_: None)
    bank.put(1, adapters[2])
    assert not bank.exact(1)


def test_no_row_with_an_adapter_means_no_plan(bank):
    assert bank.plan([None, None]) is None
    assert bank.plan([]) is None


def test_an_adapter_that_leaves_a_layer_out_leaves_it_alone(bank):
    x, out = torch.randn(2, 24), torch.randn(2, 80)
    before = out.clone()
    plan = bank.plan([3, 2])
    plan.apply("gate_up", 0, x, out)
    assert torch.equal(out[0], before[0])
    assert torch.equal(out[1, :40], before[1, :40])
    assert not torch.equal(out[1, 40:], before[1, 40:])


def test_plans_outlive_a_change_of_other_slots(bank, adapters):
    plan = bank.plan([0])
    x, out = torch.randn(1, 24), torch.zeros(1, 64)
    bank.drop(2)
    bank.put(2, adapter(9))
    plan.apply("qkv", 0, x, out)
    wanted = functional.linear(x.double(), merged(torch.zeros(64, 24), adapters[0], "qkv", 0))
    torch.testing.assert_close(out.double(), wanted, rtol=1e-5, atol=1e-5)


def test_slots_fill_and_empty():
    bank = LoraBank(SHAPE, 2)
    assert (bank.capacity, bank.free_slot(), bank.nbytes) == (2, 0, 0)
    weights = adapter(1)
    bank.put(0, weights)
    assert bank.free_slot() == 1
    assert bank.nbytes == sum(a.nbytes + b.nbytes for a, b in weights.values())
    bank.put(1, weights)
    assert bank.free_slot() is None
    bank.drop(0)
    assert bank.free_slot() == 0
    with pytest.raises(KeyError):
        bank.plan([0])
    with pytest.raises(IndexError):
        bank.put(2, weights)


def test_the_tensors_are_copied():
    bank = LoraBank(SHAPE, 1)
    weights = adapter(1)
    bank.put(0, weights)
    for a, b in weights.values():
        a.fill_(9)
        b.fill_(9)
    x, out = torch.randn(1, 24), torch.zeros(1, 64)
    bank.plan([0]).apply("qkv", 0, x, out)
    wanted = functional.linear(x.double(), merged(torch.zeros(64, 24), adapter(1), "qkv", 0))
    torch.testing.assert_close(out.double(), wanted, rtol=1e-5, atol=1e-5)


def test_bfloat16_activations():
    bank = LoraBank(SHAPE, 1, dtype=torch.bfloat16)
    bank.put(0, adapter(1))
    x, out = torch.randn(3, 24), torch.zeros(3, 64, dtype=torch.bfloat16)
    bank.plan([0, 0, 0]).apply("qkv", 1, x.bfloat16(), out)
    wanted = functional.linear(x.double(), merged(torch.zeros(64, 24), adapter(1), "qkv", 1))
    assert float((out - wanted).abs().max() / wanted.abs().max()) < 3e-2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a, b: (a[:, :-1], b), "do not fit"),
        (lambda a, b: (a, b[:-1]), "do not fit"),
        (lambda a, b: (a[:-1], b), "do not fit"),
        (lambda a, b: (a * float("nan"), b), "finite"),
        (lambda a, b: (a, b * float("inf")), "finite"),
    ],
)
def test_a_misfit_is_refused_and_changes_nothing(bank, change, message):
    weights = adapter(5)
    weights[1, "up"] = change(*weights[1, "up"])
    held = bank.nbytes
    with pytest.raises(ValueError, match=message):
        bank.put(0, weights)
    assert bank.nbytes == held
    with pytest.raises(ValueError, match="layers"):
        bank.put(0, {(2, "q"): weights[0, "q"]})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_gives_the_same(bank, adapters):
    there = LoraBank(SHAPE, 4, device="cuda")
    for slot, weights in adapters.items():
        there.put(slot, weights)
    slots = [3, None, 0, 2, 0, None, 3, 2, 0, 2, 3]
    x, out = torch.randn(len(slots), 24), torch.randn(len(slots), 64)
    found = out.cuda()
    there.plan(slots).apply("qkv", 1, x.cuda(), found)
    bank.plan(slots).apply("qkv", 1, x, out)
    torch.testing.assert_close(found.cpu(), out, rtol=1e-4, atol=1e-4)
