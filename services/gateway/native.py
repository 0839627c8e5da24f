"""`weir.inference.v1.InferenceService`: decode → pipeline → encode."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
from msgspec.structs import replace
from weir.inference.v1 import inference_pb2, inference_pb2_grpc

from libs.callers import Caller, Identifier
from libs.catalog import Catalog
from libs.cursor import Cursor
from libs.deadlines import to_duration
from libs.errors import Reason, WeirError
from libs.quota import Header
from services.gateway import convert
from services.gateway.cursors import Cursors, digest_of
from services.gateway.idempotency import Idempotency
from services.gateway.output_buffer import OutputBuffer, collect
from services.gateway.policy.events import Finish, Usage
from services.gateway.policy.parameters import invalid
from services.gateway.refusals import limits_of
from services.gateway.serve import Pipeline

_FIRST_FRAME_SECONDS = 10.0
"""For a stream's first frame, which says what it wants."""


class InferenceServicer(inference_pb2_grpc.InferenceServiceServicer):
    """The native API."""

    def __init__(
        self,
        pipeline: Pipeline,
        identifier: Identifier,
        catalog: Catalog,
        cursors: Cursors,
        idempotency: Idempotency,
        *,
        heartbeat: float,
    ) -> None:
        self._pipeline = pipeline
        self._identifier = identifier
        self._catalog = catalog
        self._cursors = cursors
        self._idempotency = idempotency
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
        tenant, body = caller.identity.tenant, digest_of("generate", convert.body_of(first.start))
        cursor = self._cursors.read(first.start.cursor, tenant, body)
        generation = await self._open(first.start, caller, context, body, cursor)
        trail = self._cursors.trail(generation.accepted.origin, tenant, body, cursor)
        watcher = asyncio.get_running_loop().create_task(_watch(request_iterator, generation))
        try:
            with self._pipeline.parts.readers.reading(generation):
                await context.write(inference_pb2.GenerateResponse(accepted=convert.from_accepted(generation.accepted)))
                while True:
                    updates, heartbeat, end = await generation.take()
                    if updates:
                        await context.write(convert.from_updates(updates, trail, generation.progress))
                    elif heartbeat:
                        await context.write(self._heartbeat)
                    if end is not None:
                        await context.write(
                            inference_pb2.GenerateResponse(end=convert.from_end(generation.accepted, end))
                        )
                        return
        finally:  # whatever ends the RPC, a vanished client included, ends the generation
            watcher.cancel()
            generation.stop(Finish.CANCELLED)
            self._cursors.ended(generation.accepted.origin, tenant, generation.end)

    async def Complete(  # noqa: N802 - the name on the wire
        self, request: inference_pb2.CompleteRequest, context: grpc.aio.ServicerContext
    ) -> inference_pb2.CompleteResponse:
        """See the proto."""
        caller = self._identifier.identify(context, scope="inference")
        if request.spec.cursor:
            raise invalid("cursor", "only a stream goes on where it was")
        body = digest_of("complete", convert.body_of(request.spec))
        generation = await self._open(request.spec, caller, context, body, whole=True)
        with self._pipeline.parts.readers.reading(generation):
            choices, end = await collect(generation)
        if end.error is not None and end.finish is Finish.ERROR and not any(choice.text for choice in choices):
            raise end.error
        return inference_pb2.CompleteResponse(
            accepted=convert.from_accepted(generation.accepted),
            choices=map(convert.from_choice, choices),
            end=convert.from_end(generation.accepted, end),
        )

    async def Embed(  # noqa: N802 - the name on the wire
        self, request: inference_pb2.EmbedRequest, context: grpc.aio.ServicerContext
    ) -> inference_pb2.EmbedResponse:
        """See the proto."""
        caller = self._identifier.identify(context, scope="embeddings")
        try:
            spec, key = convert.embed_spec(request, caller.client_request_id), request.idempotency_key
            body = digest_of(spec.operation, convert.embed_body_of(request))
            result = await self._idempotency.embed(spec, caller, key or caller.idempotency_key, body)
        except WeirError as error:
            tell(context, limits_of(error))
            raise
        accepted = result.accepted
        tell(context, accepted.limits.headers())
        usage = Usage(accepted.prompt_tokens)
        return inference_pb2.EmbedResponse(
            embeddings=[inference_pb2.Embedding(values=vector) for vector in result.vectors],
            model_version=accepted.model_version,
            usage=convert.from_usage(accepted, usage, billed=usage),
            simulated=accepted.simulated,
            replayed=accepted.replayed,
        )

    async def CountTokens(  # noqa: N802 - the name on the wire
        self, request: inference_pb2.CountTokensRequest, context: grpc.aio.ServicerContext
    ) -> inference_pb2.CountTokensResponse:
        """See the proto."""
        caller = self._identifier.identify(context, scope="inference")
        spec = convert.to_spec(request.spec).hinted(caller.user, caller.session)
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
        body: bytes,
        cursor: Cursor | None = None,
        *,
        whole: bool = False,
    ) -> OutputBuffer:
        """Open it, and have its trailers tell the limits, also those of a refusal."""
        try:
            spec = replace(convert.to_spec(message), whole=whole)
            key = message.idempotency_key or caller.idempotency_key
            buffer = await self._idempotency.open(spec, caller, key, body, cursor)
        except WeirError as error:
            tell(context, limits_of(error))
            raise
        tell(context, buffer.accepted.limits.headers())
        return buffer


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
