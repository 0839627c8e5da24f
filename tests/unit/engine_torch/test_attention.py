"""Paged attention against a plain float64 reference: both implementations, every kind of step."""

import errno

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.engines.torch_engine.attention import AttentionShape, Segment, build_attention

CPU = torch.device("cpu")
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
SHAPES = [
    AttentionShape(heads=4, kv_heads=4, head_width=16, layers=2, block_size=8),
    AttentionShape(heads=8, kv_heads=4, head_width=32, layers=2, block_size=16),
    AttentionShape(heads=6, kv_heads=2, head_width=80, layers=2, block_size=12),
    AttentionShape(heads=8, kv_heads=2, head_width=128, layers=2, block_size=32, dtype=torch.bfloat16),
    AttentionShape(heads=4, kv_heads=2, head_width=16, layers=2, block_size=8, scale=0.7, cap=3.0, windows=(0, 11)),
    AttentionShape(
        heads=4, kv_heads=1, head_width=256, layers=2, block_size=16, dtype=torch.bfloat16, cap=50.0, windows=(4, 16)
    ),
]
PLAIN, SLIDING = SHAPES[1], SHAPES[4]


def label(shape):
    """How tests name a shape."""
    return f"{shape.heads}x{shape.head_width}{' sliding' if shape.windows else ''}"


