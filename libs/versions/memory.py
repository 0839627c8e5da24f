"""What the versions of a process take in memory, as far as it is known; `plan.py` says who makes room for whom."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from weir.registry.v1 import registry_pb2 as pb

from libs.clock import Clock
from libs.versions.errors import RefusedError
from libs.versions.plan import Fault, Room, Wanted

_ASKED_AGAIN = 1.0
"""Seconds between two looks whether there is room now for a version that somebody asks for."""


class Memory:
    """A bound for all versions together, what each takes and when it was asked for."""

    def __init__(
        self,
        bound: int = 0,
        *,
        cost: Callable[[str], int | None] = lambda _: None,
        asked: Callable[[], Mapping[str, float]] = dict,
        clock: Clock,
    ) -> None:
        """:param bound: bytes; 0: there is none.
        :param cost: bytes of a loaded version, as measured when it was loaded; None: that is not measured.
        :param asked: when each version was asked for last, loaded or not, monotonic seconds.
        """
        self._bound = bound
        self._cost = cost
        self._asked = asked
        self._clock = clock
        self._costs: dict[str, int] = {}  # by digest
        self._since: dict[str, float] = {}
        """When versions came to be wanted."""
        self._looked: dict[str, float] = {}

    def want(self, wanted: Iterable[Wanted]) -> None:
        """These are wanted now."""
        now = self._clock.monotonic()
        self._since = {each.model: self._since.get(each.model, now) for each in wanted}

    def takes(self, version: pb.ModelVersion) -> int:
        """Bytes of a version: as measured before, or else those of its files."""
        return self._costs.get(version.digest) or _files(version)

    def measured(self, model: str, version: pb.ModelVersion) -> int:
        """Bytes of a version that was just loaded, 0 where that is not measured. It takes no less than its files, even
        where the process had room for them already.

        :raises RefusedError: more than all may take together.
        """
        found = self._cost(model)
        if found is None:
            return 0
        cost = self._costs[version.digest] = max(found, _files(version))
        if self._bound and cost > self._bound:
            raise RefusedError(Fault.MEMORY, self.too_much(model, cost))
        return cost

    def too_much(self, model: str, cost: int) -> str:
        """Why a version is refused."""
        return f"{model} takes {cost} bytes of memory; all versions together may take {self._bound}"

    def room(self, *, quiet: float, leaving: int) -> Room | None:
        """See `plan.Room`; None: there is no bound."""
        if not self._bound:
            return None
        asked = self._asked()
        used = {model: max(since, asked.get(model, since)) for model, since in self._since.items()}
        return Room(self._bound, quiet, {**asked, **used}, leaving)

    def look(self, model: str) -> bool:
        """Whether it is time to look for room because somebody asks for a version that is not loaded."""
        now = self._clock.monotonic()
        if now - self._looked.get(model, -math.inf) < _ASKED_AGAIN:
            return False
        self._looked[model] = now
        return True


def _files(version: pb.ModelVersion) -> int:
    return sum(each.bytes for each in version.artifacts)
