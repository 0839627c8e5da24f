"""What a request holds while it is served. All of it is given back where the block ends that took it."""

from __future__ import annotations

from typing import Any, Self

import msgspec
from weir.admission.v1 import admission_pb2

from services.gateway.lease import Lease
from services.gateway.membership import Member
from services.gateway.occupancy import Visit
from services.gateway.ports import AdmissionPort
from services.gateway.request import Request


class Grant:
    """A place on a worker for one request: asked for, used, given back, asked for anew. What is still held when the
    block ends was not used."""

    __slots__ = ("_admission", "_request", "admit", "asked", "granted")

    def __init__(self, admission: AdmissionPort, request: Request) -> None:
        self._admission = admission
        self._request = request
        self.asked = 0
        """Questions so far."""
        self.admit: admission_pb2.Admit | None = None
        """The last one."""
        self.granted: admission_pb2.Granted | None = None
        """What is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release(unused=True)

    @property
    def next_id(self) -> str:
        """What admission and the worker are to know it by: each question, and so each grant, has an id of its own."""
        return f"{self._request.id}/{self.asked}" if self.asked else self._request.id

    async def ask(self, admit: admission_pb2.Admit, **more: Any) -> admission_pb2.Granted:
        """Wait for a worker; see `AdmissionPort.admit`.

        :raises WeirError: the rejection or eviction; nothing is held then.
        """
        self.asked += 1
        self.admit = admit
        self.granted = await self._admission.admit(
            admit, deadline=self._request.deadline, traceparent=self._request.traceparent, **more
        )
        return self.granted

    def release(self, **brought: Any) -> None:
        """Give it back, and tell what it has brought; see `AdmissionPort.release`. Nothing where none is held."""
        if self.granted is not None and self.admit is not None:
            self.granted = None
            self._admission.release(self.admit.request_id, pool=self.admit.pool, **brought)


class Held(msgspec.Struct, frozen=True):
    """Of one request."""

    visit: Visit
    """Its place in this gateway."""
    lease: Lease
    """Of its tenant's quota."""
    member: Member
    """Among those on an arm of a rollout."""
    grant: Grant
    """On a worker."""
