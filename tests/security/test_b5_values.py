"""Values are scanned wherever they are kept, whatever their field is called (B5, issue point 4)."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path

import pytest
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.trace.v1 import trace_pb2
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from weir.audit.v1 import audit_pb2

from libs import apikeys
from libs.telemetry import configure_logging, get_logger
from libs.telemetry.tracing import configure_tracing, linked, shutdown_tracing, span
from services.audit.convert import draft_of_record
from services.collector.convert import spans
from tests.support.audit import record

KEY = apikeys.make(lambda n: b"\x5a" * n).text
SECRETS = {
    "key": KEY,
    "email": "jane.doe@example.org",
    "jwt": "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
    "card": "4111 1111 1111 1111",
    "bearer": "Bearer abcdefgh12345678",
    "pem": "-----BEGIN PRIVATE KEY-----\nMHcCAQEEIBkg\n-----END PRIVATE KEY-----",
}
SAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize("kind", SECRETS)
def test_b5_log_lines_hold_no_secret_in_any_value(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    secret, stream, root = SECRETS[kind], io.StringIO(), logging.getLogger()
    before = (root.handlers[:], root.level)
    monkeypatch.setattr("sys.stderr", stream)
    try:
        configure_logging(service="s", instance="i")
        log = get_logger("tests")
        log.info("event", detail=f"it was {secret}", nested={"a": [{"b": secret}], secret: 1}, odd=Exception(secret))
        log.info(f"event {secret}")
        try:
            raise ValueError(f"cannot use {secret}")
        except ValueError as error:
            log.error("failed", exc_info=error)
    finally:
        root.handlers[:], root.level = before
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert len(lines) == 3
    assert secret not in str(lines)
    assert secret not in stream.getvalue()
    assert f"[{kind}]" in lines[0]["detail"]
    assert "Traceback" in lines[2]["exception"]


@pytest.mark.parametrize("kind", SECRETS)
def test_b5_spans_hold_no_secret_in_any_value(kind: str) -> None:
    secret, exporter = SECRETS[kind], InMemorySpanExporter()
    configure_tracing(service="s", instance="i", zone="z", exporter=exporter)
    try:
        with span(f"chat {secret}", SAMPLED, attributes={"weir.a": secret}) as one:
            one.set("weir.b", f"x {secret}")
            one.set("weir.c", [secret, "y"])
        linked(f"job {secret}", SAMPLED).end()
    finally:
        shutdown_tracing()
    found = [(each.name, dict(each.attributes or {})) for each in exporter.get_finished_spans()]
    assert len(found) == 2
    assert secret not in str(found)
    assert f"[{kind}]" in str(found)


@pytest.mark.parametrize("kind", SECRETS)
def test_b5_audit_records_hold_no_secret_in_any_field(kind: str) -> None:
    made = record(1)
    made.request.model = made.request.worker = SECRETS[kind]
    made.request.degraded.append(f"x {SECRETS[kind]}")
    draft = draft_of_record(made, max_bytes=1 << 16)
    assert json.loads(draft.header)["usage"]["model"] == f"[{kind}]"
    assert json.loads(draft.payload)["degraded"] == [f"x [{kind}]"]
    assert SECRETS[kind].encode() not in draft.header + draft.payload
    change = audit_pb2.AdminEvent(actor="key:k1", action="registry.Apply", reason=f"for {SECRETS[kind]}")
    plain = audit_pb2.Record(id="a", source="registry/r", time=made.time, admin=change)
    assert json.loads(draft_of_record(plain, max_bytes=1 << 16).payload)["reason"] == f"for [{kind}]"


def test_b5_the_collector_keeps_only_attributes_in_which_callers_have_no_say(tmp_path: Path) -> None:
    told = {"http.url": "https://h/?q=words", "user_agent": "words", "grpc.message": "words", "my.own": "words"}
    kept = {"weir.tenant": "acme", "http.status_code": "200", "gen_ai.request.model": SECRETS["email"]}
    attributes = [
        common_pb2.KeyValue(key=key, value=common_pb2.AnyValue(string_value=value))
        for key, value in {**told, **kept}.items()
    ]
    one = trace_pb2.Span(trace_id=b"1" * 16, span_id=b"2" * 8, name=f"x {KEY}", attributes=attributes)
    resource = trace_pb2.ResourceSpans(scope_spans=[trace_pb2.ScopeSpans(spans=[one])])
    [made] = spans([resource], max_value_chars=1000)
    assert made is not None
    assert made.attributes == kept | {"gen_ai.request.model": "[email]"}
    assert made.name == "x [key]"
