"""A worker that preempts for memory: sequences hold the blocks of the tokens that they have, and when those run out the
least urgent one is computed anew later, as the simulated engine does it with `preemptive` (`SimulatedCore`; held to it
by tests/unit/simulation/test_sim_worker.py).

With `holds_shares` it keeps tenants within their share of the memory too, by the rule of
services/worker/engines/torch_engine/shares.py: among equals the sequences beyond a tenant's share are preempted first,
also for one that waits and whose tenant is within its own, and no more of such a tenant's join while that one waits.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Container
from typing import Any

from services.worker.engines.step_costs import StepCosts
from simulation.worker import DECODING, WAITING, Load, Output, Sequence, Sizes, Worker, decodes

_NOBODY: frozenset[Sequence] = frozenset()


class PreemptiveWorker(Worker):
    """See the module. A run of steps is at most a block's tokens long, so that reports do not lag far behind."""

    def __init__(
        self, name: str, costs: StepCosts, sizes: Sizes, *, zone: str = "", holds_shares: bool = False
    ) -> None:
        super().__init__(name, costs, sizes, zone=zone)
        self.preemptions = 0
        """Sequences preempted so far."""
        self._holds_shares = holds_shares

    def advance(self, now: float) -> Output:
        """See `Worker`."""
        for step in range(1, self._run):  # the first step's growth was taken when it began
            self._free_blocks -= self._growing(self._decode_steps + step)
        return super().advance(now)

    def load(self) -> Load:
        """See `Worker`; without the prompts of those that wait beyond their share, which nobody else waits for."""
        load = super().load()
        if self._holds_shares:
            held = self._held_by_tenant()
            for _, each in self._waiting:
                if each.live and self._beyond(each, held):
                    load.queued_prefill_tokens -= each.left
        return load

    def progress(self) -> list[tuple[Any, int]]:
        """Handles and output tokens of the sequences that decode."""
        return [(each.handle, each.produced(self._decode_steps)) for each in self._running() if each.state == DECODING]

    # ---- blocks --------------------------------------------------------------------------------------------------

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.sizes.block_size)

    def _held(self, sequence: Sequence, coming: int) -> int:
        if sequence.state != DECODING:
            return self._blocks_for(sequence.prompt + sequence.had + 1)
        return self._blocks_for(sequence.prompt + sequence.produced(self._decode_steps) + coming)

    def _running(self) -> list[Sequence]:
        return [*(each for ends, _, each in self._ending if decodes(each, ends)), *self._prefilling]

    def _growing(self, step: int) -> int:
        """Decoding sequences that need one more block for the token of a decode step."""
        size = self.sizes.block_size
        return sum(
            not (each.prompt + each.had + step - each.produced_from) % size
            for ends, _, each in self._ending
            if decodes(each, ends)
        )

    def _steps_ahead(self) -> int:
        most, free = min(super()._steps_ahead(), self.sizes.block_size), self._free_blocks
        for step in range(1, most):
            free -= self._growing(self._decode_steps + step)
            if free < 0:
                return step
        return most

    # ---- who runs ------------------------------------------------------------------------------------------------

    def _take_in(self) -> None:
        while (growing := self._growing(self._decode_steps)) > self._free_blocks:
            running = self._running()
            excess = self._excess(running)
            self._preempt(max(running, key=lambda each: _yielding(each, excess)))
        self._free_blocks -= growing
        aside: list[Sequence] = []
        while (first := self._first_waiting()) is not None:
            heapq.heappop(self._waiting)  # what gives way to it may wait before it then
            if self._kept_out(first, aside):
                aside.append(first)
                continue
            need = self._blocks_for(first.prompt + first.had + 1)
            if not self._fits(need) and not self._yield_to(first, need):
                aside.append(first)
                break
            self._free_blocks -= need
            self._join(first)
        for each in aside:
            heapq.heappush(self._waiting, (each.order, each))

    def _may_join(self) -> bool:
        """It is looked at with the next step."""
        return self._first_waiting() is not None

    def _fits(self, need: int) -> bool:
        running = self._decoding + len(self._prefilling)
        return running < self.sizes.max_running and need + running <= self._free_blocks

    def _yield_to(self, first: Sequence, need: int) -> bool:
        """Preempts what must give way to the first that waits, if that makes room for it."""
        running = self._running()
        excess = self._excess(running, first, need)
        own = first.order[0], False
        lower = [each for each in running if _yielding(each, excess)[:2] > own]
        freed = sum(self._now_held(each) for each in lower)
        if not lower or self._free_blocks + freed < need + len(running) - len(lower):
            return False
        for each in sorted(lower, key=lambda each: _yielding(each, excess), reverse=True):
            self._preempt(each, grown=True)
            if self._fits(need):
                return True
        return False

    def _now_held(self, sequence: Sequence) -> int:
        """As `_held`, once this step's growth was taken."""
        return self._held(sequence, 1)

    def _preempt(self, sequence: Sequence, *, grown: bool = False) -> None:
        self.preemptions += 1
        self._free_blocks += self._held(sequence, int(grown))
        if sequence.state == DECODING:
            self._decoding -= 1
            sequence.had = sequence.produced(self._decode_steps)
            self._context -= sequence.prompt + sequence.had
        else:
            self._prefilling.remove(sequence)
        self._queued_prefill += sequence.prompt + sequence.had - sequence.left
        sequence.left = sequence.prompt + sequence.had
        sequence.state = WAITING
        heapq.heappush(self._waiting, (sequence.order, sequence))
        self._n_waiting += 1

    # ---- shares --------------------------------------------------------------------------------------------------

    def _excess(self, running: list[Sequence], waiting: Sequence | None = None, need: int = 0) -> Container[Sequence]:
        """The running sequences without which every tenant is within its share; none for one whose tenant is not."""
        if not self._holds_shares:
            return _NOBODY
        of: defaultdict[str, list[Sequence]] = defaultdict(list)
        for each in running:
            of[each.tenant].append(each)
        if waiting is not None and self._sum(of[waiting.tenant]) + need > self._bound(waiting):
            return _NOBODY
        found: set[Sequence] = set()
        for sequences in of.values():
            sequences.sort(key=lambda each: each.order)
            over = self._sum(sequences) - (self._bound(sequences[-1]) if sequences else 0)
            for each in sequences[:0:-1]:
                if over <= 0:
                    break
                found.add(each)
                over -= self._now_held(each)
        return found

    def _kept_out(self, sequence: Sequence, aside: list[Sequence]) -> bool:
        """Whether its tenant would be beyond its share while another, which is not, waits."""
        if not self._holds_shares or not sequence.share:
            return False
        held = self._held_by_tenant()
        if not self._beyond(sequence, held):
            return False
        kept = {each.tenant for each in aside} | {sequence.tenant}
        return any(
            each.live
            and each.tenant not in kept
            and each.order[0] <= sequence.order[0]
            and held[each.tenant] < self._bound(each)
            for _, each in self._waiting
        )

    def _held_by_tenant(self) -> Counter[str]:
        held: Counter[str] = Counter()
        for each in self._running():
            held[each.tenant] += self._now_held(each)
        return held

    def _beyond(self, sequence: Sequence, held: Counter[str]) -> bool:
        """Whether its tenant would be beyond its share with it."""
        need = self._blocks_for(sequence.prompt + sequence.had + 1)
        return held[sequence.tenant] > 0 and held[sequence.tenant] + need > self._bound(sequence)

    def _sum(self, sequences: list[Sequence]) -> int:
        return sum(map(self._now_held, sequences))

    def _bound(self, sequence: Sequence) -> float:
        return (sequence.share or 1.0) * self.sizes.total_blocks


def _yielding(sequence: Sequence, excess: Container[Sequence]) -> tuple[int, bool, int]:
    """The largest is preempted first."""
    return sequence.order[0], sequence in excess, sequence.order[1]
