"""Names for a prompt's beginnings, so that admission can send equal beginnings to the worker that has them cached."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

BLOCK = 64
"""Tokens per block."""
MOST = 64
"""Blocks that get a name; longer prompts are told apart well enough by then."""
_BYTES = BLOCK * 4


def prefix_hashes(tenant: str, model_version: str, prompt: Sequence[int]) -> list[int]:
    """One 64-bit hash per whole block, each over everything up to that block's end.

    Salted with tenant and version: nobody can tell from them what another tenant asks, and no two versions share
    entries. One pass of BLAKE2b: its digest may be read at each block on the way.
    """
    blocks = min(len(prompt) // BLOCK, MOST)
    if not blocks:
        return []
    hasher = blake2b(f"{tenant}\0{model_version}\0".encode(), digest_size=8)
    data = memoryview(array("I", prompt[: blocks * BLOCK])).cast("B")
    found = []
    for start in range(0, blocks * _BYTES, _BYTES):
        hasher.update(data[start : start + _BYTES])
        found.append(int.from_bytes(hasher.digest(), "little"))
    return found
