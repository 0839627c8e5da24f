"""What Envoys tell of requests that they lost, as counts that the rollout controllers hear of."""

from __future__ import annotations

import random
import uuid
from collections.abc import AsyncIterator, Callable

import grpc
from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.accesslog.v3 import als_pb2, als_pb2_grpc

from libs.clock import Clock
from libs.config import ServiceSettings
from libs.mux import Dialer
from libs.outcomes import OutcomeReporter, OutcomeTable
from libs.outcomes.objectives import AVAILABILITY, STREAM_COMPLETION
from libs.registry import RegistrySnapshot, tier_of
from libs.registry.terms import ANY
from services.controlplane import metrics
from services.controlplane.policy.losses import Ended, loss_of

SERVICE = als_pb2.DESCRIPTOR.services_by_name["AccessLogService"].full_name
_FLAGS = {
    "no_healthy_upstream": "UH",
    "upstream_connection_failure": "UF",
    "upstream_overflow": "UO",
    "upstream_connection_termination": "UC",
    "upstream_request_timeout": "UT",
    "upstream_protocol_error": "UPE",
    "local_reset": "LR",
    "no_cluster_found": "NC",
    "overload_manager": "OM",
    "downstream_connection_termination": "DC",
    "downstream_remote_reset": "DR",
    "downstream_protocol_error": "DPE",
}
"""The message's fields, as Envoy writes them in a log."""


class Losses(als_pb2_grpc.AccessLogServiceServicer):
    """Takes the logs in, and keeps counts of what is in them; one per process."""

    def __init__(self, snapshot: Callable[[], RegistrySnapshot]) -> None:
        self._snapshot = snapshot
        self.table = OutcomeTable()
        """By route and tier; of tier "*" where that is not known."""

    async def StreamAccessLogs(  # noqa: N802 - the name on the wire
        self, request_iterator: AsyncIterator[als_pb2.StreamAccessLogsMessage], context: grpc.aio.ServicerContext
    ) -> als_pb2.StreamAccessLogsResponse:
        """One thread of an Envoy's, until it goes."""
        async for message in request_iterator:
            for entry in message.http_logs.log_entry:
                self._take(entry)
        return als_pb2.StreamAccessLogsResponse()

    def reporter(self, settings: ServiceSettings, *, clock: Clock, rng: random.Random) -> OutcomeReporter:
        """Tells every rollout controller of them."""
        dialer = Dialer(settings, clock, rng)
        return OutcomeReporter(
            self.table,
            self._snapshot,
            lambda address: dialer.channel(address, "rollout"),
            source=settings.instance,
            incarnation=str(uuid.UUID(int=rng.getrandbits(128))),
            clock=clock,
            rng=rng,
        )

    def _take(self, entry: accesslog_pb2.HTTPAccessLogEntry) -> None:
        common = entry.common_properties
        flags = frozenset(flag for field, flag in _FLAGS.items() if getattr(common.response_flags, field))
        loss = loss_of(Ended(common.route_name, common.upstream_cluster, flags, entry.response.response_code_details))
        if loss is None:
            return
        metrics.LOST.labels(loss.route).inc()
        version = self._snapshot().model_versions.get(loss.model_version)
        tier = tier_of(version) if version is not None else ANY
        missed = (AVAILABILITY, STREAM_COMPLETION) if loss.begun else (AVAILABILITY,)
        self.table.judge(loss.route, tier, [(objective, False) for objective in missed])
