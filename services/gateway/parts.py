"""What the requests of one process share: made once, by `app.py`, and never assigned to again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import grpc

from libs.answer_lengths import Lengths
from libs.auditlog.client import AuditWriter
from libs.catalog import Catalog
from libs.clock import Clock
from libs.limiter import QuotaClient
from libs.occupancy import Occupancy
from libs.outcomes import Recorder
from libs.routes import RouterClient
from services.gateway.clients.admission import AdmissionClient
from services.gateway.clients.safety import SafetyClient
from services.gateway.clients.workers import WorkerStreams
from services.gateway.config import Settings
from services.gateway.flushing import Flushing
from services.gateway.membership import Membership
from services.gateway.output_buffer import OutputBuffer, SlowReaders
from services.gateway.policy.answers import AnswerCache
from services.gateway.policy.pressure import Pressures
from services.gateway.policy.scoring import Scoring
from services.gateway.ports import Mirrored
from services.gateway.refusals import EndLog
from services.gateway.structures import StructureChecks

SWEEP_SECONDS = 0.5
"""How often `Pipeline.sweep` is to be called."""


@dataclass(eq=False, kw_only=True)
class Parts:
    """The services around the gateway, each by its client, which names its fallback, and what it remembers itself.

    The clients' `start_…` methods return futures, so that the pipeline can have several decisions under way without a
    task each. Everything else returns at once and never raises: it is called on paths that must not fail (cancellation,
    the end).
    """

    settings: Settings
    catalog: Catalog
    quota: QuotaClient
    router: RouterClient
    admission: AdmissionClient
    safety: SafetyClient
    workers: WorkerStreams
    channel: Callable[[str, str], grpc.aio.Channel]
    """To a worker, by its name and address, for unary calls."""
    audit: AuditWriter
    outcomes: Recorder
    mirror: Callable[[Mirrored], None] | None = None
    """Has a request answered a second time, where no user sees it: see `Mirrored`."""
    clock: Clock
    chance: Callable[[], float]
    """Gives numbers in [0, 1): for jitter."""
    structures: StructureChecks = field(default_factory=StructureChecks)
    ends: EndLog = field(default_factory=EndLog)
    lengths: Lengths = field(default_factory=lambda: Lengths(beyond=0.05))
    active: set[OutputBuffer] = field(default_factory=set)
    """Generations that run."""

    def __post_init__(self) -> None:
        settings = self.settings
        self.occupancy = Occupancy(
            most=settings.max_active, share=settings.max_active_share, clock=self.clock, chance=self.chance
        )
        self.membership = Membership(self.catalog, self.router)
        self.answers = AnswerCache(max_bytes=settings.answer_cache_bytes)
        self.pressures = Pressures(hold=settings.pressure_seconds)
        self.scoring = Scoring(settings.scored_per_second)
        self.readers = SlowReaders(
            stall=settings.reader_stall_seconds, most_stream=settings.max_unread_stream, most=settings.max_unread
        )
        self.flushing = Flushing(most=settings.flush_max, sweep_seconds=SWEEP_SECONDS, now=self.clock.monotonic())
