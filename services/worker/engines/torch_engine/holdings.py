"""What each sequence holds in blocks: how much it needs, where it gets it from, what becomes of it. Pure.

Between the scheduler, which decides who gets memory, and the block manager, which knows no sequences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from services.worker.engines.torch_engine.blocks import BlockManager
from services.worker.engines.torch_engine.prefix import PrefixNames
from services.worker.engines.torch_engine.sequences import LiveSequence, State


@dataclass(slots=True)
class PrefixCounters:
    """Prompt tokens looked up in the prefix cache and found there, since the start."""

    queried: int = 0
    hit: int = 0


class Holdings:
    """Moves sequences' blocks in and out of the pool. With `caching` off prefixes are neither kept nor looked up."""

    def __init__(self, *, pool: BlockManager, names: Mapping[str, PrefixNames], block_size: int, caching: bool) -> None:
        self.counters = PrefixCounters()
        self._pool = pool
        self._names = names
        self._size = block_size
        self._caching = caching

    # ---- questions ------------------------------------------------------------------------------------------------

    @property
    def free(self) -> int:
        """Blocks that can be given."""
        return self._pool.free

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-tokens // self._size)

    def cost(self, sequence: LiveSequence) -> int:
        """Free blocks that joining takes."""
        return self.spare(sequence, ())[1]

    def spare(self, sequence: LiveSequence, leaving: Collection[LiveSequence]) -> tuple[int, int]:
        """The blocks that are free once the running ones that are `leaving` have left, and those that joining takes
        then. A block that others hold as well does not become free, and one that `sequence` finds there costs it one.
        Its leader stays."""
        held = Counter(block for each in leaving for block in each.blocks)
        left = {block for block, count in held.items() if count == self._pool.users(block)}
        free, needed = self._pool.free + len(left), self.blocks_for(len(sequence.tokens)) - sequence.slid
        if sequence.state is State.SWAPPED:
            return free, needed
        if self._fork_of(sequence) is not None:
            return free, 1  # the copy of the block that both would write
        found, cost = self._pool.probe(self._usable(sequence), left)
        return free, needed - found + cost

    def lacks(self, sequence: LiveSequence) -> int:
        """Blocks a running sequence needs to compute its next token: for more room, or for its own copy of a shared
        one."""
        blocks, index = sequence.blocks, sequence.computed // self._size - sequence.slid
        return 1 if index >= len(blocks) else int(self._pool.users(blocks[index]) > 1)

    def growth(self, sequence: LiveSequence, most: int) -> int:
        """Blocks, up to `most`, that it may still come to need: no more than its longest output does."""
        longest = self.blocks_for(len(sequence.request.prompt) + sequence.limit)
        return min(most, longest - self.blocks_for(len(sequence.tokens)))

    # ---- commands -------------------------------------------------------------------------------------------------

    def take(self, sequence: LiveSequence) -> int | None:
        """Give a sequence that joins its blocks: its own back if they are undamaged, a share of its leader's, or what
        the cache has and new ones for the rest. Returns how many of its tokens are computed now; None, and it holds
        nothing, when damage has made it cost more than there is."""
        blocks = self._pool.swap_in(sequence.places) if sequence.state is State.SWAPPED else None
        sequence.places = []
        computed: int | None
        if blocks is not None:
            sequence.blocks, sequence.sealed = blocks, sequence.slid
            computed = sequence.computed
        else:
            sequence.slid = 0
            computed = self._fork(sequence) or self._find(sequence)
            if computed is None:
                return None
            sequence.sealed = computed // self._size
        if sequence.cached is None:
            sequence.cached = computed
            self.counters.queried += len(sequence.request.prompt)
            self.counters.hit += computed
        sequence.version += 1
        return computed

    def claim(self, sequence: LiveSequence, start: int, end: int) -> None:
        """Make sure that the tokens `start` … `end-1` have blocks that this sequence alone writes.

        :raises MemoryError: too few blocks are free; see `lacks`.
        """
        blocks, first = sequence.blocks, start // self._size - sequence.slid
        if first < len(blocks) and self._pool.users(blocks[first]) > 1:
            blocks[first] = self._pool.writable(blocks[first])
            sequence.version += 1
        missing = self.blocks_for(end) - sequence.slid - len(blocks)
        if missing > 0:
            blocks += self._pool.allocate(missing)
            sequence.version += 1

    def seal(self, sequence: LiveSequence) -> None:
        """Tell the cache of blocks that are now full."""
        full = sequence.computed // self._size
        if not self._caching or full <= sequence.sealed:
            return
        self._name(sequence, full)
        salt = sequence.request.cache_salt
        for index in range(sequence.sealed, full):
            owner = b"" if index < sequence.public else salt
            self._pool.seal(sequence.blocks[index - sequence.slid], sequence.chain[index], owner)
        sequence.sealed = full

    def slide(self, sequence: LiveSequence) -> None:
        """Give back the blocks that no layer will see again."""
        gone = self._gone(sequence, sequence.computed)
        if gone <= sequence.slid:
            return
        self._pool.release(sequence.blocks[: gone - sequence.slid])
        del sequence.blocks[: gone - sequence.slid]
        sequence.slid = gone
        sequence.version += 1

    def release(self, sequence: LiveSequence) -> None:
        """Give everything back."""
        self._pool.release(sequence.blocks)
        self._pool.drop(sequence.places)
        sequence.blocks, sequence.places, sequence.slid = [], [], 0

    def purge(self, names: PrefixNames) -> None:
        """Drop what the cache has of these names: nobody will ask for it again."""
        self._pool.purge(names.tag)

    def swap_out(self, sequence: LiveSequence) -> bool:
        """Move its blocks to lower tiers; False, and no change, if those lack room."""
        places = self._pool.swap_out(sequence.blocks)
        if places is None:
            return False
        sequence.blocks, sequence.places = [], places
        return True

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _fork(self, sequence: LiveSequence) -> int:
        leader = self._fork_of(sequence)
        if leader is None:
            return 0
        prompt = len(sequence.request.prompt)
        sequence.blocks = self._pool.share(leader.blocks[: self.blocks_for(prompt) - leader.slid])
        sequence.slid = leader.slid
        return prompt - 1  # the last token's logits are wanted once more, for this sequence's own first token

    def _find(self, sequence: LiveSequence) -> int | None:
        usable = self._usable(sequence)
        found = self._pool.acquire(usable, sequence.request.cache_salt, public=sequence.public)
        # The whole prompt's memory at once: a prompt under way is never short of it.
        missing = self.blocks_for(len(sequence.tokens)) - len(found)
        if missing > self._pool.free:
            # A block was damaged, or pushed out as others were brought up: less was found than `cost` counted on.
            self._pool.release(found)
            return None
        sequence.blocks = found + self._pool.allocate(missing)
        return len(found) * self._size

    def _usable(self, sequence: LiveSequence) -> list[bytes]:
        """Names of the blocks that may come from the cache; at least one token is left to compute."""
        if not self._caching:
            return []
        blocks = (len(sequence.tokens) - 1) // self._size
        self._name(sequence, blocks)
        return sequence.chain[:blocks]

    def _name(self, sequence: LiveSequence, blocks: int) -> None:
        names, request = self._names[sequence.request.model], sequence.request
        if not sequence.chain:
            sequence.public = names.public_blocks(request.prompt)
        names.extend(sequence.chain, sequence.tokens, blocks=blocks, public=sequence.public, salt=request.cache_salt)

    def _fork_of(self, sequence: LiveSequence) -> LiveSequence | None:
        """The running sequence whose prompt it can share, down to the last token."""
        leader, prompt = sequence.leader, len(sequence.request.prompt)
        if leader is None or leader.state is not State.RUNNING or leader.pending_prompt or sequence.produced:
            return None
        if leader.slid > self._gone(sequence, prompt):
            return None
        return leader if prompt > 1 else None

    def _gone(self, sequence: LiveSequence, computed: int) -> int:
        """How many of its first blocks neither the next token sees nor the last one again, once so many are computed:
        from that one another choice may fork."""
        return max(0, computed - sequence.window) // self._size if sequence.window else 0
