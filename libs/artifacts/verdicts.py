"""What engines would say of a folder (`services.worker.check`), in words, and what it means for a pool. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from libs.artifacts.progress import size_in_words

REAL = ("torch", "vllm", "tensorrt_llm")
"""Engines that read weights."""


def in_words(told: Mapping[str, Any]) -> list[str]:
    """A line for each verdict, and below it one for each reason."""
    lines = []
    for each in told["verdicts"]:
        sizes = [
            f"{size_in_words(each[name])} for {what}"
            for name, what in (("weight_bytes", "weights"), ("kv_bytes", "keys and values of one whole sequence"))
            if each[name]
        ]
        outcome = "cannot serve it" if each["reasons"] else "can serve it, as far as is known before it loads it"
        lines.append(f"{each['engine']}: {outcome}" + (f"; memory: {' and '.join(sizes)}" if sizes else ""))
        lines += [f"  {reason}" for reason in each["reasons"]]
        lines += [f"  ({note})" for note in each["notes"] if not each["reasons"]]
    return [*lines, *told["notes"]]


def against(told: Mapping[str, Any], engines: Collection[str]) -> Sequence[str]:
    """Why none of these engines can serve it; nothing where one can.

    :param engines: those of its pool; none: nobody knows, so any but the simulated one.
    """
    asked = [each for each in told["verdicts"] if each["engine"] in (engines or REAL)]
    if not asked or not all(each["reasons"] for each in asked):
        return ()
    return [f"{each['engine']}: {reason}" for each in asked for reason in each["reasons"]]
