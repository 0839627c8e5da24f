"""A trace collector for tests."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from libs.config import TlsFiles
from libs.rpc.server import bind


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.arrived = asyncio.Event()

    async def Export(  # noqa: N802
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.aio.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans += scope.spans
        self.arrived.set()
        return trace_service_pb2.ExportTraceServiceResponse()

    async def serve(self, tls: TlsFiles | None = None) -> tuple[grpc.aio.Server, str]:
        """A server, which the caller stops, and its address."""
        server = grpc.aio.server()
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, server)
        port = bind(server, "127.0.0.1:0", tls=tls)
        await server.start()
        return server, f"127.0.0.1:{port}"

    async def has(self, trace_id: str) -> None:
        """Returns once a span of the trace has arrived; 20 s at most."""
        async with asyncio.timeout(20):
            while trace_id not in self.traces:
                self.arrived.clear()
                await self.arrived.wait()

    @property
    def traces(self) -> set[str]:
        """Ids of all traces."""
        return {span.trace_id.hex() for span in self.spans}
