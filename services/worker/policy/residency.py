"""Which of the configured models are in memory. Pure: times come in as seconds on any steady clock.

Models are brought in when they are wanted and leave in order of last use, under four rules:

- The bytes of what is in memory, or on its way in, never exceed the budget.
- A pinned, busy, loading or young model (in memory for less than the minimum residency) is never evicted.
- Standbys leave only when evicting every other model that may leave is not enough.
- Nobody waits for ever. Waiting models are served in order of asking, the first one alone may take room; and the models
  that have to go for it are told to *yield*: they finish what runs and take nothing new. With a minimum residency of M
  and runs of at most R seconds, the first in the row waits at most M + R after the loads under way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum


class Outcome(Enum):
    """What may be done about a model that is wanted."""

    RESIDENT = "resident"  # use it
    LOAD = "load"  # evict what is named, then load it
    WAIT = "wait"  # hold its work and ask again
    REFUSED = "refused"  # it can never be loaded under this budget


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to `Residency.want`.

    `evict` is to be dropped before loading. `wait_until` is the time before which asking again is in vain; None with
    WAIT means that something must finish first (a run or a load). `reason` is fit for a log line and, for REFUSED, for
    the caller.
    """

    outcome: Outcome
    evict: tuple[str, ...] = ()
    wait_until: float | None = None
    reason: str = ""

    @property
    def load(self) -> bool:
        """Whether to load the model now."""
        return self.outcome is Outcome.LOAD


@dataclass(slots=True)
class _Resident:
    size: int
    last_used: float
    loaded_at: float | None = None  # None while it is being loaded
    idle_so_far: bool = False  # loaded ahead of any work: it may leave at once


@dataclass(slots=True)
class _Waiting:
    size: int
    victims: tuple[str, ...] = field(default=())


