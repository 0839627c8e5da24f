"""What admission tells Prometheus. Labels are bounded: pools, classes, outcomes and workers are few."""

from __future__ import annotations

from collections import Counter as Multiset
from collections.abc import Iterable, Mapping
from heapq import nlargest

from prometheus_client import Counter, Gauge, Histogram

from services.admission.policy.model import Outcome, QueueClass
from services.admission.policy.pool import Pool

_WAIT_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

OUTCOMES = Counter(
    "weir_admission_outcomes_total", "Requests by how they left admission.", ["pool", "queue_class", "outcome"]
)
WAIT = Histogram(
    "weir_admission_queue_wait_seconds", "Wait of granted requests.", ["pool", "queue_class"], buckets=_WAIT_BUCKETS
)
QUEUED = Gauge("weir_admission_queue_depth", "Requests that wait.", ["pool", "queue_class"])
QUEUED_COST = Gauge("weir_admission_queue_cost", "Cost units that wait.", ["pool", "queue_class"])
FIRST_TOKEN_ERROR = Histogram(
    "weir_admission_first_token_error_seconds",
    "Time from admission to first token, as it was minus as it was predicted.",
    ["pool"],
    buckets=(-2.0, -1.0, -0.5, -0.25, -0.1, -0.05, -0.01, 0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0),
)
FIRST_TOKEN = Histogram(
    "weir_admission_first_token_seconds", "Time from admission to first token.", ["pool"], buckets=_WAIT_BUCKETS
)
INTERRUPTED = Counter(
    "weir_admission_interrupted_requests_total", "Requests interrupted for more urgent ones.", ["pool"]
)
TENANT_REQUESTS = Gauge(
    "weir_admission_tenant_requests",
    "Requests that wait (queued) or run (held), of the tenants with the most of them; of the rest together as other.",
    ["pool", "tenant", "state"],
)
NAMED_TENANTS = 8
"""Per pool and state: a label for each of thousands would be most of a scrape."""
OTHER = "other"
SHED_TENANTS = Gauge("weir_admission_shed_tenants", "Tenants that the edge is told to shed.", ["pool"])
HELD = Gauge("weir_admission_held_requests", "Granted requests that are not released.", ["pool"])
FREE_BLOCKS = Gauge("weir_admission_worker_free_blocks", "KV blocks that can be granted.", ["pool", "worker"])
FREE_SEQUENCES = Gauge("weir_admission_worker_free_sequences", "Sequences that can be granted.", ["pool", "worker"])
QUEUED_PREFILL = Gauge("weir_admission_worker_queued_prefill_tokens", "Prompt tokens waiting.", ["pool", "worker"])
EJECTED = Gauge(
    "weir_admission_worker_ejected", "1 while the worker gets no work for its failures.", ["pool", "worker"]
)
PREFIX_TRUST = Gauge(
    "weir_admission_worker_prefix_trust",
    "Of the prompt tokens that were hoped to be cached there, the share that was.",
    ["pool", "worker"],
)
CREDITS = Counter(
    "weir_admission_credits_total",
    "Grants given ahead of requests, and those of them that a request ran on.",
    ["pool", "fate"],
)
WORKERS_LOST = Counter("weir_admission_workers_lost_total", "Workers lost.", ["pool", "cause"])
GATEWAYS_ABANDONED = Counter("weir_admission_gateways_abandoned_total", "Gateways that did not come back.")


