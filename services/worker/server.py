"""The servicer: peers, streams, embeddings."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from weir.worker.v1 import worker_pb2, worker_pb2_grpc

from libs.errors import Reason, WeirError
from services.worker.engines.driven import EngineStoppedError
from services.worker.engines.followed import EmbeddingUnsupportedError
from services.worker.engines.port import EngineLoadError
from services.worker.hub import Hub
from services.worker.intake import Intake
from services.worker.sessions import GatewaySession

SERVICE = worker_pb2.DESCRIPTOR.services_by_name["WorkerService"].full_name


class WorkerServicer(worker_pb2_grpc.WorkerServiceServicer):
    """`weir.worker.v1.WorkerService`."""

    def __init__(
        self,
        *,
        hub: Hub,
        intake: Intake,
        worker: str,
        max_embed_inputs: int,
    ) -> None:
        self._hub = hub
        self._intake = intake
        self._worker = worker
        self._max_embed_inputs = max_embed_inputs
        self._sessions: set[GatewaySession] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    async def Session(self, request_iterator: Any, context: grpc.aio.ServicerContext) -> None:  # type: ignore[override]  # noqa: N802
        """One gateway's stream; a coroutine, so that grpc.aio reads and writes without a generator between."""
        if self._intake.draining:
            raise WeirError(Reason.DRAINING, self._intake.draining)
        info = self._hub.info
        welcome = worker_pb2.WorkerWelcome(worker=self._worker, engine=info.engine, simulated=info.simulated)
        session = GatewaySession(context, hub=self._hub, intake=self._intake, welcome=welcome)
        self._sessions.add(session)
        self._empty.clear()
        try:
            await session.run()
        finally:
            self._sessions.discard(session)
            if not self._sessions:
                self._empty.set()

    async def Embed(  # noqa: N802
        self, request: worker_pb2.EmbedRequest, context: grpc.aio.ServicerContext
    ) -> worker_pb2.EmbedResponse:
        """Mean-pooled hidden states; a caller that goes away cancels this coroutine, and with it the work."""
        engine = self._hub.engine
        if len(request.inputs) > self._max_embed_inputs:
            raise WeirError(Reason.INVALID_REQUEST, f"at most {self._max_embed_inputs} inputs", limit="inputs")
        if request.model_version not in engine.info.models:
            raise WeirError(Reason.MODEL_NOT_FOUND, f"{request.model_version} is not served by this worker")
        self._intake.embed(request)
        try:
            vectors = await engine.embed(request.model_version, [list(tokens.ids) for tokens in request.inputs])
        except ValueError as error:  # the engine's word for an input it cannot take
            raise WeirError(
                Reason.INVALID_REQUEST, "an input is empty, too long or not tokens", limit="inputs"
            ) from error
        except EmbeddingUnsupportedError as error:
            raise WeirError(Reason.UNIMPLEMENTED, "this engine offers no embeddings") from error
        except EngineLoadError as error:  # it left meanwhile, or cannot be read
            raise WeirError(Reason.MODEL_NOT_FOUND, f"{request.model_version} cannot be run by this worker") from error
        except EngineStoppedError as error:
            raise WeirError(Reason.DEPENDENCY_UNAVAILABLE, "the engine has stopped") from error
        return worker_pb2.EmbedResponse(
            vectors=[worker_pb2.Vector(values=vector) for vector in vectors], simulated=engine.info.simulated
        )

    def go_away(self, reason: str) -> None:
        """Take nothing new, on the open streams and on new ones; what runs goes on."""
        self._intake.draining = reason
        for session in self._sessions:
            session.go_away(reason)

    async def finish(self) -> None:
        """End every stream once its last frame is written, and return."""
        for session in self._sessions:
            session.finish()
        await self._empty.wait()

    async def cut(self, error: WeirError) -> None:
        """End every stream at once; the gateways continue their sequences elsewhere."""
        for session in list(self._sessions):
            session.cut(error)
        await self._empty.wait()
