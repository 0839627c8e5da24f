"""Compressed bodies are read as they were, whole or not at all, and cost no more than the bound whatever they hold."""

from __future__ import annotations

import contextlib
import gzip
import struct
import tracemalloc
import zlib
from collections.abc import Callable

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from libs.codings import decompressed
from libs.errors import Reason, WeirError

MIB = 1 << 20
Pack = Callable[[bytes], bytes]


def streamed(data: bytes) -> bytes:
    """A frame that does not say how large its content is."""
    packer = zstandard.ZstdCompressor().compressobj()
    return packer.compress(data) + packer.flush()


PACKS: list[tuple[str, Pack]] = [
    ("gzip", gzip.compress),
    ("deflate", zlib.compress),
    ("br", brotli.compress),
    ("zstd", zstandard.ZstdCompressor().compress),
    ("zstd", streamed),
]
packs = pytest.mark.parametrize(("coding", "pack"), PACKS, ids=["gzip", "deflate", "br", "zstd", "zstd-streamed"])


def refusal(data: bytes, coding: str, most: int = MIB) -> WeirError:
    with pytest.raises(WeirError) as caught:
        decompressed(data, coding, most)
    return caught.value


@packs
@given(data=st.binary(max_size=3000), times=st.sampled_from([1, 100]))
def test_a_body_comes_back_as_it_was_up_to_the_bound_and_not_beyond(
    coding: str, pack: Pack, data: bytes, times: int
) -> None:
    data *= times
    packed = pack(data)
    for spelled in (coding, f" {coding.upper()} "):
        assert decompressed(packed, spelled, max(len(data), 1)) == data
    if data:
        error = refusal(packed, coding, len(data) - 1)
        assert (error.reason, error.limit) == (Reason.PAYLOAD_TOO_LARGE, "body")


@packs
def test_half_a_body_one_and_a_bit_and_something_else_are_refused(coding: str, pack: Pack) -> None:
    whole = pack(b'{"a": [1, 2, 3]}' * 50)
    for broken in (b"", whole[:-1], whole[: len(whole) // 2], whole + b"x", b"plain", b'{"a": 1}'):
        error = refusal(broken, coding)
        assert (error.reason, error.limit) == (Reason.INVALID_REQUEST, "content-encoding"), broken


@given(
    data=st.binary(max_size=200), coding=st.sampled_from(["gzip", "deflate", "br", "zstd"]), most=st.integers(0, 300)
)
def test_whatever_comes_is_read_or_refused(data: bytes, coding: str, most: int) -> None:
    with contextlib.suppress(WeirError):
        assert len(decompressed(data, coding, most)) <= most


@pytest.mark.parametrize("coding", ["gzip, gzip", "gzip,br", "compress", "aes128gcm", "*", "gzip;q=1", "utf-8"])
def test_other_codings_and_several_are_refused_by_name(coding: str) -> None:
    error = refusal(gzip.compress(b"x"), coding)
    assert (error.reason, error.limit) == (Reason.UNSUPPORTED_MEDIA_TYPE, "content-encoding")
    assert "gzip, deflate, br, zstd" in error.message


def test_none_is_none_and_old_names_are_known() -> None:
    assert decompressed(b"x", "", 0) == decompressed(b"x", "identity", 0) == b"x"
    assert decompressed(gzip.compress(b"x"), "x-gzip", 1) == b"x"


def gibibyte(coding: str) -> bytes:
    """A gibibyte of zeros, packed."""
    zeros = bytes(MIB)
    if coding == "br":
        packer = brotli.Compressor(quality=5)
        return b"".join(packer.process(zeros) for _ in range(1024)) + packer.finish()
    other = zstandard.ZstdCompressor().compressobj() if coding == "zstd" else zlib.compressobj(6, zlib.DEFLATED, 31)
    return b"".join(other.compress(zeros) for _ in range(1024)) + other.flush()


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd"])
def test_a_bomb_costs_what_the_largest_body_costs(coding: str) -> None:
    bomb = gibibyte(coding)
    assert len(bomb) < 1.1 * MIB
    tracemalloc.start()
    try:
        assert refusal(bomb, coding).reason is Reason.PAYLOAD_TOO_LARGE
        assert tracemalloc.get_traced_memory()[1] < 8 * MIB, "of a gibibyte"
    finally:
        tracemalloc.stop()


def frame(window: int, size: bytes = b"", descriptor: int = 0) -> bytes:
    """A zstd frame of 100 bytes that asks for a window of 2**window bytes."""
    block = struct.pack("<I", 100 << 3 | 0b011)[:3] + b"x"
    return b"\x28\xb5\x2f\xfd" + bytes([descriptor, window - 10 << 3]) + size + block


def test_a_frame_gets_no_larger_window_than_http_allows_whatever_it_claims() -> None:
    """Ten bytes made Envoy's decompressor take 128 MiB, for as long as the stream was held."""
    assert decompressed(frame(23), "zstd", MIB) == b"x" * 100
    for window in (24, 27, 31, 41):
        assert refusal(frame(window), "zstd").reason is Reason.INVALID_REQUEST
    lying = frame(20, struct.pack("<Q", 1 << 50), 0b1100_0000)
    assert refusal(lying, "zstd").reason is Reason.INVALID_REQUEST
