"""An answer as the store of records keeps it for its idempotency key: what a face needs to give it again."""

from __future__ import annotations

import msgspec
from msgspec.structs import asdict

from libs.cursor import Origin
from libs.quota.prices import Price
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


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Kept).decode


def pack(accepted: Accepted, choices: list[ChoiceUpdate], end: End, policies: tuple[str, ...]) -> bytes:
    """Its bytes."""
    told = {name: value for name, value in asdict(accepted).items() if name not in _LEFT_OUT}
    ended = {name: value for name, value in asdict(end).items() if name != "error"}
    return _encode(Kept(_Accepted(**told), choices, _End(**ended), policies))


def unpack(kept: bytes) -> tuple[Accepted, list[ChoiceUpdate], End, tuple[str, ...]]:
    """What was packed.

    :raises ValueError: by another version of the gateway, in another form.
    """
    found = _decode(kept)
    accepted = Accepted(**asdict(found.accepted))
    return accepted, found.choices, End(**asdict(found.end)), found.policies
