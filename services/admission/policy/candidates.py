"""Which few workers are worth looking at for a request, of hundreds.

Workers of one version and zone form a *group*. A group of up to `FEW` is looked at whole. A larger one keeps those of
its workers that have room sorted by their free blocks: whatever changes a worker (a grant, a release, a report, time)
only marks it, and the next question sorts in those that were marked. So a change costs O(log n), and "is there any
room?" nothing.

Of those with blocks enough, when they are more than `FEW`, a request is shown

- those that rank first for its prompt's beginning by rendezvous, where prompts that begin alike meet,
- those that were granted the longest part of its prompt before, as far as they have room,
- some that its id falls on: by the power of several choices (Mitzenmacher 2001) the best of a few is nearly as good
  as the best of all, and not the one on which everybody falls at once.

Zones are looked at in the request's order, the next one only where the best so far is well used. Only when none of the
few fits, all that have blocks enough are looked at. So a request that fits anywhere is granted, as if all were seen.
"""

from __future__ import annotations

import functools
import heapq
import math
import zlib
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from services.admission.policy.affinity import Affinity, Depths, beginning, rank
from services.admission.policy.limits import Limits
from services.admission.policy.model import Request

if TYPE_CHECKING:
    from services.admission.policy.worker import Worker

FEW = 32
"""Workers that are looked at one by one."""
_SHOWN = 8  # of those on which an id falls; with a prefix …
_EACH = 3  # … of each kind
_STRIDE = 0x9E3779B1  # between those that an id falls on; prime

_Choose = Callable[["list[Worker]", dict[str, float]], "Worker | None"]
_Entry = tuple[int, str, "Worker"]
"""Free blocks, id (unique, so that workers themselves are never compared), worker."""


class _Group:
    """Workers that are alike for placement; there are none that come or go."""

    def __init__(self, workers: list[Worker], limits: Limits) -> None:
        self.workers = workers
        self._longest_wait = limits.max_prefill_wait
        self._large = len(workers) > FEW
        self._free: list[_Entry] = []  # those with room, sorted
        self._entries: dict[str, _Entry] = {}  # the same, by id
        self._marked: dict[str, Worker] = {}
        self._grows: dict[str, float] = {}  # when there may be more room without a mark
        self._later: list[tuple[float, str, Worker]] = []  # likewise, a heap; counts where it is what `_grows` says
        self._first: dict[int, list[str]] = {}  # by a prompt's beginning, those that rank first
        if self._large:
            self._marked = {worker.spec.worker: worker for worker in workers}
            for worker in workers:
                worker.marked_in.append(self._marked)

    def has_room(self, now: float) -> bool:
        """Could any of them take anything?"""
        if not self._large:
            return any(self._open(worker, now) for worker in self.workers)
        self._sort_in(now)
        return bool(self._free)

    def roomy(self, blocks: int, now: float) -> list[Worker]:
        """All that may have so many free blocks, those with the fewest first."""
        if not self._large:
            return self.workers
        self._sort_in(now)
        return [entry[2] for entry in self._free[self._from(blocks) :]]

    def shown(self, request: Request, blocks: int, holders: Callable[[int], Iterable[str]], now: float) -> list[Worker]:
        """Those worth looking at; `holders` names that many workers with a part of its prompt."""
        if not self._large:
            return self.workers
        self._sort_in(now)
        free, start = self._free, self._from(blocks)
        count = len(free) - start
        if count <= FEW:
            return [entry[2] for entry in free[start:]]
        at = zlib.crc32(request.request_id.encode())
        each = _EACH if request.prefix_hashes else _SHOWN
        found = [free[start + (at + step * _STRIDE) % count] for step in range(each)]
        if request.prefix_hashes:
            first = self._first_of(beginning(request.prefix_hashes))
            known = (self._entries.get(name) for name in (*first, *holders(each)))
            found += [entry for entry in known if entry is not None and entry[0] >= blocks]
        return list({entry[1]: entry[2] for entry in found}.values())

    def _from(self, blocks: int) -> int:
        return bisect_left(self._free, (blocks,))  # type: ignore[type-var]

    def _open(self, worker: Worker, now: float) -> bool:
        room = worker.room(now)
        return room.sequences > 0 and room.blocks > 0 and room.wait <= self._longest_wait

    def _sort_in(self, now: float) -> None:
        """Takes note of what has changed."""
        free, later, marked, grows = self._free, self._later, self._marked, self._grows
        while later and later[0][0] <= now:
            due, name, worker = heapq.heappop(later)
            if grows[name] == due:
                marked[name] = worker
        if not marked:
            return
        for name, worker in marked.items():
            entry = self._entries.pop(name, None)
            if entry is not None:
                del free[bisect_left(free, entry)]
            if self._open(worker, now):
                entry = self._entries[name] = worker.last_room.blocks, name, worker
                insort(free, entry)
            due = worker.last_room.grows
            if due < math.inf:
                heapq.heappush(later, (due, name, worker))
            grows[name] = due
        marked.clear()
        if len(later) > 4 * len(self.workers):  # most were overtaken by a later look
            known = [(grows[worker.spec.worker], worker.spec.worker, worker) for worker in self.workers]
            later[:] = [entry for entry in known if entry[0] < math.inf]
            heapq.heapify(later)

    def _first_of(self, number: int) -> list[str]:
        found = self._first.get(number)
        if found is None:
            best = heapq.nlargest(_EACH, self.workers, key=lambda worker: rank(number, worker.mark))
            found = self._first[number] = [each.spec.worker for each in best]
        return found