class PoolMetrics:
    """The children of one pool, looked up once: labels() costs as much as the decision itself."""

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._outcomes = {
            (queue_class, outcome): OUTCOMES.labels(pool, queue_class.name.lower(), outcome.value)
            for queue_class in QueueClass
            for outcome in Outcome
        }
        self._waits = {queue_class: WAIT.labels(pool, queue_class.name.lower()) for queue_class in QueueClass}
        self._interrupted = INTERRUPTED.labels(pool)
        self._first_token_error = FIRST_TOKEN_ERROR.labels(pool)
        self._first_token = FIRST_TOKEN.labels(pool)
        self._ran_on_credit = CREDITS.labels(pool, "used")
        self._workers: set[str] = set()
        self._tenants: set[tuple[str, str]] = set()

    def left(self, queue_class: QueueClass, outcome: Outcome) -> None:
        """A request left admission."""
        self._outcomes[queue_class, outcome].inc()

    def granted(self, queue_class: QueueClass, waited: float) -> None:
        """A request left admission with a grant, after `waited` seconds."""
        self._outcomes[queue_class, Outcome.GRANTED].inc()
        self._waits[queue_class].observe(waited)

    def ran_on_credit(self, queue_class: QueueClass) -> None:
        """A request ran on a grant that its gateway had."""
        self._ran_on_credit.inc()
        self.granted(queue_class, 0.0)

    def interrupted(self, count: int) -> None:
        """A worker was told to interrupt requests."""
        self._interrupted.inc(count)

    def publish(self, pool: Pool, now: float) -> None:
        """Sets the gauges to the pool's present state; counts what has come of its predictions."""
        for predicted, actual in pool.books.take_predictions():
            self._first_token_error.observe(actual - predicted)
            self._first_token.observe(actual)
        for queue_class, queue in pool.backlog.queues.items():
            QUEUED.labels(self._pool, queue_class.name.lower()).set(len(queue))
            QUEUED_COST.labels(self._pool, queue_class.name.lower()).set(queue.backlog)
        QUEUED.labels(self._pool, QueueClass.SHADOW.name.lower()).set(len(pool.shadows))
        HELD.labels(self._pool).set(len(pool.fleet.reservations))
        self._publish_tenants(pool)
        live = {name: worker for name, worker in pool.fleet.workers.items() if worker.live}
        for name, worker in live.items():
            FREE_BLOCKS.labels(self._pool, name).set(worker.free_blocks(now))
            FREE_SEQUENCES.labels(self._pool, name).set(worker.free_sequences(now))
            QUEUED_PREFILL.labels(self._pool, name).set(worker.queued_prefill())
            EJECTED.labels(self._pool, name).set(pool.fleet.outliers.ejected(name, now))
            PREFIX_TRUST.labels(self._pool, name).set(pool.fleet.affinity.trust(name))
        self._forget(self._workers - live.keys())
        self._workers = set(live)

    def clear(self) -> None:
        """Another process decides for the pool from now on."""
        for queue_class in QueueClass:
            QUEUED.labels(self._pool, queue_class.name.lower()).set(0)
            QUEUED_COST.labels(self._pool, queue_class.name.lower()).set(0)
        HELD.labels(self._pool).set(0)
        self._set_tenants({})
        self._forget(self._workers)
        self._workers = set()

    def _publish_tenants(self, pool: Pool) -> None:
        queued: Multiset[str] = Multiset()
        for queue in pool.backlog.queues.values():
            for tenant, size in queue.sizes():
                queued[tenant] += size
        # A credit is nobody's: it has no tenant.
        requests = (each.request for each in pool.fleet.reservations.values())
        held = Multiset(request.tenant for request in requests if not request.credit)
        self._set_tenants(
            {
                (tenant, state): count
                for state, counts in (("queued", queued), ("held", held))
                for tenant, count in heaviest(counts).items()
            }
        )

    def _set_tenants(self, counts: Mapping[tuple[str, str], int]) -> None:
        for gone in self._tenants - counts.keys():
            TENANT_REQUESTS.remove(self._pool, *gone)
        for (tenant, state), count in counts.items():
            TENANT_REQUESTS.labels(self._pool, tenant, state).set(count)
        self._tenants = set(counts)

    def _forget(self, workers: Iterable[str]) -> None:
        for name in workers:
            for gauge in (FREE_BLOCKS, FREE_SEQUENCES, QUEUED_PREFILL, EJECTED, PREFIX_TRUST):
                gauge.remove(self._pool, name)


def heaviest(counts: Mapping[str, int], most: int = NAMED_TENANTS) -> dict[str, int]:
    """The largest by name, at most `most` of them; what is left together as `OTHER`. A plain queue tells no tenants:
    what it has is of nobody by name. Pure."""
    named = nlargest(most, ((count, tenant) for tenant, count in counts.items() if tenant))
    found = {tenant: count for count, tenant in named}
    if rest := sum(counts.values()) - sum(found.values()):
        found[OTHER] = found.get(OTHER, 0) + rest
    return found
