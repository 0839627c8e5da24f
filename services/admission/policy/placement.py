"""Which worker gets a request: the first zone of its list that can take it, there the least loaded worker.

Pickers see only workers that fit; they are the seam for affinity and placement scoring.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from services.admission.policy.model import Request

if TYPE_CHECKING:
    from services.admission.policy.ledger import Worker


def eligible(request: Request, workers: Iterable[Worker]) -> list[Worker]:
    """Workers that the request may use, whether or not they have room now: not excluded, and in one of its zones."""
    return [
        worker
        for worker in workers
        if worker.spec.worker not in request.excluded and (not request.zones or worker.spec.zone in request.zones)
    ]


def pick(request: Request, workers: Iterable[Worker], now: float, *, kept: Collection[str] = ()) -> Worker | None:
    """The best of the eligible `workers` that the request fits now; None when there is none.

    `kept` are workers that wait for somebody else.
    """
    best: Worker | None = None
    best_rank: tuple[int, float, str] | None = None
    for worker in workers:
        spec = worker.spec
        if spec.worker in kept or not worker.fits(request, now):
            continue
        rank = (request.zones.index(spec.zone) if request.zones else 0, worker.load(now), spec.worker)
        if best_rank is None or rank < best_rank:
            best, best_rank = worker, rank
    return best


def to_keep(request: Request, workers: Iterable[Worker], now: float, *, kept: Collection[str] = ()) -> Worker | None:
    """The eligible worker to keep free for a request that fits none now: the one nearest to having room."""
    candidates = [w for w in workers if w.spec.worker not in kept and w.open() and w.could_ever_fit(request)]
    return min(candidates, key=lambda worker: (worker.load(now), worker.spec.worker), default=None)


class Failed:
    """Shapes that did not fit in this pass: whoever needs as much or more, of the same workers, need not be tried."""

    def __init__(self) -> None:
        self._needs: dict[tuple[str, tuple[str, ...]], tuple[int, int, int]] = {}

    def add(self, request: Request) -> None:
        """The request did not fit."""
        if not request.excluded:  # without excludes the request had every worker that others with its key have
            self._needs[_key(request)] = _need(request)

    def includes(self, request: Request) -> bool:
        """Is it known without trying that the request does not fit?"""
        before = self._needs.get(_key(request))
        if before is None:
            return False
        now = _need(request)
        return now[0] >= before[0] and now[1] >= before[1] and now[2] >= before[2]


def _key(request: Request) -> tuple[str, tuple[str, ...]]:
    return request.model_version, request.zones


def _need(request: Request) -> tuple[int, int, int]:
    return request.choices, request.prompt_tokens, request.max_output_tokens
