"""What predictions with an idempotency key are: when two are the same one, and how an answer is kept."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import msgspec
from inference import open_inference_pb2 as pb


class Answered(NamedTuple):
    """A prediction, what is told with it, and the request that it was made for."""

    response: pb.ModelInferResponse
    told: tuple[tuple[str, str], ...]
    request_id: str


_decode = msgspec.msgpack.Decoder(tuple[bytes, tuple[tuple[str, str], ...], str]).decode


def digest(request: pb.ModelInferRequest) -> bytes:
    """Of all but the id, which is another one each time that a client asks."""
    same = pb.ModelInferRequest()
    same.CopyFrom(request)
    same.id = ""
    return hashlib.blake2b(same.SerializeToString(deterministic=True), digest_size=16).digest()


def pack(answered: Answered) -> bytes:
    """Its bytes."""
    return msgspec.msgpack.encode((answered.response.SerializeToString(), answered.told, answered.request_id))


def unpack(kept: bytes) -> Answered:
    """What was packed.

    :raises ValueError: by another version of the predictor, in another form.
    """
    response, told, request_id = _decode(kept)
    return Answered(pb.ModelInferResponse.FromString(response), told, request_id)
