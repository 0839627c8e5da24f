"""Which workers have a prompt's beginning in their prefix cache, as far as grants tell.

A request brings chained hashes of its prompt's blocks: equal hashes, equal prefixes, and equal tenants, whose salt is
in them. What is granted to a worker is remembered for it, least recently granted first out, and never more than its KV
blocks could hold. That is a guess: the worker may have dropped a prefix, or cache none. So each worker's guesses are
compared with what it really found, and count by how often they were right (`trust`).

All workers share one index, hash → set of workers as the bits of an integer, so that the longest match on every worker
costs one look-up and one AND per block of the prompt (about 3 µs for 16 blocks on 64 workers).
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

from services.admission.policy.model import Request, WorkerSpec

_LEARNING = 0.2  # weight of the newest observation
_SALTS = 4096  # salts kept at most
BEGINNINGS = 4096
"""Kinds of prompts that are told apart where no worker is known to have any of one."""

Depths = list[tuple[int, int]]
"""Workers, as bits, and how many blocks of a prompt they had and no more."""


class _Memory:
    __slots__ = ("bit", "hashes", "trust")

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self.hashes: OrderedDict[int, None] = OrderedDict()  # least recently granted first
        self.trust = 1.0


class Affinity:
    """The memory of one pool's grants."""

    def __init__(self, most: int) -> None:
        """`most` hashes are remembered per worker."""
        self._most = most
        self._memories: dict[str, _Memory] = {}
        self._names: dict[int, str] = {}  # bit → worker
        self._holders: dict[int, int] = {}  # hash → bits of the workers
        self._salts: dict[tuple[str, int], int] = {}

    def depths(self, request: Request) -> Depths:
        """Who had how much of the prompt, the longest part first."""
        if not request.prefix_hashes or not self._holders:
            return []
        salt, holders = self._salt(request), self._holders
        found: Depths = []
        alive = holders.get(request.prefix_hashes[0] ^ salt, 0)
        depth = 0
        for value in request.prefix_hashes:
            still = alive & holders.get(value ^ salt, 0)
            if still != alive:
                if depth:
                    found.append((alive & ~still, depth))
                alive = still
            if not alive:
                break
            depth += 1
        if alive:
            found.append((alive, depth))
        found.reverse()
        return found

    def matches(
        self, request: Request, depths: Depths | None = None, among: Iterable[str] | None = None
    ) -> dict[str, float]:
        """By worker (`among` these, or all), how many of the prompt's tokens it can be hoped to have; workers without
        any are left out. `depths`: as told before."""
        depths = self.depths(request) if depths is None else depths
        if not depths:
            return {}
        mask = -1
        if among is not None:
            mask = 0
            for name in among:
                memory = self._memories.get(name)
                mask |= memory.bit if memory is not None else 0
        found: dict[str, float] = {}
        for bits, depth in depths:
            tokens = _tokens(request, depth)
            for name in self._named(bits & mask):
                found[name] = tokens * self._memories[name].trust
        return found

    def holders(self, request: Request, depths: Depths, most: int) -> list[str]:
        """Up to so many workers with the longest parts of the prompt; of many that are equal, others for another
        prompt."""
        found: list[str] = []
        for bits, _ in depths:
            turn = request.prefix_hashes[-1] % bits.bit_length()
            late = bits >> turn << turn
            for part in (late, bits ^ late):
                for name in self._named(part):
                    if len(found) >= most:
                        return found
                    found.append(name)
        return found

    def granted(self, request: Request, spec: WorkerSpec) -> int:
        """The worker got the request and has its prefix from now on; returns the tokens that it had before."""
        if not request.prefix_hashes or not self._most or request.prefix_block < 1:
            return 0
        memory = self._memory(spec.worker)
        salt, hashes, holders, bit = self._salt(request), memory.hashes, self._holders, memory.bit
        depth = 0
        for value in request.prefix_hashes:
            if value ^ salt not in hashes:
                break
            depth += 1
        # Backwards, so that a prefix's end is forgotten before its beginning.
        for value in reversed(request.prefix_hashes):
            key = value ^ salt
            if key in hashes:
                hashes.move_to_end(key)
            else:
                hashes[key] = None
                holders[key] = holders.get(key, 0) | bit
        most = min(self._most, spec.total_blocks * spec.block_size // request.prefix_block)
        while len(hashes) > most:
            self._drop(hashes.popitem(last=False)[0], bit)
        return _tokens(request, depth)

    def observed(self, worker: str, expected: int, found: int) -> None:
        """Of `expected` tokens the worker's cache really had `found`."""
        memory = self._memories.get(worker)
        if memory is not None and expected > 0:
            memory.trust += _LEARNING * (min(1.0, found / expected) - memory.trust)

    def trust(self, worker: str) -> float:
        """How much of what is hoped of the worker has come true, 0 to 1."""
        memory = self._memories.get(worker)
        return memory.trust if memory is not None else 1.0

    def forget(self, worker: str) -> None:
        """The worker is gone, and its cache with it."""
        memory = self._memories.pop(worker, None)
        if memory is not None:
            del self._names[memory.bit]
            for key in memory.hashes:
                self._drop(key, memory.bit)

    def __len__(self) -> int:
        """Hashes remembered in all."""
        return sum(len(memory.hashes) for memory in self._memories.values())

    def _named(self, bits: int) -> Iterator[str]:
        while bits:
            bit = bits & -bits
            bits ^= bit
            yield self._names[bit]

    def _memory(self, worker: str) -> _Memory:
        memory = self._memories.get(worker)
        if memory is None:
            bit = 1
            while bit in self._names:
                bit <<= 1
            memory = self._memories[worker] = _Memory(bit)
            self._names[bit] = worker
        return memory

    def _drop(self, key: int, bit: int) -> None:
        left = self._holders[key] & ~bit
        if left:
            self._holders[key] = left
        else:
            del self._holders[key]

    def _salt(self, request: Request) -> int:
        """Other models and other block sizes have other keys and values for the same tokens."""
        kind = request.model_version, request.prefix_block
        salt = self._salts.get(kind)
        if salt is None:
            if len(self._salts) >= _SALTS:
                self._salts.clear()
            text = f"{request.model_version}\n{request.prefix_block}"
            salt = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
            self._salts[kind] = salt
        return salt


def beginning(prefix_hashes: Sequence[int]) -> int:
    """One of `BEGINNINGS` numbers for how a prompt begins, so that what ranks first for it can be remembered."""
    return _mixed(prefix_hashes[0]) % BEGINNINGS


def rank(number: int, mark: int) -> int:
    """A worker's rank for prompts with this beginning: the highest wins, and a worker that comes or goes changes
    nothing between the others (rendezvous hashing, Thaler and Ravishankar 1998)."""
    return _mixed(number ^ mark)


def _mixed(value: int) -> int:
    mixed = value * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
    mixed = (mixed ^ mixed >> 32) * 0xD6E8FEB86659FD93 & 0xFFFFFFFFFFFFFFFF
    return mixed ^ mixed >> 32


def _tokens(request: Request, depth: int) -> int:
    """A prompt's last token is always computed."""
    return min(depth * request.prefix_block, request.prompt_tokens - 1)
