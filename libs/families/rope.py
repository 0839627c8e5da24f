"""The rotary embedding of a checkpoint: what config.json says, as numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from libs.families.family import Family
from libs.versions.errors import LoadError

ROPE_KINDS = ("default", "dynamic", "linear", "llama3", "yarn", "longrope")
"""Those that are known, in the words of config.json."""

_ORIGINAL = "original_max_position_embeddings"


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary embedding. `kind` is "default"; "linear": positions divided by `factor`; "llama3": only slow frequencies
    are, and there is a blend between; "yarn": the same with other bounds; or "longrope": each frequency is divided by
    its own of `factors`.

    A checkpoint's "dynamic" is read as "default": it changes frequencies only past max_position_embeddings, where this
    engine's context ends. Of longrope's two sets of factors the context decides, as in vLLM: the long ones where it is
    beyond the original context. transformers takes the short ones up to there even so, and computes all keys anew when
    a sequence grows beyond it."""

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 0
    share: float = 1.0
    """How much of each head is turned, from its beginning on."""
    magnitude: float = 1.0
    """Cosines and sines are multiplied by it."""
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    """Of yarn: how many turns in the original context bound the blend, and whether the bounds are whole numbers."""
    factors: tuple[float, ...] = ()

    def turned(self, head_width: int) -> int:
        """How many numbers of a head are turned."""
        return int(head_width * self.share)


def read_ropes(family: Family, raw: Mapping[str, Any], context: int) -> tuple[RopeConfig, RopeConfig]:
    """The rotary embeddings of a config.json, whose context is `context`: of layers that see all, and of those with a
    window, which are the same in most families.

    :raises LoadError: one is of a kind that is not known, or differs between layers in a family where it does not.
    :raises KeyError: one of its parameters is missing.
    """
    # transformers 5 writes everything into rope_parameters; earlier versions into rope_theta and rope_scaling.
    scaling = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if family.local_rope:
        whole = scaling.get("full_attention", scaling) or {}
        local = {"rope_theta": raw["rope_local_base_freq"]} | (scaling.get("sliding_attention") or {})
        return _read(family, raw, whole, context), _read(family, raw, local, context)
    if any(isinstance(value, Mapping) for value in scaling.values()):
        raise LoadError("rotary embeddings that differ between layers are not supported")
    rope = _read(family, raw, scaling, context)
    return rope, rope


def _read(family: Family, raw: Mapping[str, Any], scaling: Mapping[str, Any], context: int) -> RopeConfig:
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    kind = family.rope_names.get(kind, kind)
    if kind not in ROPE_KINDS:
        raise LoadError(f"rotary embedding of type {kind} is not supported")
    share = float(scaling.get("partial_rotary_factor") or raw.get("partial_rotary_factor") or 1.0)
    if share != 1.0 and not family.partial_rotary:
        raise LoadError("rotary embedding of a part of each head is not supported")
    plain = RopeConfig(theta=float(scaling.get("rope_theta") or raw.get("rope_theta") or 10000.0), share=share)
    # transformers prefers the field beside rope_parameters where both are given.
    original = int(raw.get(_ORIGINAL) or scaling.get(_ORIGINAL) or context)
    if kind == "linear":
        return replace(plain, kind=kind, factor=float(scaling["factor"]))
    if kind == "llama3":
        factor, low, high = (float(scaling[name]) for name in ("factor", "low_freq_factor", "high_freq_factor"))
        return replace(
            plain, kind=kind, factor=factor, low_freq_factor=low, high_freq_factor=high, original_context=original
        )
    factor = float(scaling.get("factor") or context / original)
    magnitude = scaling.get("attention_factor")
    if kind == "yarn":
        return replace(
            plain,
            kind=kind,
            factor=factor,
            original_context=original,
            magnitude=_yarn_magnitude(factor, scaling) if magnitude is None else float(magnitude),
            beta_fast=float(scaling.get("beta_fast") or 32.0),
            beta_slow=float(scaling.get("beta_slow") or 1.0),
            truncate=bool(scaling.get("truncate", True)),
        )
    if kind == "longrope":
        if magnitude is None:
            magnitude = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
        factors = scaling["long_factor" if context > original else "short_factor"]
        return replace(plain, kind=kind, magnitude=float(magnitude), factors=tuple(float(each) for each in factors))
    return plain


def _yarn_magnitude(factor: float, scaling: Mapping[str, Any]) -> float:
    def of(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    one, all_dimensions = scaling.get("mscale"), scaling.get("mscale_all_dim")
    return of(float(one)) / of(float(all_dimensions)) if one and all_dimensions else of(1.0)
