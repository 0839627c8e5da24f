"""What a predictor and a model's process say to each other: one MessagePack message per packet of a socket pair."""

from __future__ import annotations

import msgspec

from libs.versions.manifest import ManifestFile
from services.predictor.executors.shared import Placed
from services.predictor.port import Signature

PACKET = 1 << 17
"""Bytes at most; the kernel's default room for a socket's packets is 200 KiB. Tensors are not in it."""


class Load(msgspec.Struct, array_like=True, tag="load"):
    """The first one. `folder` and `listed`: as of `Files`; `prepare`: pickled; `spec`: a serialized PredictionSpec."""

    folder: str
    listed: dict[str, ManifestFile] | None
    spec: bytes
    prepare: bytes


class Run(msgspec.Struct, array_like=True, tag="run"):
    """A batch, whose inputs are in the predictor's arena. `outputs`: None is all."""

    inputs: list[Placed]
    outputs: list[str] | None


class Loaded(msgspec.Struct, array_like=True, tag="loaded"):
    """The model is ready.

    :ivar stall: seconds for which loading it, libraries apart, held the interpreter's lock at a time.
    :ivar rss: resident bytes.
    """

    signature: Signature
    native: bool
    samples: list[tuple[int, float]]
    stall: float
    rss: int


class Given(msgspec.Struct, array_like=True, tag="given"):
    """A batch's outputs, in the model's arena."""

    outputs: list[Placed]
    seconds: float
    rss: int


class Refused(msgspec.Struct, array_like=True, tag="refused"):
    """A `LoadError`, a `ModelError`, or the name of what else was raised, without its words."""

    kind: str
    message: str = ""
    tensor: str = ""


Said = Loaded | Given | Refused
"""All that a process says."""

encode = msgspec.msgpack.Encoder().encode
decode_asked = msgspec.msgpack.Decoder(Load | Run).decode
decode_said = msgspec.msgpack.Decoder(Said).decode
