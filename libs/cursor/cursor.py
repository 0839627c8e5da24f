"""An event's id: where in which answer its reader is, under a MAC that only gateways can make.

Base64 of

    fixed, written once per stream:  version 1 · key id 2 · created 4 · flags 1 · seed 8 · max_tokens 4 · digest 8 ·
                                     request id 1+n · model version 1+n · zeros to a multiple of 3
    of the event:                    tokens 4 · per choice: offset and end 4, check 4, with log-probabilities their
                                     count 4
    MAC 12                           keyed BLAKE2b over tenant, body's digest, and all of the above

in big-endian numbers: 108 characters for one choice. It holds no words: of the text that was delivered a length and a
CRC-32, which says whether the answer, computed anew, is the same so far. Tenant and body are not in it; with others the
MAC does not hold. Everything but the event's own part is encoded and hashed once, so that an event costs 1.5 µs.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import struct
import uuid
from collections.abc import Callable
from typing import Any
from zlib import crc32

import msgspec

from libs.cursor.keyring import Keyring
from libs.errors import Reason, WeirError

MAX_ID_CHARS = 1024
"""Longer ids are not looked into. Ours stay below: 8 choices, a request id of 64 and a version's name of 255."""
_VERSION = 1
_FIXED = struct.Struct(">B2sIBQI8s")
_MAC = 12
_SEEDED, _LOGPROBS = 0x40, 0x80
_CHOICES = 0x0F
_AS_UUID = 0xFF
_MOST = 2**31 - 1
_FIELD = "last_event_id"


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for the whole of an answer: enough, with its request, to compute it anew."""

    request_id: str
    """Of the request that began it; at most 254 ASCII characters."""
    created: int
    """When it began, in Unix seconds."""
    model_version: str
    """What answers: "weir-fast@1"; at most 255 bytes."""
    seed: int | None
    """None where chance plays no part."""
    max_tokens: int
    """Of each choice, limits and caps included."""
    choices: int
    """1 to 8."""
    logprobs: bool = False
    """Log-probabilities are shown."""
    digest: bytes = bytes(8)
    """8 bytes over all else that shapes the answer: prompt tokens, parameters, safety policies."""


class Position(msgspec.Struct, frozen=True):
    """How far the reader is in one choice."""

    offset: int = 0
    """Characters."""
    check: int = 0
    """CRC-32 of those, in UTF-8."""
    logprobs: int = 0
    """Log-probabilities that came with them."""
    ended: bool = False
    """The choice's last event was delivered."""


class Cursor(msgspec.Struct, frozen=True, kw_only=True):
    """What an id says."""

    origin: Origin
    tokens: int
    """Tokens of all choices that were taken from workers when the event was made: those billed by then."""
    positions: tuple[Position, ...]
    """By choice."""


class Trail:
    """Makes the ids of one stream's events."""

    __slots__ = ("_base", "_checks", "_counts", "_ended", "_offsets", "_pack", "_prefix", "_width")

    def __init__(
        self,
        keys: Keyring,
        origin: Origin,
        *,
        tenant: str,
        body: bytes,
        at: tuple[Position, ...] = (),
    ) -> None:
        """`body`: a digest of the request. `at`: where it goes on; empty: at the beginning.

        :raises ValueError: the origin's names are too long.
        """
        fixed = _fixed(origin, keys.signing_id)
        at = at or (Position(),) * origin.choices
        self._prefix = binascii.b2a_base64(fixed, newline=False)
        self._base = _keyed(keys.signing, tenant, body, fixed)
        self._offsets = [each.offset for each in at]
        self._checks = [each.check for each in at]
        self._counts = [each.logprobs for each in at]
        self._ended = [each.ended for each in at]
        self._width = 3 if origin.logprobs else 2
        self._pack: Callable[..., bytes] = struct.Struct(f">{1 + self._width * origin.choices}I").pack

    def event(self, index: int, text: str, tokens: int, *, logprobs: int = 0, ended: bool = False) -> bytes:
        """The id of the event that brings this text of a choice (and so many log-probabilities, and its end), when
        `tokens` in all were taken."""
        self._offsets[index] += len(text)
        self._checks[index] = crc32(text.encode("utf-8", "surrogatepass"), self._checks[index])
        if logprobs:
            self._counts[index] += logprobs
        if ended:
            self._ended[index] = True
        if len(self._offsets) == 1 and self._width == 2:  # nearly all of them
            own = self._pack(tokens, self._offsets[0] << 1 | self._ended[0], self._checks[0])
        else:
            numbers = [tokens]
            for each in range(len(self._offsets)):
                numbers += (self._offsets[each] << 1 | self._ended[each], self._checks[each])
                if self._width == 3:
                    numbers.append(self._counts[each])
            own = self._pack(*numbers)
        mac = self._base.copy()
        mac.update(own)
        return self._prefix + binascii.b2a_base64(own + mac.digest(), newline=False)


