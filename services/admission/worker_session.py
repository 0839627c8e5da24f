"""One capacity stream of one worker, as the coordinator sees it."""

from __future__ import annotations

import asyncio

from weir.admission.v1 import admission_pb2 as pb

from libs.clock.stamps import timestamp
from libs.deadlines import to_duration
from libs.grants import GrantSigner
from services.admission.policy.model import WorkerSpec

_OUTBOX = 64  # frames; Preempt and Drain are rare, a worker that reads none of so many is not well


class WorkerSession:
    """Who the worker is, the key its grants are signed with, and the frames that wait to be sent to it."""

    def __init__(self, *, hello: pb.WorkerHello, spec: WorkerSpec, key: bytes, signer: GrantSigner) -> None:
        self.hello = hello
        self.pool = hello.pool
        self.spec = spec
        self.key = key
        self.signer = signer
        self.epoch = hello.epoch
        """The newest term of its pool's owners of which the worker has said, or has been told first of all, that it
        takes no grant of an older one."""
        self.heard = 0.0
        """When it told that, in monotonic seconds."""
        self.report: pb.CapacityReport | None = None
        """What the worker told last, whole: the policy takes only what it decides by."""
        self._outbox: asyncio.Queue[pb.ReportCapacityResponse | None] = asyncio.Queue(_OUTBOX + 1)
        self._closed = False

    def welcome(self, admission: str, epoch: int, *, heartbeat: float) -> pb.ReportCapacityResponse:
        """The first frame: from the instance `admission`, which owns the worker's pool in this term; 0: it does not."""
        self.epoch = max(self.epoch, epoch)  # the worker hears of it before it reports
        return pb.ReportCapacityResponse(
            welcome=pb.WorkerWelcome(
                grant_key=self.key,
                key_id=self.signer.key_id,
                heartbeat=to_duration(heartbeat),
                admission=admission,
                epoch=epoch,
                time=timestamp(self.signer.began),
            )
        )

    def send(self, frame: pb.ReportCapacityResponse) -> bool:
        """Queues a frame; False when the session is over or the worker does not read."""
        if self._closed or self._outbox.qsize() >= _OUTBOX:
            return False
        self._outbox.put_nowait(frame)
        return True

    def close(self) -> None:
        """Ends the session: its stream ends after the frames that were sent before."""
        if not self._closed:
            self._closed = True
            self._outbox.put_nowait(None)

    async def next_frame(self) -> pb.ReportCapacityResponse | None:
        """The next frame to write; None when the session is over."""
        return await self._outbox.get()
