"""Credits on the wire: those that a pool gives away are signed and put into the answers to gateways."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from weir.admission.v1 import admission_pb2 as pb

from services.admission import convert
from services.admission.granting import Granting
from services.admission.metrics import CREDITS
from services.admission.policy.limits import Limits
from services.admission.policy.model import Request
from services.admission.policy.pool import Pool
from services.admission.worker_session import WorkerSession

_ID_BYTES = 8


class Crediting:
    """Of all pools of this process."""

    def __init__(
        self,
        limits: Limits,
        *,
        granting: Granting,
        sessions: Mapping[str, WorkerSession],
        random_bytes: Callable[[int], bytes],
    ) -> None:
        """`sessions` are the workers'."""
        self._seconds = limits.credits.seconds
        self._tie_band = limits.placement.tie_band
        self._granting = granting
        self._sessions = sessions
        self._random_bytes = random_bytes

    def give(
        self, pool: Pool, request: Request, reply: pb.AdmissionReply, *, count: int, epoch: int, now: float
    ) -> None:
        """Adds up to so many credits to the answer to a request that was granted."""
        ids = (self._random_bytes(_ID_BYTES).hex() for _ in range(count))
        for given in pool.give(request, ids, now):
            session = self._sessions[given.worker]
            blocks = pool.fleet.reservations[given.request.request_id].blocks
            signed = self._granting.credit(given.request, session, epoch=epoch, blocks=blocks, lifetime=self._seconds)
            indifferent = self._tie_band * pool.fleet.workers[given.worker].prefill_rate
            reply.granted.credits.append(
                convert.credit(signed, session.spec, given, lifetime=self._seconds, indifferent=int(indifferent))
            )
            CREDITS.labels(pool.name, "given").inc()
