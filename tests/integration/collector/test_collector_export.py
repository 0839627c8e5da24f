"""OTLP over mTLS from the project's own tracing into files, and back as one tree."""

import asyncio
from pathlib import Path

from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2

from libs.config import TlsFiles
from libs.pki import issue_all
from libs.rpc import make_channel
from libs.service import serve
from libs.telemetry.tracing import CLIENT, MOST_LINKS, SERVER, configure_tracing, shutdown_tracing, span
from libs.traces import assemble, read_trace
from services.collector.app import build
from services.collector.config import Settings

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


def tls_files(tmp_path: Path) -> dict[str, TlsFiles]:
    issued = issue_all(tmp_path / "pki", ("collector", "gateway"))
    return {name: TlsFiles(files.ca, files.cert, files.key) for name, files in issued.items()}


async def test_spans_of_the_tracing_library_arrive_as_one_tree(tmp_path: Path) -> None:
    tls = tls_files(tmp_path)
    settings = Settings(
        service="collector", instance="collector-0", tls=tls["collector"], directory=str(tmp_path / "traces")
    )
    async with serve(await build(settings), settings) as running:
        await running.ready.wait()
        configure_tracing(
            service="gateway",
            instance="gateway-0",
            zone="zone-a",
            endpoint=f"127.0.0.1:{running.port}",
            tls=tls["gateway"],
        )
        outer = span("chat weir-fast", PARENT, kind=SERVER, attributes={"gen_ai.request.model": "weir-fast"})
        links = [f"00-{number:032x}-{number:016x}-01" for number in range(1, MOST_LINKS + 2)]
        with outer, span("quota.reserve", outer.traceparent, kind=CLIENT, links=links) as inner:
            inner.end("QUOTA_TOKENS")
        await asyncio.to_thread(shutdown_tracing)
    tree = assemble(read_trace(settings.directory, TRACE))
    assert tree.is_one_tree
    (_, first), (_, second) = tree.spans()
    assert (first.name, first.kind, first.service, first.instance, first.zone) == (
        "chat weir-fast",
        "SERVER",
        "gateway",
        "gateway-0",
        "zone-a",
    )
    assert first.attributes["gen_ai.request.model"] == "weir-fast"
    assert (second.name, second.parent_id, second.error) == ("quota.reserve", first.span_id, "QUOTA_TOKENS")
    assert first.links == []
    assert second.links == [link[3:52] for link in links[:MOST_LINKS]]


async def test_spans_without_ids_and_beyond_the_bound_are_counted_in_the_answer(tmp_path: Path) -> None:
    tls = tls_files(tmp_path)
    settings = Settings(
        service="collector",
        instance="collector-0",
        tls=tls["collector"],
        directory=str(tmp_path / "traces"),
        max_spans_per_trace=1,
    )
    good = [trace_pb2.Span(trace_id=bytes.fromhex(TRACE), span_id=bytes([n] * 8), name="x" * 5000) for n in (1, 2)]
    bad = trace_pb2.Span(trace_id=b"short", span_id=b"12345678", name="bad")
    export = trace_service_pb2.ExportTraceServiceRequest(
        resource_spans=[trace_pb2.ResourceSpans(scope_spans=[trace_pb2.ScopeSpans(spans=[*good, bad])])]
    )
    async with serve(await build(settings), settings) as running:
        target = f"127.0.0.1:{running.port}"
        channel = make_channel(target, tls=tls["gateway"], server_name="collector.weir.internal")
        async with channel:
            answer = await trace_service_pb2_grpc.TraceServiceStub(channel).Export(export, timeout=10)
    assert answer.partial_success.rejected_spans == 2
    assert [len(each.name) for each in read_trace(settings.directory, TRACE)] == [1024]
