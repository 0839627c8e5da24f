"""Which worker gets a request, of those that it fits now.

1. **Zone.** The zones of the request in their order, except that a worker whose utilisation has come to `zone_spill` is
   used only after the less utilised ones of the later zones: requests stay at home while there is ease, and spill over
   under load before home is full.
2. **Score**, in seconds, least first; what the request would wait for on this worker, and what it would do to others:

       score = waiting prefill / prefill rate                      the queue
             + (prompt - prompt tokens it has cached) / rate       prefix affinity, prompt length
             + absent_model_cost, when the model is not in memory  residency of models and adapters
             + crowding_cost × (utilisation + blocks needed / all blocks)        the KV footprint

   The rate is the worker's own, as it reports. Cached tokens count by how far such hopes have come true there
   (affinity.py), and only on workers whose queue is at most `affinity_slack` seconds longer than the shortest among the
   workers of this zone rank that the request fits: a popular prefix spreads instead of drowning one worker.
3. **Ties.** Scores within `tie_band` of the best are equal. Among equals the longest cached prefix decides, then the
   first prefix hash by rendezvous: requests that begin alike meet on one worker even before anything is remembered (a
   new admission process), and a worker that joins or leaves moves only what comes to it or was on it. Requests without
   hashes go by score and id.

Of hundreds of workers a request is shown a few (candidates.py). Everything is a function of the workers, the request
and the time; nothing is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from services.admission.policy.affinity import beginning, rank
from services.admission.policy.limits import Limits
from services.admission.policy.model import Request

if TYPE_CHECKING:
    from services.admission.policy.worker import Room, Worker

Needs = Mapping[tuple[int, bool], tuple[int, int]]
"""By kind of worker, the blocks that are kept for the request there and those that it may come to need at most."""
_NONE: Mapping[str, float] = {}


def eligible(request: Request, workers: Iterable[Worker]) -> list[Worker]:
    """Workers that the request may use, whether or not they have room now: not excluded, and in one of its zones."""
    return [
        worker
        for worker in workers
        if worker.spec.worker not in request.excluded and (not request.zones or worker.spec.zone in request.zones)
    ]


def pick(
    request: Request,
    workers: Sequence[Worker],
    now: float,
    *,
    needs: Needs,
    limits: Limits,
    cached: Mapping[str, float] = _NONE,
    kept: Collection[str] = (),
) -> Worker | None:
    """The best of the eligible `workers` that the request fits now; None when there is none.

    `cached` are prompt tokens by worker, `kept` workers that wait for somebody else.
    """
    fitting = _fitting(request, workers, now, needs=needs, limits=limits, kept=kept)
    if not fitting:
        return None
    first = min(fitting)
    if not request.prefix_hashes:
        return first[3]
    first_rank, score = first[0], first[1]
    level = [entry for entry in fitting if entry[0] == first_rank] if request.zones else fitting
    if cached:
        cached = _where_affordable(level, now, cached, limits)
        level = [_discounted(entry, cached[entry[2]]) if entry[2] in cached else entry for entry in level]
        score = min(entry[1] for entry in level)
    equal = score + limits.placement.tie_band
    tied = [entry[3] for entry in level if entry[1] <= equal]
    if len(tied) == 1:
        return tied[0]
    number = beginning(request.prefix_hashes)
    return max(tied, key=lambda w: (cached.get(w.spec.worker, 0.0), rank(number, w.mark), w.spec.worker))


_Entry = tuple[int, float, str, "Worker"]
"""Zone rank, score, id (which is unique, so that workers themselves are never compared), worker."""


def _fitting(
    request: Request,
    workers: Sequence[Worker],
    now: float,
    *,
    needs: Needs,
    limits: Limits,
    kept: Collection[str],
) -> list[_Entry]:
    """The workers that the request fits, without affinity. The hot loop of admission: once per worker and request."""
    placement = limits.placement
    spill, crowding, absent = placement.zone_spill, placement.crowding_cost, placement.absent_model_cost
    choices, prompt, model, zones = request.choices, request.prompt_tokens, request.model_version, request.zones
    most_prompts = limits.max_queued_prefill - prompt
    longest_wait = limits.max_prefill_wait
    tokens = prompt + request.max_output_tokens
    ranks = {zone: rank for rank, zone in enumerate(zones)}
    found: list[_Entry] = []
    for worker in workers:
        room: Room = worker.last_room if now < worker.last_room.until else worker.room(now)
        if choices > room.sequences:
            continue
        need, longest = needs[worker.kind]
        if need > room.blocks or (room.prefill > most_prompts and room.prefill) or room.wait > longest_wait:
            continue
        spec = worker.spec
        if longest > spec.total_blocks or tokens > spec.max_context or spec.worker in kept:
            continue
        zone = 0
        if zones:
            zone = ranks[spec.zone] if room.utilisation < spill else ranks[spec.zone] + len(zones)
        score = room.score + prompt * room.per_token + crowding * need / spec.total_blocks
        report = worker.report
        if report is not None and report.resident is not None and model not in report.resident:
            score += absent
        found.append((zone, score, spec.worker, worker))
    return found


def _where_affordable(
    entries: Sequence[_Entry], now: float, cached: Mapping[str, float], limits: Limits
) -> Mapping[str, float]:
    """What is cached on the workers whose queue allows to go there for it."""
    longest = min(entry[3].room(now).wait for entry in entries) + limits.placement.affinity_slack
    return {
        entry[2]: cached[entry[2]] for entry in entries if entry[2] in cached and entry[3].room(now).wait <= longest
    }


def _discounted(entry: _Entry, tokens: float) -> _Entry:
    zone, score, name, worker = entry
    return zone, score - tokens * worker.last_room.per_token, name, worker


def to_keep(
    request: Request,
    workers: Iterable[Worker],
    now: float,
    *,
    kept: Collection[str] = (),
    allowed: Callable[[Worker], bool] = lambda _: True,
) -> Worker | None:
    """The eligible worker to keep free for a request that fits none now: of those `allowed`, the one nearest to having
    room. Looks closely only at those that are nearer than the nearest so far: few of many."""
    nearest: Worker | None = None
    least = math.inf, ""
    for worker in workers:
        distance = worker.room(now).utilisation, worker.spec.worker
        if (
            distance < least
            and worker.spec.worker not in kept
            and worker.open()
            and worker.could_ever_fit(request)
            and allowed(worker)
        ):
            nearest, least = worker, distance
    return nearest
