"""What admission's decisions cost at scale: its policy alone, called in this process, one decision at a time.

CPU of the thread, the median over batches, so that what else runs here counts little. See admission_bench.py for what
each figure is.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

from services.admission.policy.edge_shedding import EdgeShedding
from services.admission.policy.limits import Limits
from services.admission.policy.model import (
    Granted,
    QueueClass,
    Report,
    Request,
    WorkerSpec,
)
from services.admission.policy.pool import Pool

LIMITS = Limits(max_per_tenant=1 << 20, max_per_class=1 << 20, max_queued=1 << 20, report_fresh=1e9, report_stale=2e9)
SEQUENCES = 64
ZONES = ("zone-a", "zone-b")
VERSION, CANARY = "weir-fast@1", "weir-fast@2"
_BATCH = 20
_TOLD = Report(15_000, decode_step=0.02, prefill_tokens_per_second=20_000.0)


def decisions(rounds: int = 4000, repeats: int = 9) -> dict[str, float]:
    """The figures. `rounds` decisions of each kind, `repeats` surveys of the tenants.

    :raises RuntimeError: something was decided otherwise than it should have been.
    """
    return {
        "grant_us_300_workers": grants(300, rounds),
        "grant_us_2000_tenants": grants_to_waiting(2, 2000, rounds)[0],
        "two_versions_us": max(two_versions(rounds // 10).values()),
        "levels_ms_10k_tenants": survey(10_000, repeats),
        "grants_per_s": grants_to_waiting(300, 2000, rounds)[1],
    }


def grants(workers: int, rounds: int) -> float:
    """Microseconds per grant and its release, while nobody waits; prompts begin in a hundred ways, and with every tenth
    grant a worker reports."""
    pool = _pool(_spec(number) for number in range(workers))
    running: deque[str] = deque()

    def asked(turn: int) -> tuple[Request, float]:
        now = 1.0 + 0.1 * turn / workers
        blocks = tuple((turn % 97) * 1000 + depth for depth in range(1, 7))
        return _request(f"r{turn}", turn % 100, now, prefix_hashes=blocks, prefix_block=32), now

    def one(turn: int, request: Request, now: float) -> None:
        _granted(pool, request, now)
        running.append(request.request_id)
        if len(running) > 8 * workers:
            pool.release(running.popleft(), now, output_tokens=40, first_token=0.03)
        if turn % 10 == 0:
            pool.worker_reported(f"worker-{turn // 10 % workers}", _TOLD, now)

    for turn in range(8 * workers):
        one(turn, *asked(turn))
    took = []
    for first in range(8 * workers, 8 * workers + rounds, _BATCH):
        batch = [(turn, *asked(turn)) for turn in range(first, first + _BATCH)]
        before = time.thread_time()
        for each in batch:
            one(*each)
        took.append((time.thread_time() - before) / _BATCH)
    return 1e6 * statistics.median(took)


def grants_to_waiting(workers: int, tenants: int, rounds: int) -> tuple[float, float]:
    """All workers are full and a request of each tenant waits: microseconds per release with the grant that follows;
    and grants per second of CPU with all that belongs to them, the next request that queues and a report included."""
    pool = _pool(_spec(number) for number in range(workers))
    running: deque[str] = deque()
    for number in range(workers * SEQUENCES):
        now = 0.02 * number / workers
        _granted(pool, _request(f"h{number}", number % tenants, now), now)
        running.append(f"h{number}")
    for number in range(tenants):
        pool.admit(_request(f"w{number}", number, 3.0), 3.0)
    took = []
    began = time.thread_time()
    for turn in range(rounds):
        now = 4.0 + 0.04 * turn / workers
        before = time.thread_time()
        _, events = pool.release(running.popleft(), now, output_tokens=30 + turn % 50, first_token=0.03)
        took.append(time.thread_time() - before)
        (event,) = events
        if not isinstance(event, Granted):
            raise RuntimeError(f"a grant was expected, not {event}")
        running.append(event.request.request_id)
        pool.admit(_request(f"n{turn}", int(event.request.tenant[1:]), now), now)
        pool.worker_reported(f"worker-{turn % workers}", _TOLD, now)
    return 1e6 * statistics.median(took), rounds / (time.thread_time() - began)


def two_versions(rounds: int) -> dict[str, float]:
    """Two versions with a worker each: a thousand tenants wait for one, the other has room. Microseconds of a report,
    and for the one with room of an admission and a release; and of a tick."""
    pool = _pool(
        [replace(_spec(0), model_versions=frozenset({VERSION})), replace(_spec(1), model_versions=frozenset({CANARY}))]
    )
    for number in range(SEQUENCES):
        _granted(pool, _request(f"h{number}", number, 0.02 * number, zones=()), 0.02 * number)
    for number in range(1000):
        pool.admit(_request(f"w{number}", number, 2.0, zones=()), 2.0)
    took: dict[str, list[float]] = {"report": [], "admit": [], "release": [], "tick": []}

    def timed(what: str, act: Callable[[], object]) -> None:
        before = time.thread_time()
        act()
        took[what].append(time.thread_time() - before)

    for turn in range(rounds):
        now = 3.0 + 0.025 * turn
        canary = _request(f"c{turn}", turn, now, model_version=CANARY, zones=())
        timed("report", lambda now=now: pool.worker_reported("worker-1", _TOLD, now))  # type: ignore[misc]
        timed("admit", lambda canary=canary, now=now: _granted(pool, canary, now))  # type: ignore[misc]
        timed("release", lambda turn=turn, now=now: pool.release(f"c{turn}", now, output_tokens=9))  # type: ignore[misc]
        timed("tick", lambda now=now: pool.tick(now))  # type: ignore[misc]
    return {what: 1e6 * statistics.median(seconds) for what, seconds in took.items()}


def survey(tenants: int, repeats: int) -> float:
    """Milliseconds of the longest piece of a look for whom the edge should shed, when all but a third are refused."""
    shedding = EdgeShedding()
    for second in (0.0, 1.0, 2.0):
        for number in range(tenants):
            request = _request("r", number, second)
            shedding.arrived(request, 100.0 + number % 977, second)
            if number % 3 == 0:
                shedding.granted(request, 100.0, second)
            else:
                shedding.refused(request, 100.0, 1.0, second)
    longest = []
    for _ in range(repeats):
        pieces = [0.0]
        before = time.thread_time()
        for _ in shedding.survey(3.0):
            pieces.append(time.thread_time() - before)
            before = time.thread_time()
        longest.append(max(pieces))
    return 1e3 * statistics.median(longest)


def _spec(number: int) -> WorkerSpec:
    return WorkerSpec(
        f"worker-{number}", "", ZONES[number % 2], frozenset({VERSION}), 16, 16_384, SEQUENCES, 8192, preemptive=True
    )


def _pool(specs: Iterator[WorkerSpec] | list[WorkerSpec]) -> Pool:
    pool = Pool("bench", LIMITS, now=0.0)
    for spec in specs:
        pool.worker_joined(spec, 0.0)
        pool.worker_reported(spec.worker, replace(_TOLD, free_blocks=16_384), 0.0)
    return pool


def _request(name: str, tenant: int, now: float, **more: object) -> Request:
    asked = Request(name, f"t{tenant % 2000}", VERSION, 200, 200, 1, now + 1e6, QueueClass.PAID, zones=ZONES)
    return replace(asked, **more) if more else asked  # type: ignore[arg-type]


def _granted(pool: Pool, request: Request, now: float) -> None:
    answer, events = pool.admit(request, now)
    if not isinstance(answer, Granted) and not any(isinstance(event, Granted) for event in events):
        raise RuntimeError(f"a grant was expected, not {answer}")