@pytest.fixture(autouse=True, scope="module")
def _two_threads():
    """Enough to share tasks among threads, few enough for a small machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with torch.inference_mode():
        yield
    torch.set_num_threads(before)


class Memory:
    """An arena with scattered blocks for a few sequences; what nobody owns is NaN. Earlier tokens are filled in."""

    def __init__(self, shape, segments, seed=0):
        self.shape, self.segments = shape, segments
        chance = torch.Generator().manual_seed(seed)
        size = shape.block_size
        needs = [-(-(segment.start + segment.count) // size) for segment in segments]
        order = torch.randperm(sum(needs) + 1, generator=chance).tolist()
        self.tables = np.full((len(segments), max(needs)), order.pop(), dtype=np.int32)
        self.arena = torch.full((sum(needs) + 1, shape.apart), torch.nan, dtype=shape.dtype)
        self.blocks = self.arena[:, : shape.block_numbers].view(shape.arena(sum(needs) + 1))
        tokens = sum(segment.count for segment in segments)
        wide = (tokens, shape.heads + 2 * shape.kv_heads, shape.head_width)
        rows = torch.randn(wide, generator=chance).to(shape.dtype)
        self.query, self.key, self.value = rows.split([shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
        self.past = []
        for segment, need in zip(segments, needs, strict=True):
            self.tables[segment.row, :need] = [order.pop() for _ in range(need)]
            earlier = (segment.start, shape.layers, 2, shape.kv_heads, shape.head_width)
            self.past.append(torch.randn(earlier, generator=chance).to(shape.dtype))
            for position, token in enumerate(self.past[-1]):
                self.blocks[self.tables[segment.row, position // size], :, :, :, position % size] = token

    def own(self, index):
        """Where the tokens of segment `index` lie in the batch."""
        first = sum(segment.count for segment in self.segments[:index])
        return slice(first, first + self.segments[index].count)

    def expected(self, layer):
        """What attention should answer for every token, in float64."""
        return torch.cat([self._expected_of(index, layer) for index in range(len(self.segments))])

    def attend(self, attention, layer=1):
        plan = attention.plan(self.tables, self.segments)
        return attention.attend(plan, layer, self.query, self.key, self.value, self.arena)

    def _expected_of(self, index, layer):
        shape, segment, own = self.shape, self.segments[index], self.own(index)
        shared = shape.heads // shape.kv_heads
        past = self.past[index][:, layer].double()
        keys = torch.cat((past[:, 0], self.key[own].double())).repeat_interleave(shared, dim=1)
        values = torch.cat((past[:, 1], self.value[own].double())).repeat_interleave(shared, dim=1)
        scores = torch.einsum("qhd,khd->hqk", self.query[own].double(), keys) * (shape.scale or shape.head_width**-0.5)
        if shape.cap:
            scores = shape.cap * torch.tanh(scores / shape.cap)
        places, own_places = torch.arange(len(keys)), torch.arange(segment.start, len(keys)).unsqueeze(1)
        hidden = places > own_places
        if shape.window(layer):
            hidden |= places <= own_places - shape.window(layer)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, values).flatten(1)


def mixed(size):
    """Decodes at the ends and beginnings of blocks, a fresh prompt, and a chunk behind earlier tokens."""
    starts = (0, size - 1, size, 3 * size + 2)
    decodes = [Segment(row, start) for row, start in enumerate(starts)]
    return [*decodes, Segment(4, 0, 2 * size + 3), Segment(5, size + 5, 19), Segment(6, 2 * size, 2)]


@pytest.fixture(params=["torch", "compiled"])
def kernel(request):
    return request.param


@pytest.mark.parametrize("shape", SHAPES, ids=label)
def test_a_mixed_step_equals_the_reference_and_stores_its_tokens(shape, kernel):
    memory = Memory(shape, mixed(shape.block_size))
    before = memory.arena.clone()
    answer = memory.attend(build_attention(shape, CPU, kernel))
    assert answer.dtype == shape.dtype
    torch.testing.assert_close(answer.double(), memory.expected(1), rtol=0, atol=TOLERANCE[shape.dtype])
    for index, segment in enumerate(memory.segments):
        for offset, token in enumerate(range(*memory.own(index).indices(10**6))):
            position = segment.start + offset
            block = memory.tables[segment.row, position // shape.block_size]
            stored = memory.blocks[block, 1, :, :, position % shape.block_size]
            assert torch.equal(stored, torch.stack((memory.key[token], memory.value[token])))
            stored.copy_(before.view(memory.blocks.shape)[block, 1, :, :, position % shape.block_size])
    assert torch.equal(memory.arena.view(torch.uint8), before.view(torch.uint8)), "nothing else was written"


@settings(max_examples=25, deadline=None)
@given(
    kernel=st.sampled_from(["torch", "compiled"]),
    sizes=st.lists(st.tuples(st.integers(0, 70), st.integers(1, 40)), min_size=1, max_size=6),
    seed=st.integers(0, 1000),
    shape=st.sampled_from([PLAIN, SLIDING]),
)
def test_any_step_equals_the_reference(kernel, sizes, seed, shape):
    segments = [Segment(row, start, count) for row, (start, count) in enumerate(sizes)]
    memory = Memory(shape, segments, seed)
    answer = memory.attend(build_attention(shape, CPU, kernel))
    torch.testing.assert_close(answer.double(), memory.expected(1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", [PLAIN, SLIDING], ids=label)
def test_a_sequence_gets_the_same_bits_alone_and_in_a_batch(kernel, shape):
    segments = [Segment(row, 17 * row, 1 if row % 3 else 5) for row in range(12)]
    attention = build_attention(shape, CPU, kernel)
    memory = Memory(shape, segments)
    together = memory.attend(attention)
    for index, segment in enumerate(segments):
        own = memory.own(index)
        plan = attention.plan(memory.tables, [segment])
        rows = (tensor[own] for tensor in (memory.query, memory.key, memory.value))
        assert torch.equal(attention.attend(plan, 1, *rows, memory.arena), together[own])


@pytest.mark.parametrize("shape", [PLAIN, SLIDING], ids=label)
def test_the_compiled_kernel_gives_the_same_bits_however_a_prompt_is_cut(shape):
    attention = build_attention(shape, CPU, "compiled")
    memory = Memory(shape, [Segment(0, 0, 61)])
    whole = memory.attend(attention)
    parts = []
    for first, last in ((0, 1), (1, 30), (30, 61)):
        plan = attention.plan(memory.tables, [Segment(0, first, last - first)])
        rows = (tensor[first:last] for tensor in (memory.query, memory.key, memory.value))
        parts.append(attention.attend(plan, 1, *rows, memory.arena))
    assert torch.equal(torch.cat(parts), whole)


def test_a_plan_serves_every_layer_and_blocks_may_be_wider_than_the_model_needs(kernel):
    narrow = SHAPES[1]
    wide = AttentionShape(
        narrow.heads, narrow.kv_heads, 32, narrow.layers, 16, stride=narrow.block_numbers + 3 * narrow.head_width
    )
    memory = Memory(wide, mixed(16))
    attention = build_attention(wide, CPU, kernel)
    plan = attention.plan(memory.tables, memory.segments)
    for layer in range(wide.layers):
        answer = attention.attend(plan, layer, memory.query, memory.key, memory.value, memory.arena)
        torch.testing.assert_close(answer.double(), memory.expected(layer), rtol=0, atol=1e-5)
    assert memory.arena[:, wide.block_numbers :].isnan().all()


def test_a_broken_sequence_does_not_spoil_its_neighbours(kernel):
    shape = SHAPES[1]
    memory = Memory(shape, mixed(16))
    whole = memory.attend(build_attention(shape, CPU, kernel))
    memory.query[memory.own(4)] = torch.nan
    broken = memory.attend(build_attention(shape, CPU, kernel))
    assert broken[memory.own(4)].isnan().all()
    others = torch.ones(len(whole), dtype=torch.bool)
    others[memory.own(4)] = False
    assert torch.equal(broken[others], whole[others])


def test_what_lies_before_a_window_is_not_read(kernel):
    memory = Memory(SLIDING, [Segment(0, 40), Segment(1, 30, 5)])
    whole = memory.attend(build_attention(SLIDING, CPU, kernel))
    for row, begin in ((0, 40 - 10), (1, 30 - 10)):
        for position in range(begin):
            memory.blocks[memory.tables[row, position // 8], 1, :, :, position % 8] = torch.nan
        memory.tables[row, : begin // 8] = memory.tables[row, -1]  # whole blocks may be somebody else's
    assert torch.equal(memory.attend(build_attention(SLIDING, CPU, kernel)), whole)


@pytest.mark.parametrize("shape", [PLAIN, SLIDING], ids=label)
def test_sequences_that_decode_together_on_a_gpu_are_padded_without_reading_what_they_do_not_own(shape):
    memory = Memory(shape, mixed(16))
    attention = build_attention(shape, CPU, "torch")
    for together, wanted in ((False, [1] * 7), (True, [4, 1, 1, 1])):
        attention._together = together
        for groups in attention.plan(memory.tables, memory.segments).groups.values():
            assert [group.sequences for group in groups] == wanted
    torch.testing.assert_close(memory.attend(attention).double(), memory.expected(1), rtol=0, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("shape", SHAPES, ids=label)
def test_a_gpu_gives_the_same(shape):
    device = torch.device("cuda")
    memory = Memory(shape, mixed(shape.block_size))
    expected = memory.expected(1)
    for name in ("query", "key", "value", "arena"):
        setattr(memory, name, getattr(memory, name).to(device))
    answer = memory.attend(build_attention(shape, device))
    torch.testing.assert_close(answer.cpu().double(), expected, rtol=0, atol=TOLERANCE[shape.dtype])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_heads": 3}, "share"),
        ({"layers": 0}, "positive"),
        ({"stride": 32}, "apart"),
        ({"windows": (4,)}, "one for each of 2 layers"),
        ({"windows": (4, -1)}, "one for each of 2 layers"),
    ],
)
def test_impossible_shapes_are_refused(change, message):
    sizes = {"heads": 8, "kv_heads": 4, "head_width": 32, "layers": 2, "block_size": 16}
    with pytest.raises(ValueError, match=message):
        AttentionShape(**sizes | change)


@pytest.mark.parametrize("segment", [Segment(0, 16), Segment(1, 0)])
def test_a_segment_beyond_its_table_is_refused(segment):
    attention = build_attention(SHAPES[1], CPU, "compiled")
    with pytest.raises(ValueError, match="beyond"):
        attention.plan(np.zeros((1, 1), dtype=np.int32), [segment])


def test_what_the_kernel_cannot_do_is_done_by_torch(caplog):
    odd = AttentionShape(heads=4, kv_heads=2, head_width=24, layers=1, block_size=16)
    with pytest.raises(ValueError, match="multiple of 16"):
        build_attention(odd, CPU, "compiled")
    memory = Memory(odd, mixed(16))
    answer = memory.attend(build_attention(odd, CPU), layer=0)
    torch.testing.assert_close(answer.double(), memory.expected(0), rtol=0, atol=1e-5)
    assert "multiple of 16" in caplog.text


def test_where_numba_keeps_the_kernel_a_full_disk_costs_the_cache_and_nothing_else(monkeypatch):
    kernel = pytest.importorskip("services.worker.engines.torch_engine.attention_kernel")

    def cfunc(kind, cache=False, **options):
        if cache:
            raise OSError(errno.ENOSPC, "no space left on device")
        return lambda work: work

    monkeypatch.setattr(kernel.numba, "cfunc", cfunc)
    assert callable(kernel.compiled(2, 1, 16, 4, False, keep=True))
