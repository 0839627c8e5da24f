"""An answer as the store of records keeps it for its idempotency key: what a face needs to give it again."""

from __future__ import annotations

from array import array

import msgspec
from msgspec.structs import asdict

from libs.cursor import Origin
from libs.quota.prices import Price
from services.gateway.embed import Embedded
from services.gateway.policy.events import Breakdown, ChoiceUpdate, End, Finish, Usage
from services.gateway.request import Accepted

_LEFT_OUT = ("limits", "replayed")


class _Accepted(msgspec.Struct, kw_only=True):
    request_id: str
    trace_id: str
    model_version: str
    arm: str
    prompt_tokens: int
    simulated: bool
    zone: str
    created: int
    degraded: tuple[str, ...]
    origin: Origin | None
    price: Price | None


class _End(msgspec.Struct, kw_only=True):
    finish: Finish
    usage: Usage
    breakdown: Breakdown
    earlier: Usage
    degraded: tuple[str, ...]
    choices: list[Finish]


class Kept(msgspec.Struct):
    """An answer that came to its end by itself."""

    accepted: _Accepted
    choices: list[ChoiceUpdate]
    end: _End
    policies: tuple[str, ...]
    """Of safety, under which it was given."""


class KeptVectors(msgspec.Struct):
    """An embedding."""

    accepted: _Accepted
    vectors: list[bytes]
    """Of float32, as workers send them."""
    policies: tuple[str, ...]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Kept).decode
_decode_vectors = msgspec.msgpack.Decoder(KeptVectors).decode


def pack(accepted: Accepted, choices: list[ChoiceUpdate], end: End, policies: tuple[str, ...]) -> bytes:
    """Its bytes."""
    ended = {name: value for name, value in asdict(end).items() if name != "error"}
    return _encode(Kept(_told(accepted), choices, _End(**ended), policies))


def unpack(kept: bytes) -> tuple[Accepted, list[ChoiceUpdate], End, tuple[str, ...]]:
    """What was packed.

    :raises ValueError: by another version of the gateway, in another form.
    """
    found = _decode(kept)
    accepted = Accepted(**asdict(found.accepted))
    return accepted, found.choices, End(**asdict(found.end)), found.policies


def pack_vectors(embedded: tuple[Embedded, tuple[str, ...]]) -> bytes:
    """Vectors and safety policies, as their bytes."""
    found, policies = embedded
    return _encode(KeptVectors(_told(found.accepted), [each.tobytes() for each in found.vectors], policies))


def unpack_vectors(kept: bytes) -> tuple[Embedded, tuple[str, ...]]:
    """See `unpack`."""
    found = _decode_vectors(kept)
    vectors = [array("f", each) for each in found.vectors]
    return Embedded(Accepted(**asdict(found.accepted)), vectors), found.policies


def _told(accepted: Accepted) -> _Accepted:
    return _Accepted(**{name: value for name, value in asdict(accepted).items() if name not in _LEFT_OUT})
