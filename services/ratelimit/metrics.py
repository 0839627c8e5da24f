"""Metrics of the rate limiter. Labels are closed sets, refusals by their reason on the wire; tenants are no labels."""

from collections.abc import Iterable, Iterator, Mapping
from heapq import nlargest
from operator import itemgetter

from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from libs.errors import Reason
from libs.quota import REASONS, LimitKind


class Tally(Collector):
    """A counter with one label for what is counted with every decision: a plain number, read when somebody looks. The
    library's own takes a lock each time."""

    def __init__(self, name: str, text: str, label: str, values: Iterable[str]) -> None:
        self._described = name, text, label
        self.of = dict.fromkeys(values, 0)
        """By the label's value."""
        REGISTRY.register(self)

    def collect(self) -> Iterator[CounterMetricFamily]:
        """See `Collector`."""
        name, text, label = self._described
        family = CounterMetricFamily(name, text, labels=[label])
        for value, count in self.of.items():
            family.add_metric([value], count)
        yield family


class SpentBudgets(Collector):
    """Budgets nearest their end. Those of which this replica is the owner, so that each has one series."""

    MOST = 64
    NAME, TEXT = "weir_budget_spent_ratio", "Of a budget, the share that is spent; the 64 nearest their end"

    def __init__(self) -> None:
        self._shown: list[tuple[tuple[str, str], float]] = []
        REGISTRY.register(self)

    def show(self, spent: Mapping[tuple[str, str], float]) -> None:
        """From now on these. By tenant and "day" or "month"."""
        self._shown = nlargest(self.MOST, spent.items(), key=itemgetter(1))

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """See `Collector`."""
        family = GaugeMetricFamily(self.NAME, self.TEXT, labels=["tenant", "period"])
        for labels, share in self._shown:
            family.add_metric(labels, share)
        yield family


_EDGE = Counter("weir_ratelimit_edge_total", "Requests at the edge by outcome.", ["outcome"])
RESERVED = Tally(
    "weir_ratelimit_reserve_total",
    "Reservations by outcome.",
    "outcome",
    ("ok", "over_quota", "settled_already", *dict.fromkeys(reason.name for reason in REASONS.values())),
)
GRANTED = Tally(
    "weir_ratelimit_granted_total",
    "Reservations by who granted them: the limiter when it was asked, or a gateway out of its allowance or share.",
    "by",
    ("limiter", "gateway"),
)
SETTLED = Tally("weir_ratelimit_settle_total", "Settlements by whether the lease was live.", "known", ("true", "false"))
_FORWARDED = Counter("weir_ratelimit_forwarded_total", "Questions of the edge for another replica, by fate.", ["fate"])
_REPLICATED = Counter("weir_ratelimit_replicated_total", "Batches of other replicas, by fate.", ["fate"])
_FETCHED = Counter("weir_ratelimit_state_fetched_total", "Whole states of other replicas, by fate.", ["fate"])

EDGE_OK = _EDGE.labels("ok")
EDGE_DENIED = {kind: _EDGE.labels(REASONS[kind].name) for kind in LimitKind}
EDGE_SHED = _EDGE.labels(Reason.REJECTED_OVERLOAD.name)
FORWARDED = _FORWARDED.labels("answered")
FORWARD_FAILED = _FORWARDED.labels("decided_here")
REPLICATED = _REPLICATED.labels("applied")
REPLICATION_GAP = _REPLICATED.labels("gap")
STATE_FETCHED = _FETCHED.labels("joined")
STATE_FAILED = _FETCHED.labels("failed")
REBALANCES = Counter("weir_ratelimit_rebalances_total", "Times that all sessions were sent to their owners.")
REPLICAS = Gauge("weir_ratelimit_replicas", "Replicas in the registry, this one included.")
REPLICATION = Histogram(
    "weir_ratelimit_replication_seconds",
    "From telling another replica to its answer.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5),
)
UNTOLD = Gauge(
    "weir_ratelimit_leases_untold", "Leases that nobody settled and that left no record: too many lapsed at once."
)
LEASES = Gauge("weir_ratelimit_leases", "Reservations that are neither settled nor expired.")
EXPIRED = Counter("weir_ratelimit_leases_expired_total", "Leases that nobody settled in time.")
HOLDER_GONE = Counter("weir_ratelimit_leases_abandoned_total", "Leases that ended because their gateway was gone.")
LIMITS_REVISION = Gauge("weir_ratelimit_limits_revision", "Registry revision of the limits in force.")
_ALERTS = Counter("weir_ratelimit_budget_alerts_total", "Thresholds of budgets that were reached.", ["period"])
PERIOD = {False: "day", True: "month"}
"""By whether it is the month."""
ALERTS = {monthly: _ALERTS.labels(period) for monthly, period in PERIOD.items()}
BUDGETS = SpentBudgets()
ZONE_FAULTS = Gauge("weir_ratelimit_unknown_time_zones", "Time zones of budgets that are not known; UTC holds.")
_SPEND = Counter("weir_ratelimit_spend_writes_total", "Transactions with records of spend, by fate.", ["fate"])
SPEND_WRITTEN = _SPEND.labels("written")
SPEND_CONFLICT = _SPEND.labels("conflict")
SPEND_FAILED = _SPEND.labels("failed")
JOURNAL_WRITES = Counter("weir_ratelimit_journal_writes_total", "Frames written to the journal.")
JOURNAL_FAILURES = Counter("weir_ratelimit_journal_failures_total", "Frames that could not be written.")
