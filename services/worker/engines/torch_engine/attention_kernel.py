"""The attention kernel itself: what the threads of a step run, compiled by numba for one shape of heads.

Functions that only the compiler sees take the sizes of that shape as arguments; they are inlined, and the sizes become
constants. The kernel's closure holds nothing but numbers, because numba, where it keeps it, finds it on disk by them.
"""

from __future__ import annotations

import math
import zlib
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba import types

from services.worker.engines.torch_engine import attention_vectors as vectors
from services.worker.engines.torch_engine.attention_layout import (
    ARENA,
    ATTEND,
    BLOCK,
    CAP,
    FIELDS,
    KEY,
    KEY_STRIDE,
    LANES,
    LAST_TASK,
    NEXT_TASK,
    NEXT_THREAD,
    OUT,
    QUERY,
    QUERY_STRIDE,
    SCALE,
    SCORES,
    SCRATCH,
    SCRATCH_SIZE,
    SEGMENTS,
    TABLE_STRIDE,
    TABLES,
    TASKS,
    VALUE,
    VALUE_STRIDE,
    WINDOW,
    WRITE,
)

_REGISTERS = 16
"""Running sums held at once while values are mixed, of 32 AVX-512 registers."""


@numba.njit(fastmath={"contract", "nsz"}, inline="always")
def _exp(x: Any) -> Any:
    """e to the power of a float32 that is not positive, within 2 units in the last place; NaN stays NaN.

    Written out because numba calls the C library for each number, where this fills the lanes.
    """
    x = np.float32(-87.0) if x < np.float32(-87.0) else x
    whole = np.floor(x * np.float32(math.log2(math.e)) + np.float32(0.5))
    # The logarithm of two in two parts, so that the rest is exact.
    rest = (x - whole * np.float32(0.693359375)) + whole * np.float32(2.12194440e-4)
    power = np.float32(1 / 5040)
    power = power * rest + np.float32(1 / 720)
    power = power * rest + np.float32(1 / 120)
    power = power * rest + np.float32(1 / 24)
    power = power * rest + np.float32(1 / 6)
    power = power * rest + np.float32(1 / 2)
    power = power * rest * rest + rest + np.float32(1.0)
    return power * np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)).view(np.float32)


@numba.njit(fastmath={"contract", "nsz"}, inline="always")
def _tanh(x: Any) -> Any:
    """The hyperbolic tangent of a float32 within a few units in the last place (Cephes' tanhf); NaN stays NaN."""
    size = x if x > np.float32(0.0) else -x
    square = x * x
    small = np.float32(-5.70498872745e-3)
    small = small * square + np.float32(2.06390887954e-2)
    small = small * square + np.float32(-5.37397155531e-2)
    small = small * square + np.float32(1.33314422036e-1)
    small = small * square + np.float32(-3.33332819422e-1)
    small = small * square * size + size
    power = _exp(np.float32(-2.0) * size)
    size = small if size < np.float32(0.625) else np.float32(1.0) - np.float32(2.0) * power / (np.float32(1.0) + power)
    return size if x > np.float32(0.0) else -size


@numba.njit(fastmath={"contract", "nsz"}, nogil=True)
def _capped(address: Any, count: int, cap: Any) -> None:
    """Replace `count` scores, given as parts of `cap`, by what stays between `cap` and -`cap` (Gemma 2)."""
    scores = numba.carray(vectors.floats_at(address), count)
    for index in range(np.uint64(count)):
        scores[index] = cap * _tanh(scores[index])


@numba.njit(fastmath={"nnan", "nsz"}, nogil=True)
def _largest(scores: Any) -> Any:
    """The largest score. What it is when one of them is NaN does not matter: that one spoils the sum."""
    largest = scores[0]
    for index in range(np.uint64(len(scores))):
        largest = scores[index] if scores[index] > largest else largest
    return largest


@numba.njit(fastmath={"contract", "nsz", "reassoc"}, nogil=True)
def _softmax(address: Any, count: int) -> Any:
    """Replace `count` scores by e to the power of their distance from the largest; 1 / their sum."""
    scores = numba.carray(vectors.floats_at(address), count)
    largest = _largest(scores)
    total = np.float32(0.0)
    for index in range(np.uint64(count)):
        score = _exp(scores[index] - largest)
        scores[index] = score
        total += score
    return np.float32(1.0) / total


