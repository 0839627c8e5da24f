"""Activations: a row has the same bits alone and in any batch, wherever torch's threads divide it."""

import pytest
import torch

from services.worker.engines.torch_engine.activations import activation


@pytest.fixture(params=[2, 3])
def _threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("width", [1000, 4864, 5461])
@pytest.mark.parametrize("name", ["silu", "gelu_tanh"])
def test_a_row_has_the_same_bits_however_many_there_are(name, width):
    x = torch.randn(67, 2 * width, generator=torch.Generator().manual_seed(0)) * 3
    compute = activation(name)
    whole = compute(x.chunk(2, dim=-1)[0])
    for count in (1, 2, 7, 14, 33, 66):
        assert torch.equal(compute(x[:count].chunk(2, dim=-1)[0]), whole[:count])
    torch.testing.assert_close(whole[:1], compute(x[:1].double().chunk(2, dim=-1)[0]).float())