def read_cursor(
    given: str | bytes,
    keys: Keyring,
    *,
    tenant: str,
    body: bytes,
    now: float,
    life: float,
) -> Cursor:
    """What an id says that a caller brought back with this request.

    `now` in Unix seconds; an answer that began more than `life` seconds before is too old. One of the future is taken:
    its gateway's clock went before ours, and only a gateway can have made it.

    :raises WeirError: CURSOR_INVALID: not ours, or of another tenant or request, which is not told apart; CURSOR_GONE:
        too old, or signed with a key that is not in use any more.
    """
    raw = _decoded(given)
    try:
        version, signer, created, flags, seed, max_tokens, digest = _FIXED.unpack_from(raw)
        if version != _VERSION:
            raise _invalid()
        choices = flags & _CHOICES
        width = 3 if flags & _LOGPROBS else 2
        place = _FIXED.size
        request_id, place = _read_id(raw, place)
        size = raw[place]
        name = raw[place + 1 : place + 1 + size]
        place += 1 + size
        place += -place % 3
        own = struct.Struct(f">{1 + width * choices}I")
        if not 1 <= choices <= 8 or len(raw) != place + own.size + _MAC:
            raise _invalid()
        numbers = own.unpack_from(raw, place)
    except (struct.error, IndexError, ValueError):
        raise _invalid() from None
    key = keys.key(signer)
    if key is None:
        raise _gone("it was signed with a key that is not in use any more")
    mac = _keyed(key, tenant, body, raw[:place])
    mac.update(raw[place:-_MAC])
    if not hmac.compare_digest(mac.digest(), raw[-_MAC:]):
        raise _invalid()
    if now - created > life:
        raise _gone(f"it is more than {life:g} s old")
    origin = Origin(
        request_id=request_id,
        created=created,
        model_version=name.decode(),
        seed=seed if flags & _SEEDED else None,
        max_tokens=max_tokens,
        choices=choices,
        logprobs=bool(flags & _LOGPROBS),
        digest=digest,
    )
    rows = [numbers[1 + width * each : 1 + width * (each + 1)] for each in range(choices)]
    positions = [Position(row[0] >> 1, row[1], row[2] if width == 3 else 0, bool(row[0] & 1)) for row in rows]
    return Cursor(origin=origin, tokens=numbers[0], positions=tuple(positions))


def _decoded(given: str | bytes) -> bytes:
    if len(given) > MAX_ID_CHARS:
        raise _invalid()
    try:
        return binascii.a2b_base64(given, strict_mode=True)
    except ValueError:
        raise _invalid() from None


def _fixed(origin: Origin, signer: bytes) -> bytes:
    if not 1 <= origin.choices <= 8:
        raise ValueError("1 to 8 choices")
    flags = origin.choices | (_SEEDED if origin.seed is not None else 0) | (_LOGPROBS if origin.logprobs else 0)
    created, most = max(0, origin.created), min(origin.max_tokens, _MOST)
    name = origin.model_version.encode()
    fixed = b"".join(
        (
            _FIXED.pack(_VERSION, signer, created, flags, origin.seed or 0, most, origin.digest),
            _written_id(origin.request_id),
            _short(name, 255),
        )
    )
    return fixed + bytes(-len(fixed) % 3)


def _short(content: bytes, most: int) -> bytes:
    if len(content) > most:
        raise ValueError(f"a name has more than {most} bytes")
    return bytes((len(content),)) + content


def _written_id(request_id: str) -> bytes:
    try:
        as_uuid = uuid.UUID(request_id)
    except ValueError:
        as_uuid = None
    if as_uuid is not None and str(as_uuid) == request_id:
        return bytes((_AS_UUID,)) + as_uuid.bytes
    return _short(request_id.encode("ascii"), _AS_UUID - 1)


def _read_id(raw: bytes, place: int) -> tuple[str, int]:
    size = raw[place]
    place += 1
    if size == _AS_UUID:
        return str(uuid.UUID(bytes=raw[place : place + 16])), place + 16
    return raw[place : place + size].decode("ascii"), place + size


def _keyed(key: bytes, tenant: str, body: bytes, fixed: bytes) -> Any:
    """What is signed, but for the event's own part."""
    name = tenant.encode()
    mac = hashlib.blake2b(key=key, digest_size=_MAC, person=b"weir-cursor")
    for part in (name, body, fixed):
        mac.update(len(part).to_bytes(4, "big"))
        mac.update(part)
    return mac


def _invalid() -> WeirError:
    return WeirError(Reason.CURSOR_INVALID, "Last-Event-ID: this id is not of this request", limit=_FIELD)


def _gone(why: str) -> WeirError:
    return WeirError(Reason.CURSOR_GONE, f"Last-Event-ID: {why}", limit=_FIELD)
