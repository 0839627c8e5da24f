"""Tensors in memory that two processes see."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_st

from services.predictor.executors.shared import KEPT_BYTES, Arena, Garbled, Placed

DTYPES = st.sampled_from(["?", "u1", "<u2", "<f2", "<i4", "<f4", "<i8", "<f8"])
PLAIN = st.lists(
    DTYPES.flatmap(lambda dtype: numpy_st.arrays(dtype, numpy_st.array_shapes(min_dims=0, min_side=0, max_side=9))),
    max_size=4,
)


def pair() -> tuple[Arena, Arena]:
    """The two ends of one."""
    writer = Arena.create()
    return writer, Arena(os.dup(writer.fd))


@given(st.lists(PLAIN, min_size=1, max_size=3), st.booleans())
def test_what_is_written_is_read(batches: list[list[np.ndarray]], copy: bool) -> None:
    writer, reader = pair()
    for arrays in batches:
        read = reader.read(writer.write({str(n): [array] for n, array in enumerate(arrays)}), copy=copy)
        for n, array in enumerate(arrays):
            assert read[str(n)].dtype == array.dtype
            np.testing.assert_array_equal(read[str(n)], array)


@given(st.lists(st.lists(st.binary(max_size=40), max_size=5), min_size=1, max_size=4))
def test_texts_of_several_members_lie_behind_one_another(members: list[list[bytes]]) -> None:
    writer, reader = pair()
    parts = []
    for texts in members:
        part = np.empty((len(texts), 1), object)
        part[:, 0] = texts
        parts.append(part)
    numbers = [np.full((len(texts), 2), len(texts), np.int64) for texts in members]
    read = reader.read(writer.write({"t": parts, "n": numbers}), copy=False)
    assert read["t"].shape == (sum(map(len, members)), 1)
    assert read["t"][:, 0].tolist() == [text for texts in members for text in texts]
    np.testing.assert_array_equal(read["n"], np.concatenate(numbers))


def test_it_grows_and_gives_back_what_a_large_batch_took() -> None:
    writer, reader = pair()
    for size in (10, KEPT_BYTES, 3 * KEPT_BYTES // 2):
        array = np.arange(size, dtype=np.uint8)
        np.testing.assert_array_equal(reader.read(writer.write({"a": [array]}), copy=True)["a"], array)
    before = os.fstat(writer.fd).st_blocks
    writer.trim()
    assert os.fstat(writer.fd).st_blocks * 512 <= KEPT_BYTES < before * 512
    assert reader.read(writer.write({"a": [array]}), copy=True)["a"][-1] == array[-1]


@pytest.mark.parametrize(
    "placed",
    [
        Placed("a", "<f4", (4,), 1 << 40, 16),
        Placed("a", "<f4", (5,), 0, 16),
        Placed("a", "<f4", (-4,), 0, 16),
        Placed("a", "<f4", (4,), -64, 16),
        Placed("a", "<f4", (1 << 40, 1 << 40), 0, 16),
        Placed("a", "|O8", (2,), 0, 16),
        Placed("a", "nonsense", (2,), 0, 16),
        Placed("a", "O", (2,), 0, 16 + 5),
        Placed("a", "O", (1 << 50,), 0, 16),
        Placed("a", "O", (-1,), 0, 16),
    ],
)
def test_who_lies_about_what_is_where_is_found_out(placed: Placed) -> None:
    writer, reader = pair()
    writer.write({"a": [np.array([3, -1], np.int64)]})
    with pytest.raises(Garbled):
        reader.read([placed], copy=True)


def test_nobody_can_shrink_it_under_the_other() -> None:
    writer, reader = pair()
    writer.write({"a": [np.ones(10)]})
    with pytest.raises(PermissionError):
        os.ftruncate(reader.fd, 0)
