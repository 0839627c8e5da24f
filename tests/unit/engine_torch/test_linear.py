"""Packed linear layers against functional.linear, alone and in a batch."""

import pytest
import torch
from torch.nn import functional

from services.worker.engines.torch_engine import linear as module
from services.worker.engines.torch_engine.linear import Linear, quantize, worthwhile_rows

KINDS = ("float32", "bfloat16", "int8")
SHAPES = ((64, 96), (7, 5), (1, 33), (256, 40), (2304, 768))
HALF_STEP = 0.5 / 127  # of the largest weight of an output


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


def layer(inner, outer, kind, bias=False, **options):
    weight = torch.randn(outer, inner) / inner**0.5
    offset = torch.randn(outer) if bias else None
    return weight, offset, Linear.pack(weight, offset, kind, **options)


def relative(found, wanted):
    return float((found.double() - wanted.double()).abs().max() / wanted.double().abs().max())


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("lookup", [False, True])
@pytest.mark.parametrize(("inner", "outer"), SHAPES)
def test_float32_is_functional_linear(inner, outer, lookup, bias):
    weight, offset, packed = layer(inner, outer, "float32", bias, lookup=lookup)
    for rows in (1, 3, 40):
        x = torch.randn(rows, inner)
        assert relative(packed(x), functional.linear(x, weight, offset)) < 1e-5


@pytest.mark.parametrize("lookup", [False, True])
@pytest.mark.parametrize(("inner", "outer"), SHAPES)
def test_bfloat16_is_as_near_as_its_eight_bits_allow(inner, outer, lookup):
    weight, offset, packed = layer(inner, outer, "bfloat16", True, lookup=lookup)
    x = torch.randn(17, inner)
    exact = functional.linear(x.double(), weight.double(), offset.double())
    # Weight, activation, bias and result are each rounded by at most 2⁻⁹ of themselves.
    bound = 4 * 2**-9 * (functional.linear(x.abs(), weight.abs(), offset.abs()))
    found = packed(x)
    assert found.dtype is torch.float32
    assert bool(((found - exact).abs() <= bound).all())
    assert packed(x.bfloat16()).dtype is torch.bfloat16


@pytest.mark.parametrize(("inner", "outer"), SHAPES)
def test_int8_keeps_the_bound_of_its_rounding(inner, outer):
    weight, offset, packed = layer(inner, outer, "int8", True)
    x = torch.randn(17, inner)
    exact = functional.linear(x.double(), weight.double(), offset.double())
    steps = weight.abs().amax(1) * HALF_STEP
    bound = x.abs().sum(1, keepdim=True) * steps * 1.02
    assert bool(((packed(x) - exact).abs() <= bound + 1e-6).all())


@pytest.mark.parametrize(("inner", "outer"), SHAPES)
def test_int8_rounds_nothing_but_the_weights(inner, outer):
    weight, _, packed = layer(inner, outer, "int8")
    quantized, scales = quantize(weight)
    held = quantized.double() * scales.double()[:, None]
    x = torch.randn(9, inner).double() * torch.logspace(-6, 6, 9)[:, None]
    bits = module.digit_bits()
    # Half a step per activation at most, and what float32 loses besides.
    half_step = 0.0 if bits is None else 0.5 / (2 ** (bits - 1) * (2**bits - 1) - 1)
    most = half_step * x.abs().amax(1, keepdim=True) * held.abs().sum(1) + 1e-5 * (x.abs() @ held.abs().T)
    assert bool(((packed(x.float()) - x @ held.T).abs() <= most).all())


def test_int8_without_a_kernel_gives_the_same(monkeypatch):
    if module.digit_bits() is None:
        pytest.skip("there is no kernel here")
    weight, offset, packed = layer(96, 50, "int8", True, lookup=True)
    monkeypatch.setattr(module, "digit_bits", lambda: None)
    monkeypatch.setattr(module, "_BLOCK_ELEMENTS", 96 * 16)
    widened = Linear.pack(weight, offset, "int8", lookup=True)
    assert type(widened) is not type(packed)
    x = torch.randn(5, 96)
    assert relative(widened(x), packed(x)) < 1e-4
    ids = torch.tensor([49, 0, 3])
    assert torch.equal(widened.rows(ids), packed.rows(ids))


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_without_onednn_the_results_are_the_same(kind, monkeypatch):
    weight, offset, packed = layer(96, 50, kind, True, lookup=True)
    monkeypatch.setattr(module, "_has_onednn", lambda dtype: False)
    plain = Linear.pack(weight, offset, kind, lookup=True)
    assert type(plain) is not type(packed)
    x = torch.randn(5, 96)
    assert relative(plain(x), packed(x)) < (1e-5 if kind == "float32" else 1e-2)
    ids = torch.tensor([49, 0, 3])
    assert torch.equal(plain.rows(ids), packed.rows(ids))


