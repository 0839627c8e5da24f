"""`weir.inference.v1.InferenceService`: decode → pipeline → encode."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
from msgspec.structs import replace
from weir.inference.v1 import inference_pb2, inference_pb2_grpc

from libs.deadlines import to_duration
from libs.errors import Reason, WeirError
from libs.quota import Header
from services.gateway import convert
from services.gateway.catalog import Catalog
from services.gateway.faces import collect, limits_of
from services.gateway.identity import Caller, Identifier
from services.gateway.output_buffer import OutputBuffer
from services.gateway.policy.events import Accepted, Finish
from services.gateway.policy.parameters import invalid
from services.gateway.serve import Pipeline

_FIRST_FRAME_SECONDS = 10.0
"""For a stream's first frame, which says what it wants."""


class InferenceServicer(inference_pb2_grpc.InferenceServiceServicer):
    """The native API."""

    def __init__(self, pipeline: Pipeline, identifier: Identifier, catalog: Catalog, *, heartbeat: float) -> None:
        self._pipeline = pipeline
        self._identifier = identifier
        self._catalog = catalog
        self._heartbeat = inference_pb2.GenerateResponse(heartbeat=inference_pb2.Heartbeat(idle=to_duration(heartbeat)))

    async def Generate(  # noqa: N802 - the name on the wire
        self, request_iterator: AsyncIterator[inference_pb2.GenerateRequest], context: grpc.aio.ServicerContext
    ) -> None:
        """See the proto."""
        caller = self._identifier.identify(context, scope="inference")
        try:
            async with asyncio.timeout(_FIRST_FRAME_SECONDS):
                first = await anext(request_iterator, None)
        except TimeoutError:
            message = f"start: the first frame did not come within {_FIRST_FRAME_SECONDS:g} s"
            raise WeirError(Reason.DEADLINE_EXCEEDED, message, limit="start") from None
        if first is None or not first.HasField("start"):
            raise invalid("start", "the first frame must open the generation")
        generation, accepted = await self._open(first.start, caller, context)
        watcher = asyncio.get_running_loop().create_task(_watch(request_iterator, generation))
        try:
            with self._pipeline.readers.reading(generation):
                await context.write(inference_pb2.GenerateResponse(accepted=convert.from_accepted(accepted)))
                while True:
                    updates, heartbeat, end = await generation.take()
                    if updates:
                        await context.write(convert.from_updates(updates))
                    elif heartbeat:
                        await context.write(self._heartbeat)
                    if end is not None:
                        await context.write(inference_pb2.GenerateResponse(end=convert.from_end(end)))
                        return
        finally:  # whatever ends the RPC, a vanished client included, ends the generation
            watcher.cancel()
            generation.stop(Finish.CANCELLED)

    async def Complete(  # noqa: N802 - the name on the wire
        self, request: inference_pb2.CompleteRequest, context: grpc.aio.ServicerContext
    ) -> inference_pb2.CompleteResponse:
        """See the proto."""
        caller = self._identifier.identify(context, scope="inference")
        generation, accepted = await self._open(request.spec, caller, context, whole=True)
        with self._pipeline.readers.reading(generation):
            choices, end = await collect(generation)
        if end.finish is Finish.ERROR and not any(choice.text for choice in choices):
            raise WeirError(Reason.parse(end.error_reason), end.message, retry_after=end.retry_after)
        return inference_pb2.CompleteResponse(
            accepted=convert.from_accepted(accepted),
            choices=map(convert.from_choice, choices),
            end=convert.from_end(end),
        )

    async def Embed(  # noqa: N802 - the name on the wire
        self, request: inference_pb2.EmbedRequest, context: grpc.aio.ServicerContext
    ) -> inference_pb2.EmbedResponse:
        """See the proto."""
        caller = self._identifier.identify(context, scope="embeddings")
        try:
            result = await self._pipeline.embed(
                caller.hinted(convert.embed_spec(request, caller.client_request_id)), caller
            )
        except WeirError as error:
            tell(context, limits_of(error))
            raise
        tell(context, limits_of(result))
        return inference_pb2.EmbedResponse(
            embeddings=[inference_pb2.Embedding(values=vector) for vector in result.vectors],
            model_version=result.model_version,
            usage=inference_pb2.Usage(prompt_tokens=result.tokens),
            simulated=result.simulated,
        )

    async def CountTokens(  # noqa: N802 - the name on the wire
        self, request: inference_pb2.CountTokensRequest, context: grpc.aio.ServicerContext
    ) -> inference_pb2.CountTokensResponse:
        """See the proto."""
        caller = self._identifier.identify(context, scope="inference")
        spec = caller.hinted(convert.to_spec(request.spec))
        asked = self._catalog.question(caller.identity.tenant, spec.model, user=spec.user, session=spec.session)
        route = self._catalog.resolve(asked)
        version = self._catalog.version(route.model_version)
        ids = await self._pipeline.encode(route.model_version, spec)
        return inference_pb2.CountTokensResponse(
            prompt_tokens=len(ids), model_version=route.model_version, context_length=version.context_length
        )

    async def _open(
        self,
        message: inference_pb2.GenerationSpec,
        caller: Caller,
        context: grpc.aio.ServicerContext,
        *,
        whole: bool = False,
    ) -> tuple[OutputBuffer, Accepted]:
        """Open it, and have its trailers tell the limits, also those of a refusal."""
        try:
            buffer = await self._pipeline.open(
                caller.hinted(replace(convert.to_spec(message), whole=whole)),
                caller.identity,
                request_id=caller.request_id,
                remaining=caller.remaining,
                traceparent=caller.traceparent,
            )
        except WeirError as error:
            tell(context, limits_of(error))
            raise
        if buffer.accepted is None:
            raise RuntimeError("an open generation is accepted")
        tell(context, limits_of(buffer.accepted))
        return buffer, buffer.accepted


def tell(context: grpc.aio.ServicerContext, headers: list[Header]) -> None:
    """Put headers into the trailers: they leave with the status, whatever it is."""
    if headers:
        context.set_trailing_metadata(tuple(headers))


async def _watch(requests: AsyncIterator[inference_pb2.GenerateRequest], generation: OutputBuffer) -> None:
    """Frames after the first: cancels. A half-close just ends this."""
    async for frame in requests:
        if frame.HasField("cancel"):
            generation.stop(Finish.CANCELLED)
            return