class Candidates:
    """The groups of one pool; made when they are first asked for, until a worker comes or goes."""

    def __init__(self, limits: Limits, serving: Callable[[str], list[Worker]], affinity: Affinity) -> None:
        """`serving` tells the live workers of a version."""
        self._affinity = affinity
        self._limits = limits
        self._serving = serving
        self._groups: dict[tuple[str, str | None], _Group] = {}
        self._alike: dict[tuple[str, ...], _Group] = {}  # versions with the same workers share a group

    def membership_changed(self) -> None:
        """A worker came or went, or serves something else."""
        for group in self._alike.values():
            for worker in group.workers:
                worker.marked_in.clear()
        self._groups.clear()
        self._alike.clear()

    def has_room(self, model_version: str, zones: tuple[str, ...], now: float) -> bool:
        """Could any worker of the version in these zones (none: in all) take anything?"""
        return any(self._group(model_version, zone).has_room(now) for zone in zones or (None,))

    def best(self, request: Request, blocks: int, depths: Depths, choose: _Choose, now: float) -> Worker | None:
        """What `choose` finds best, of workers with so many free blocks and what they have cached: after each zone
        those of the next one too, for as long as the best is none or well used. `depths` are affinity's."""
        shown: list[Worker] = []
        found: Worker | None = None
        for group in self._groups_of(request):
            shown += group.shown(request, blocks, functools.partial(self._affinity.holders, request, depths), now)
            found = choose(shown, self._affinity.matches(request, depths, (each.spec.worker for each in shown)))
            if found is not None and found.last_room.utilisation < self._limits.placement.zone_spill:
                return found
        if found is None:
            roomy = [worker for group in self._groups_of(request) for worker in group.roomy(blocks, now)]
            if len(roomy) > len(shown):
                return choose(roomy, self._affinity.matches(request, depths))
        return found

    def _groups_of(self, request: Request) -> list[_Group]:
        return [self._group(request.model_version, zone) for zone in request.zones or (None,)]

    def _group(self, model_version: str, zone: str | None) -> _Group:
        found = self._groups.get((model_version, zone))
        if found is None:
            workers = [w for w in self._serving(model_version) if zone is None or w.spec.zone == zone]
            names = tuple(worker.spec.worker for worker in workers)
            found = self._alike.get(names)
            if found is None:
                found = self._alike[names] = _Group(workers, self._limits)
            self._groups[model_version, zone] = found
        return found