class Residency:
    """Keeps the books. A LOAD decision is booked when it is given: the caller carries it out and says `loaded` or
    `failed`."""

    def __init__(
        self,
        budget_bytes: int,
        min_residency_seconds: float,
        pinned: Iterable[str] = (),
        *,
        standby: Sequence[str] = (),
    ) -> None:
        """`standby` are the models to keep warm, the most important first.

        :raises ValueError: the budget or the time is negative.
        """
        if budget_bytes < 0 or not min_residency_seconds >= 0:
            raise ValueError("neither the budget nor the minimum residency may be negative")
        self._budget = budget_bytes
        self._min_residency = min_residency_seconds
        self._pinned = frozenset(pinned)
        self._standby = tuple(standby)
        self._resident: dict[str, _Resident] = {}
        self._waiting: dict[str, _Waiting] = {}  # in order of asking

    # ---- questions --------------------------------------------------------------------------------------------------

    @property
    def resident(self) -> tuple[str, ...]:
        """The models in memory or on their way in."""
        return tuple(self._resident)

    @property
    def waiting(self) -> tuple[str, ...]:
        """The models that were told to wait, the first in the row first."""
        return tuple(self._waiting)

    @property
    def used_bytes(self) -> int:
        """Bytes of the resident models."""
        return sum(each.size for each in self._resident.values())

    @property
    def free_bytes(self) -> int:
        """What can be loaded without evicting anyone."""
        return self._budget - self.used_bytes

    @property
    def yielding(self) -> frozenset[str]:
        """Models that must take no new work, so that they can leave for the one that waits first."""
        first = self._first_waiting()
        return frozenset(() if first is None else self._waiting[first].victims)

    def warm_up_next(self, sizes: Mapping[str, int], now: float) -> str | None:
        """The standby to load into room that nobody wants, and book it as LOAD; None when there is none. To be asked
        at idle times. `sizes` are bytes by model; one that is not among them is left out. Its minimum residency begins
        with its first work."""
        if self._first_waiting() is None:
            for model in self._standby:
                if model in sizes and model not in self._resident and sizes[model] <= self.free_bytes:
                    self._resident[model] = _Resident(sizes[model], now, idle_so_far=True)
                    return model
        return None

    # ---- commands ---------------------------------------------------------------------------------------------------

    def want(self, model: str, size_bytes: int, now: float, busy: Set[str]) -> Decision:
        """Ask for `model`, because there is work for it. `busy` are the models that are running something.

        To be asked again after WAIT (at `wait_until` or when something finished) for as long as the work waits; if it
        went away, say `forget`.
        """
        if model in self._resident:
            return self._want_resident(model, size_bytes, now)
        fixed = sum(each.size for name, each in self._resident.items() if name in self._pinned)
        if size_bytes > self._budget - fixed:
            self._waiting.pop(model, None)
            return Decision(Outcome.REFUSED, reason=self._why_never(model, size_bytes, fixed))
        self._waiting.setdefault(model, _Waiting(size_bytes)).size = size_bytes
        first = self._first_waiting()
        if first != model:
            return Decision(Outcome.WAIT, reason=f"{model} waits behind {first}")
        evict = self._evictable(size_bytes, now, busy)
        if evict is None:
            return self._wait(model, size_bytes, now, busy)
        for each in evict:
            del self._resident[each]
        del self._waiting[model]
        self._resident[model] = _Resident(size_bytes, now)
        return Decision(Outcome.LOAD, evict=evict, reason=f"evicts {', '.join(evict)}" if evict else "there is room")

    def loaded(self, model: str, now: float) -> None:
        """`model` is ready; its minimum residency begins.

        :raises KeyError: no LOAD was decided for it.
        """
        entry = self._resident[model]
        entry.loaded_at = now
        if not entry.idle_so_far:
            entry.last_used = now

    def failed(self, model: str) -> None:
        """`model` could not be loaded, or was lost; its room is free.

        :raises KeyError: it is not resident.
        """
        del self._resident[model]

    def used(self, model: str, now: float) -> None:
        """`model` got work. Unknown ones are ignored."""
        entry = self._resident.get(model)
        if entry is not None:
            entry.last_used = now
            if entry.idle_so_far and entry.loaded_at is not None:
                entry.idle_so_far, entry.loaded_at = False, now

    def forget(self, model: str) -> None:
        """The work for which `model` was wanted is gone; it waits no longer."""
        self._waiting.pop(model, None)

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _want_resident(self, model: str, size: int, now: float) -> Decision:
        entry, first = self._resident[model], self._first_waiting()
        if entry.loaded_at is None:
            return Decision(Outcome.WAIT, reason=f"{model} is being loaded")
        if model in self.yielding:
            # It keeps its place in the row, for when it has left.
            self._waiting.setdefault(model, _Waiting(size))
            return Decision(Outcome.WAIT, reason=f"{model} gives way to {first}")
        self._waiting.pop(model, None)
        self.used(model, now)
        return Decision(Outcome.RESIDENT, reason="in memory")

    def _wait(self, model: str, size: int, now: float, busy: Set[str]) -> Decision:
        """Choose who has to go, those first that can go soonest; the old enough among them yield from now on."""
        ready = {name: self._old_enough_at(name, now) for name in self._resident if name not in self._pinned}
        order = sorted(ready, key=lambda name: (ready[name], name in busy, *self._rank(name)))
        # Whoever yields already was promised to the one that waits: sparing it again would waste its idle time.
        chosen = self._enough(sorted(order, key=lambda name: name not in self._waiting[model].victims), size) or order
        self._waiting[model].victims = tuple(name for name in chosen if ready[name] <= now)
        times = [ready[name] for name in chosen if now < ready[name] < float("inf")]
        names = ", ".join(chosen)
        return Decision(Outcome.WAIT, wait_until=max(times, default=None), reason=f"{model} waits for {names}")

    def _evictable(self, size: int, now: float, busy: Set[str]) -> tuple[str, ...] | None:
        """Whom to evict so that `size` bytes fit; None when all who may go are not enough."""
        free_to_go = [
            name
            for name in self._resident
            if name not in self._pinned and name not in busy and self._old_enough_at(name, now) <= now
        ]
        return self._enough(sorted(free_to_go, key=self._rank), size)

    def _enough(self, order: Sequence[str], size: int) -> tuple[str, ...] | None:
        """The first of `order` that make room together, without those that turn out not to be needed."""
        lacking = size - self.free_bytes
        taken: list[str] = []
        for name in order:
            if lacking <= 0:
                break
            taken.append(name)
            lacking -= self._resident[name].size
        if lacking > 0:
            return None
        for name in reversed(taken[:]):
            if lacking + self._resident[name].size <= 0:
                lacking += self._resident[name].size
                taken.remove(name)
        return tuple(taken)

    def _rank(self, name: str) -> tuple[int, float, str]:
        """The order of leaving: ordinary models by last use, then standbys, the most important last."""
        place = len(self._standby) - self._standby.index(name) if name in self._standby else 0
        return (place, self._resident[name].last_used, name)

    def _old_enough_at(self, name: str, now: float) -> float:
        """When it may be evicted, `now` if it may already; infinite while it is being loaded."""
        entry = self._resident[name]
        if entry.loaded_at is None:
            return float("inf")
        return now if entry.idle_so_far else max(now, entry.loaded_at + self._min_residency)

    def _first_waiting(self) -> str | None:
        return next((name for name in self._waiting if name not in self._resident), None)

    def _why_never(self, model: str, size: int, fixed: int) -> str:
        if size > self._budget:
            return f"{model} needs {size} bytes, the budget is {self._budget}"
        return f"{model} needs {size} bytes, the pinned models leave {self._budget - fixed} of {self._budget}"
