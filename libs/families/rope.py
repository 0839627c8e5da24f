"""The rotary embedding of a checkpoint: what config.json says, as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from libs.versions.errors import LoadError

ROPE_KINDS = ("default", "dynamic", "linear", "llama3")
"""Those that are known, in the words of config.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary embedding. `kind` is "default", "linear" (positions divided by `factor`) or "llama3", which divides only
    the slow frequencies and blends between; the last three fields are its parameters.

    A checkpoint's "dynamic" is read as "default": it changes frequencies only past max_position_embeddings, where this
    engine's context ends."""

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 0


def read_rope(raw: Mapping[str, Any], context: int) -> RopeConfig:
    """The rotary embedding of a config.json whose context is `context`.

    :raises LoadError: it is of a kind that is not known, or differs between layers.
    :raises KeyError: one of its parameters is missing.
    """
    # transformers 5 writes everything into rope_parameters; earlier versions into rope_theta and rope_scaling.
    scaling = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if any(isinstance(value, Mapping) for value in scaling.values()):
        raise LoadError("rotary embeddings that differ between layers are not supported")
    if float(scaling.get("partial_rotary_factor") or raw.get("partial_rotary_factor") or 1.0) != 1.0:
        raise LoadError("rotary embedding of a part of each head is not supported")
    theta = float(scaling.get("rope_theta") or raw.get("rope_theta") or 10000.0)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind not in ROPE_KINDS:
        raise LoadError(f"rotary embedding of type {kind} is not supported")
    if kind in ("default", "dynamic"):
        return RopeConfig(theta=theta)
    if kind == "linear":
        return RopeConfig(theta=theta, kind=kind, factor=float(scaling["factor"]))
    return RopeConfig(
        theta=theta,
        kind=kind,
        factor=float(scaling["factor"]),
        low_freq_factor=float(scaling["low_freq_factor"]),
        high_freq_factor=float(scaling["high_freq_factor"]),
        original_context=_original(raw, scaling, context),
    )


def _original(raw: Mapping[str, Any], scaling: Mapping[str, Any], context: int) -> int:
    """The context before it was stretched. transformers prefers the field beside rope_parameters."""
    name = "original_max_position_embeddings"
    return int(raw.get(name) or scaling.get(name) or context)
