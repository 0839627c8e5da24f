"""Bodies of requests in a content coding (RFC 9110, section 8.4): read whole, and never beyond a bound.

What a compressed body holds is known only while it is unpacked, so nothing is unpacked further than may be used: a
bomb costs what a body of the greatest size costs. Why not Envoy's decompressors: docs/adr/0042-compressed-bodies.md.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import brotli
import zstandard

from libs.errors import Reason, WeirError

WBITS = {"gzip": 31, "deflate": 15}
"""zlib's word for each of its content codings; "deflate" has zlib's frame (RFC 9110, section 8.4.1.2)."""
_ZSTD_WINDOW = 8 << 20
"""Bytes: no window may be larger in HTTP (RFC 9659)."""


class _TooLarge(Exception):
    pass


class _Malformed(Exception):
    pass


def decompressed(data: bytes, coding: str, most: int) -> bytes:
    """A body as it was before its content coding.

    :param coding: the value of `content-encoding`; one coding, not a list of them.
    :param most: bytes.
    :raises WeirError: UNSUPPORTED_MEDIA_TYPE: another coding, or several; INVALID_REQUEST: a body that is not in it, or
        not whole; PAYLOAD_TOO_LARGE.
    """
    coding = coding.strip().lower()
    if coding in ("", "identity"):
        return data
    read = _READERS.get(coding.removeprefix("x-"))
    if read is None:
        message = f"the body must be in one content coding of {', '.join(_READERS)}, or in none"
        raise WeirError(Reason.UNSUPPORTED_MEDIA_TYPE, message, limit="content-encoding")
    try:
        return read(data, most)
    except _TooLarge:
        raise WeirError(Reason.PAYLOAD_TOO_LARGE, f"the body has more than {most} bytes", limit="body") from None
    except _Malformed:
        raise WeirError(Reason.INVALID_REQUEST, f"the body is not {coding}", limit="content-encoding") from None


def _zlib(wbits: int) -> Callable[[bytes, int], bytes]:
    def read(data: bytes, most: int) -> bytes:
        reader = zlib.decompressobj(wbits)
        try:
            found = reader.decompress(data, most + 1)
        except zlib.error:
            raise _Malformed from None
        return _whole(found, most, whole=reader.eof and not reader.unused_data)

    return read


def _brotli(data: bytes, most: int) -> bytes:
    reader = brotli.Decompressor()
    found = b""
    try:
        # One byte behind the end is an error to it.
        while len(found) <= most and not reader.is_finished():
            more = reader.process(data, output_buffer_limit=most + 1 - len(found))
            if not more and reader.can_accept_more_data():
                break
            found, data = found + more, b""
    except brotli.error:
        raise _Malformed from None
    return _whole(found, most, whole=reader.is_finished())


def _zstd(data: bytes, most: int) -> bytes:
    unpacker = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
    try:
        # This one can be bounded, the other one says where the frame ends.
        if len(unpacker.stream_reader(data).read(most + 1)) > most:
            raise _TooLarge
        reader = unpacker.decompressobj()
        found = reader.decompress(data)
    except zstandard.ZstdError:
        raise _Malformed from None
    return _whole(found, most, whole=reader.eof and not reader.unused_data)


def _whole(found: bytes, most: int, *, whole: bool) -> bytes:
    if len(found) > most:
        raise _TooLarge
    if not whole:
        raise _Malformed
    return found


_READERS = {**{coding: _zlib(wbits) for coding, wbits in WBITS.items()}, "br": _brotli, "zstd": _zstd}
