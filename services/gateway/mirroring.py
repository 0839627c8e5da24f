"""Hands requests on to be answered a second time, out of the users' way."""

from __future__ import annotations

import asyncio

from libs.telemetry import get_logger
from services.gateway.policy.finals import FinalAnswer
from services.gateway.ports import Mirrored, MirrorPort
from services.gateway.request import Request, with_texts

log = get_logger(__name__)


class Mirroring:
    """One per process; see `MirrorPort`."""

    def __init__(self, port: MirrorPort) -> None:
        self._port = port

    def soon(self, request: Request) -> None:
        """The request's first text is about to be handed on: once its face has had its turn, have it answered a second
        time."""
        loop = asyncio.get_running_loop()
        request.final = loop.create_future()
        loop.call_soon(self._now, request, request.final)

    def _now(self, request: Request, final: asyncio.Future[FinalAnswer]) -> None:
        candidate, generation = request.candidate, request.generation
        if candidate is None or generation is None:
            raise RuntimeError("mirrored before it ran")
        if candidate.arm is None or candidate.route.mirror is None:
            return
        mirrored = Mirrored(
            request_id=request.id,
            spec=with_texts(request.spec, candidate.check.texts),
            identity=request.identity,
            prompt=candidate.prompt,
            parameters=generation.parameters,
            route=candidate.route,
            arm=candidate.arm,
            traceparent=request.span.traceparent,
            answer=final,
        )
        try:
            self._port.mirror(mirrored)
        except Exception as error:  # nothing of a copy may reach the user's request; the text may quote a prompt
            log.error("not_mirrored", request_id=request.id, error=type(error).__name__)