@pytest.mark.parametrize("lookup", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("inner", "outer"), [(256, 512), (704, 256), (2304, 768)])
def test_a_row_has_the_same_bits_alone_and_in_a_batch(inner, outer, kind, threads, lookup):
    torch.set_num_threads(threads)
    _, _, packed = layer(inner, outer, kind, True, lookup=lookup)
    x = torch.randn(70, inner)
    whole = packed(x)
    for rows in (1, 2, 3, 8, 17, 32, 33, 64):
        assert torch.equal(packed(x[:rows]), whole[:rows])
        assert torch.equal(packed(x[70 - rows :]), whole[70 - rows :])


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_that_is_not_finite_is_seen_and_spoils_no_other(kind):
    _, _, packed = layer(64, 32, kind)
    x = torch.randn(4, 64)
    clean = packed(x)
    for value in (float("nan"), float("inf")):
        spoilt = x.clone()
        spoilt[2, 5] = value
        found = packed(spoilt)
        assert not bool(found[2].isfinite().any())
        assert torch.equal(found[[0, 1, 3]], clean[[0, 1, 3]])


@pytest.mark.parametrize("kind", KINDS)
def test_zeros_give_the_bias(kind):
    _, offset, packed = layer(64, 32, kind, True)
    tolerance = 1e-2 if kind == "bfloat16" else 0.0
    torch.testing.assert_close(packed(torch.zeros(3, 64)), offset.expand(3, 32), rtol=tolerance, atol=0.0)
    assert packed(torch.zeros(0, 64)).shape == (0, 32)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_the_weight(kind):
    weight, _, packed = layer(32, 50, kind, lookup=True)
    ids = torch.tensor([3, 0, 49, 3])
    tolerance = {"float32": 0.0, "bfloat16": 2**-8, "int8": HALF_STEP * 1.01}[kind]
    largest = weight[ids].abs().amax(1, keepdim=True)
    assert bool(((packed.rows(ids) - weight[ids]).abs() <= tolerance * largest).all())


@pytest.mark.parametrize("kind", KINDS)
def test_rows_need_lookup(kind):
    _, _, packed = layer(32, 50, kind)
    with pytest.raises(ValueError, match="lookup"):
        packed.rows(torch.tensor([1]))


def test_the_weight_may_change_afterwards():
    for kind in KINDS:
        for lookup in (False, True):
            weight, _, packed = layer(64, 64, kind, lookup=lookup)
            x = torch.randn(2, 64)
            before = packed(x)
            weight.zero_()
            assert torch.equal(packed(x), before)


def test_bytes_count_every_copy():
    weights = 256 * 512
    assert layer(256, 512, "float32")[2].nbytes == 4 * weights
    assert layer(256, 512, "bfloat16", True)[2].nbytes == 2 * (weights + 512)
    scales_and_zero_points = 2 * 4 * 512
    assert layer(256, 512, "int8")[2].nbytes - weights in (scales_and_zero_points, scales_and_zero_points // 2)
    assert layer(256, 512, "int8", lookup=True)[2].nbytes <= 2 * weights + scales_and_zero_points
    assert layer(256, 512, "float32", lookup=True)[2].nbytes == 4 * weights


def test_quantize_uses_the_whole_range_and_bears_zeros():
    weight = torch.tensor([[1.0, -2.0], [0.0, 0.0]])
    quantized, scales = quantize(weight)
    assert quantized.tolist() == [[64, -127], [0, 0]]
    assert scales.tolist() == [pytest.approx(2 / 127), 1.0]


def test_what_cannot_be_packed_is_refused():
    with pytest.raises(ValueError, match="int3"):
        Linear.pack(torch.zeros(2, 2), None, "int3")
    with pytest.raises(ValueError, match="linear layer"):
        Linear.pack(torch.zeros(2, 2), torch.zeros(3))
    with pytest.raises(ValueError, match="linear layer"):
        Linear.pack(torch.zeros(2))


def test_worthwhile_rows_are_few_and_near():
    counts = [worthwhile_rows(count) for count in range(1, 4097)]
    assert counts[:32] == list(range(1, 33))
    assert all(0 <= padded - count < max(8, count * 0.13) for count, padded in enumerate(counts, start=1))
    assert counts == sorted(counts)
    assert len(set(counts[:512])) <= 64


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_gives_the_same(kind):
    weight, offset, packed = layer(256, 96, kind, True, lookup=True)
    there = Linear.pack(weight, offset, kind, "cuda", lookup=True)
    x = torch.randn(9, 256)
    found = there(x.cuda()).cpu()
    assert relative(found, packed(x)) < {"float32": 1e-5, "bfloat16": 2e-2, "int8": 1e-4}[kind]
    ids = torch.tensor([95, 0])
    assert torch.equal(there.rows(ids.cuda()).cpu(), packed.rows(ids))