@numba.njit(inline="always")
def _scores(
    table: Any,
    begin: int,
    length: int,
    start: Any,
    block: Any,
    query: Any,
    first: int,
    last: int,
    scratch: Any,
    stride: Any,
    group: Any,
    chunks: Any,
    row: Any,
    head_size: Any,
    values_at: Any,
    block_size: Any,
    half: Any,
    scale: Any,
    sliding: Any,
) -> None:
    """The products of one token's queries with the keys `begin` … `length`-1: (heads, `stride` bytes) of scratch."""
    following = start + np.uint64(table[begin // block_size]) * block
    values = following + np.uint64(values_at)
    for index in range(begin // block_size, (length + block_size - 1) // block_size):
        here = following
        following = values
        if (index + 1) * block_size < length:
            following = start + np.uint64(table[index + 1]) * block
        filled, unseen = min(block_size, length - index * block_size), 0
        if sliding:
            unseen = max(0, begin - index * block_size)
        for head in range(first, last):
            queries = vectors.load(query + np.uint64(head * group * row), scale, chunks, row, group, half)
            scores = scratch + np.uint64(head * group) * stride + np.uint64(index * block_size * 4)
            offset = np.uint64((head - first) * head_size)
            for place in range(unseen, filled):
                at = offset + np.uint64(place * row)
                vectors.prefetch(following + at, row)
                vectors.score(queries, here + at, scores + np.uint64(place * 4), stride, chunks, half)


@numba.njit(inline="always")
def _mixed(
    table: Any,
    begin: int,
    length: int,
    start: Any,
    block: Any,
    first: int,
    last: int,
    scratch: Any,
    stride: Any,
    sums: Any,
    group: Any,
    columns: Any,
    slices: Any,
    sum_row: Any,
    slice_row: Any,
    row: Any,
    head_size: Any,
    block_size: Any,
    half: Any,
    sliding: Any,
) -> None:
    """Add the values of the tokens `begin` … `length`-1, each times its weight, to the sums (heads, width)."""
    following = start + np.uint64(table[begin // block_size]) * block
    for index in range(begin // block_size, (length + block_size - 1) // block_size):
        here = following
        if (index + 1) * block_size < length:
            following = start + np.uint64(table[index + 1]) * block
        filled, unseen = min(block_size, length - index * block_size), 0
        if sliding:
            unseen = max(0, begin - index * block_size)
        for head in range(first, last):
            weights = scratch + np.uint64(head * group) * stride + np.uint64(index * block_size * 4)
            for part in range(slices):
                own = sums + np.uint64(head * group * sum_row + part * columns * LANES * 4)
                held = vectors.load(own, np.float32(1.0), columns, sum_row, group, False)
                inner = np.uint64((head - first) * head_size + part * slice_row)
                for place in range(unseen, filled):
                    at = inner + np.uint64(place * row)
                    vectors.prefetch(following + at, slice_row)
                    held = vectors.mix(held, here + at, weights + np.uint64(place * 4), stride, columns, half)
                vectors.store(own, held, np.float32(1.0), columns, sum_row, group, False)


def compiled(
    heads: int,
    kv_heads: int,
    width: int,
    block_size: int,
    half: bool,
    capped: bool = False,
    sliding: bool = False,
    *,
    keep: bool,
) -> Any:
    """The kernel for one shape, as a C function of a pointer to the call's arguments. What a shape does not ask for is
    not in its code.

    :param capped: whether there is an `AttentionShape.cap`.
    :param sliding: whether any layer has a window.
    :param keep: whether numba keeps it on disk, and takes it from there if it was compiled before.
    """
    group = heads // kv_heads
    chunks = width // LANES
    row = width * (2 if half else 4)
    head_size = block_size * row
    values_at = kv_heads * head_size
    # Running sums of as many columns at a time as registers hold.
    columns = max(n for n in range(1, chunks + 1) if chunks % n == 0 and (n == 1 or n * group <= _REGISTERS))
    slices = chunks // columns
    sum_row, slice_row, out_row = width * 4, row // slices, heads * row
    # Numba's cache would not notice that this other file has changed.
    sources = zlib.crc32(Path(vectors.__file__).read_bytes()) | 1

    def work(fields: Any) -> None:
        """Take tasks until there are none."""
        if sources == 0:
            return
        given = numba.carray(fields, FIELDS)
        counters = np.uint64(given.ctypes.data)
        thread = vectors.take_number(counters + np.uint64(NEXT_THREAD * 8))
        scratch = np.uint64(given[SCRATCH] + thread * given[SCRATCH_SIZE])
        arena, block, stride = np.uint64(given[ARENA]), np.uint64(given[BLOCK]), np.uint64(given[SCORES])
        scale, cap = np.int32(given[SCALE]).view(np.float32), np.int32(given[CAP]).view(np.float32)
        sums = scratch + np.uint64(heads) * stride
        mixed = numba.carray(vectors.floats_at(sums), heads * width)
        factors = numba.carray(vectors.floats_at(sums + np.uint64(heads * width * 4)), heads)
        while True:
            number = vectors.take_number(counters + np.uint64(NEXT_TASK * 8))
            if number >= given[LAST_TASK]:
                break
            task = numba.carray(vectors.integers_at(np.uint64(given[TASKS] + number * 24)), 6)
            segment = numba.carray(vectors.integers_at(np.uint64(given[SEGMENTS] + task[1] * 16)), 4)
            first, last = task[4], task[5]
            own_table = vectors.integers_at(np.uint64(given[TABLES] + segment[0] * given[TABLE_STRIDE]))
            table = numba.carray(own_table, given[TABLE_STRIDE] // 4)
            for offset in range(task[2], task[2] + task[3]):
                token, position = segment[1] + offset, segment[2] + offset
                if task[0] & WRITE:
                    target = arena + np.uint64(table[position // block_size]) * block
                    target += np.uint64(position % block_size * row)
                    key = np.uint64(given[KEY] + token * given[KEY_STRIDE])
                    value = np.uint64(given[VALUE] + token * given[VALUE_STRIDE])
                    for head in range(first, last):
                        place = target + np.uint64(head * head_size)
                        vectors.copy(place, key + np.uint64(head * row), row)
                        vectors.copy(place + np.uint64(values_at), value + np.uint64(head * row), row)
                if task[0] & ATTEND:
                    length, begin = position + 1, 0
                    if sliding:
                        begin = max(0, length - given[WINDOW])
                    query = np.uint64(given[QUERY] + token * given[QUERY_STRIDE])
                    out = np.uint64(given[OUT] + token * out_row)
                    start = arena + np.uint64(first * head_size)
                    _scores(
                        table,
                        begin,
                        length,
                        start,
                        block,
                        query,
                        first,
                        last,
                        scratch,
                        stride,
                        group,
                        chunks,
                        row,
                        head_size,
                        values_at,
                        block_size,
                        half,
                        scale,
                        sliding,
                    )
                    for index in range(first * group, last * group):
                        scores = scratch + np.uint64(index) * stride + np.uint64(begin * 4)
                        if capped:
                            _capped(scores, length - begin, cap)
                        factors[index] = _softmax(scores, length - begin)
                    for index in range(first * group * width, last * group * width):
                        mixed[index] = 0.0
                    _mixed(
                        table,
                        begin,
                        length,
                        start + np.uint64(values_at),
                        block,
                        first,
                        last,
                        scratch,
                        stride,
                        sums,
                        group,
                        columns,
                        slices,
                        sum_row,
                        slice_row,
                        row,
                        head_size,
                        block_size,
                        half,
                        sliding,
                    )
                    for index in range(first * group, last * group):
                        held = vectors.load(sums + np.uint64(index * sum_row), factors[index], chunks, 0, 1, False)
                        vectors.store(out + np.uint64(index * row), held, np.float32(1.0), chunks, 0, 1, half)

    kind = types.void(types.CPointer(types.int64))
    options: dict[str, Any] = {"nogil": True, "fastmath": {"contract", "nsz"}}
    if keep:
        try:
            return numba.cfunc(kind, cache=True, **options)(work)
        except (OSError, RuntimeError):
            pass  # no folder to keep the compiled kernel in, or no room there
    return numba.cfunc(kind, **options)(work)


def object_code_of(kernel: Any) -> bytes:
    """What was compiled, as LLVM's object file, of a kernel that numba did not take from disk."""
    found: bytes = kernel._library._get_compiled_object()
    return found
