"""Names for blocks of tokens: hash chains, salted per tenant. Pure.

The digest of a block covers what computes it, every token before it and its own, so equal digests mean equal keys and
values. What computes it is told by content, not by name: a version that is deleted and made anew with other weights has
other blocks. Every digest begins with its model's tag, by which all blocks of a model that leaves are found.
A tenant's salt enters the chain at its first private block: two tenants share nothing but the leading whole blocks of
prefixes that the operator has declared public (R-TEN-3), and nobody can tell from a hit what another tenant has sent.
BLAKE2b with 128 bits: nobody can construct two prompts with one digest.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence

_TAG_BYTES = 8


class PrefixNames:
    """Digests of one model's token blocks."""

    def __init__(self, content: str, block_size: int, public: Iterable[Sequence[int]] = ()) -> None:
        """`content` tells whatever makes keys and values differ: the digest of the weights, the adapter, number types.
        `public` are prompt beginnings, as token ids, that all tenants may share."""
        self._root = hashlib.blake2b(f"{block_size} {content}".encode(), digest_size=16).digest()
        self.tag = self._root[:_TAG_BYTES]
        """What every digest of these begins with."""
        self._block_size = block_size
        self._public = [list(prefix) for prefix in public]

    def public_blocks(self, prompt: Sequence[int]) -> int:
        """How many leading whole blocks of a prompt lie within a declared public prefix."""
        longest = 0
        for prefix in self._public:
            shared = next(
                (index for index, (ours, theirs) in enumerate(zip(prefix, prompt, strict=False)) if ours != theirs),
                min(len(prefix), len(prompt)),
            )
            longest = max(longest, shared)
        return longest // self._block_size

    def extend(self, chain: list[bytes], tokens: Sequence[int], *, blocks: int, public: int, salt: bytes) -> None:
        """Append digests to `chain` until it names the first `blocks` whole blocks of `tokens`. The first `public` of
        them are unsalted."""
        size = self._block_size
        for index in range(len(chain), blocks):
            digest = hashlib.blake2b(chain[-1] if chain else self._root, digest_size=16)
            if index >= public:
                digest.update(salt)
            digest.update(array("I", tokens[index * size : (index + 1) * size]).tobytes())
            chain.append(self.tag + digest.digest())
