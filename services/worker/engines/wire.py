"""Commands and reports as bytes: the frames between a worker and its engine's process.

A frame is its length (four bytes, little-endian) and a MessagePack message. The messages are those of `core.py` as
they are: a field that the engine port gains travels without a change here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import msgspec

from services.worker.engines.core import Command, Report
from services.worker.engines.port import EngineLoadError

_HEAD = struct.Struct("<I")
_MOST = 1 << 26  # bytes; a longer frame is the garbage of a process that has lost its senses


class CoreError(Exception):
    """An error that a core raised in another process; the message has its type's name and its text."""


class Log(msgspec.Struct, array_like=True, tag="log"):
    """A log record of the engine's process; the worker writes it with its own."""

    logger: str
    level: int
    event: str
    fields: dict[str, Any]


Said = Report | Log
"""All that an engine's process says."""

_KINDS: dict[str, type[Exception]] = {"EngineLoadError": EngineLoadError, "ValueError": ValueError}
# What callers tell apart; anything else arrives as a CoreError.


def _flat(value: Any) -> Any:
    if isinstance(value, Exception):
        kind = next((name for name, known in _KINDS.items() if isinstance(value, known)), type(value).__name__)
        return [kind, str(value)]
    raise TypeError(f"{type(value).__name__} cannot be sent")


def _whole(expected: type, value: Any) -> Any:
    if expected is Exception:
        kind, text = value
        known = _KINDS.get(kind)
        return known(text) if known is not None else CoreError(f"{kind}: {text}")
    raise TypeError(f"{expected.__name__} cannot be received")


_encoder = msgspec.msgpack.Encoder(enc_hook=_flat)
decode_command = msgspec.msgpack.Decoder(Command, dec_hook=_whole).decode
decode_said = msgspec.msgpack.Decoder(Said, dec_hook=_whole).decode


def frame(message: Command | Said) -> bytearray:
    """The message as a frame."""
    buffer = bytearray(_HEAD.size)
    _encoder.encode_into(message, buffer, _HEAD.size)
    _HEAD.pack_into(buffer, 0, len(buffer) - _HEAD.size)
    return buffer


def raw_frame(payload: bytes) -> bytes:
    """A frame around other bytes."""
    return _HEAD.pack(len(payload)) + payload


class FrameReader:
    """Cuts a stream of bytes into messages."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[memoryview]:
        """The messages that are whole now; take all of them before feeding again.

        :raises ValueError: the stream is garbage.
        """
        whole = self._rest + data if self._rest else data
        view = memoryview(whole)
        at, end = 0, len(whole)
        while end - at >= _HEAD.size:
            (length,) = _HEAD.unpack_from(whole, at)
            if length > _MOST:
                raise ValueError(f"a frame of {length} bytes")
            if end - at - _HEAD.size < length:
                break
            at += _HEAD.size + length
            yield view[at - length : at]
        self._rest = whole[at:]
