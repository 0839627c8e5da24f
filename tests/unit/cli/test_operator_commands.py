"""The operators' commands that are more than resources, against real servers with mTLS: the registry itself, and small
servers with the protocols of the audit log, the control plane and the edge."""

from __future__ import annotations

import contextlib
import http.server
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from envoy.admin.v3 import config_dump_shared_pb2
from envoy.config.core.v3 import base_pb2
from envoy.service.status.v3 import csds_pb2, csds_pb2_grpc
from google.protobuf.duration_pb2 import Duration
from weir.admission.v1 import admission_pb2, admission_pb2_grpc
from weir.audit.v1 import audit_pb2, audit_pb2_grpc
from weir.records.v1 import records_pb2, records_pb2_grpc
from weir.registry.v1 import registry_pb2 as pb

from libs.auditlog import AuditFiles, Incoming, load_or_create_signer, load_verifier
from libs.authority.identity import Operator as Person
from libs.config import TlsFiles
from libs.registry import MemoryStore, Put, keys
from libs.rpc import make_server
from libs.rpc.server import bind
from services.cli.__main__ import COMMANDS
from services.cli.commands import apart
from tests.support.operator import NAME, Operator


class Audit(audit_pb2_grpc.AuditServiceServicer):
    """Answers Tail and Verify."""

    ok = True
    records: Records

    async def Tail(self, request: audit_pb2.TailRequest, context: Any) -> audit_pb2.TailResponse:  # noqa: N802
        admin = audit_pb2.AdminEvent(actor="key:k1", action="registry.SetLimits", resource="limits/acme/*", revision=9)
        event = audit_pb2.RequestEvent(
            tenant=request.tenant or "acme", model_version="weir-fast@1", operation="chat", outcome="stop"
        )
        records = [audit_pb2.Record(id="a", source="registry/r0", admin=admin), audit_pb2.Record(id="b", request=event)]
        damaged = audit_pb2.StoredRecord(sequence=3, damage="the line is malformed")
        return audit_pb2.TailResponse(
            records=[*(audit_pb2.StoredRecord(sequence=n, record=r) for n, r in enumerate(records, 1)), damaged]
        )

    async def Reconcile(  # noqa: N802
        self, request: audit_pb2.ReconcileRequest, context: Any
    ) -> audit_pb2.ReconcileResponse:
        self.compared = request
        found = [] if self.ok else [audit_pb2.Difference(what="doubled", subject="r1", detail="twice")]
        return audit_pb2.ReconcileResponse(differences=found, requests=2, sequence=9)

    async def Accept(self, request: audit_pb2.AcceptRequest, context: Any) -> audit_pb2.AcceptResponse:  # noqa: N802
        return audit_pb2.AcceptResponse(sequence=7, faults=[request.reason])

    async def Verify(self, request: audit_pb2.VerifyRequest, context: Any) -> audit_pb2.VerifyResponse:  # noqa: N802
        return audit_pb2.VerifyResponse(ok=self.ok, records=2, checkpoints=1, faults=[] if self.ok else ["record 2"])


class Records(records_pb2_grpc.RecordsServiceServicer):
    """Has two requests, and sums that may differ."""

    differences = ()

    async def Usage(self, request: records_pb2.UsageRequest, context: Any) -> records_pb2.UsageResponse:  # noqa: N802
        self.asked = request
        row = records_pb2.UsageRow(
            values=["x"] * len(request.by), requests=2, completion_tokens=7, spend_microusd=1_500
        )
        return records_pb2.UsageResponse(rows=[row], sequence=9)

    async def ListRequests(  # noqa: N802
        self, request: records_pb2.ListRequestsRequest, context: Any
    ) -> records_pb2.ListRequestsResponse:
        self.asked = request
        second = bool(request.page_token)
        made = records_pb2.Request(request_id=f"r{2 - second}", tenant="acme", model_version="fast@1", outcome="stop")
        made.time.seconds, made.completion_tokens = 1_800_000_000, 7
        return records_pb2.ListRequestsResponse(requests=[made], next_page_token="" if second else "more", sequence=9)

    async def Rebuild(self, request: records_pb2.RebuildRequest, context: Any) -> records_pb2.RebuildResponse:  # noqa: N802
        return records_pb2.RebuildResponse(first=1, sequence=9 if request.patience.seconds else 4, upto=9)

    async def Compare(self, request: records_pb2.CompareRequest, context: Any) -> records_pb2.CompareResponse:  # noqa: N802
        return records_pb2.CompareResponse(differences=self.differences, first=1, last=9)


class Admission(admission_pb2_grpc.AdmissionServiceServicer):
    """Knows one worker."""

    async def ListWorkers(self, request: Any, context: Any) -> admission_pb2.ListWorkersResponse:  # noqa: N802
        hello = admission_pb2.WorkerHello(worker="worker-0", total_blocks=100)
        report = admission_pb2.CapacityReport(
            free_blocks=60, prefix_queried_total=200, prefix_hit_total=50, preemptions_total=9
        )
        report_age = Duration(seconds=2)
        state = admission_pb2.WorkerState(hello=hello, report=report, report_age=report_age)
        return admission_pb2.ListWorkersResponse(workers=[state])


class Csds(csds_pb2_grpc.ClientStatusDiscoveryServiceServicer):
    """Answers with one client and its resources."""

    nack = False

    async def FetchClientStatus(self, request: Any, context: Any) -> csds_pb2.ClientStatusResponse:  # noqa: N802
        context.set_trailing_metadata((("x-weir-snapshot-revision", "42"),))
        status = config_dump_shared_pb2.NACKED if self.nack else config_dump_shared_pb2.ACKED
        entries = [
            csds_pb2.ClientConfig.GenericXdsConfig(
                type_url="type.googleapis.com/envoy.config.cluster.v3.Cluster",
                name=name,
                version_info="41",
                client_status=status,
            )
            for name in ("gateway", "worker")
        ]
        node = base_pb2.Node(id="envoy-0", cluster="edge")
        return csds_pb2.ClientStatusResponse(config=[csds_pb2.ClientConfig(node=node, generic_xds_configs=entries)])


@pytest.fixture
async def services(weir: Operator) -> AsyncIterator[tuple[Audit, Csds]]:
    """Beside the registry: admission, an audit log with its store of records, a control plane."""
    audit, csds = Audit(), Csds()
    audit.records = Records()
    async with contextlib.AsyncExitStack() as stack:
        for name, add, servicer in (
            ("admission", admission_pb2_grpc.add_AdmissionServiceServicer_to_server, Admission()),
            ("audit", audit_pb2_grpc.add_AuditServiceServicer_to_server, audit),
            ("records", records_pb2_grpc.add_RecordsServiceServicer_to_server, audit.records),
            ("controlplane", csds_pb2_grpc.add_ClientStatusDiscoveryServiceServicer_to_server, csds),
        ):
            server: grpc.aio.Server = make_server()
            add(servicer, server)
            port = bind(server, "127.0.0.1:0", tls=weir.tls(name))
            await server.start()
            stack.push_async_callback(server.stop, None)
            weir.services[f"{name}-0"] = {"service": name, "address": f"127.0.0.1:{port}"}
        weir.describe()
        yield audit, csds


async def test_explain_a_tenant(weir: Operator, services: Any) -> None:
    await weir("set", "tenants", "acme", "plan=paid", "--create")
    told = (await weir("tenants", "explain", "acme", "--json")).json()
    assert (told["plan"]["id"], told["recent"]["outcomes"], told["edge"]) == ("paid", {"stop": 1}, {})
    assert "! nobody can act as it" in (await weir("tenants", "explain", "acme")).out
    assert (await weir("tenants", "explain", "gone")).err.startswith("error: no tenant is called 'gone'")
    del weir.services["audit-0"]
    weir.describe()
    blind = await weir("tenants", "explain", "acme")
    assert blind.code == 0
    assert "the audit log cannot be asked" in blind.err


async def test_usage(weir: Operator, services: tuple[Audit, Csds]) -> None:
    audit, _ = services
    words = ("usage", "show", "--by", "tenant,model", "--tenant", "acme", "--from", "2026-11-01", "--model", "fast")
    table = (await weir(*words)).out.splitlines()
    assert [line.split() for line in table] == [
        ["TENANT", "MODEL", "REQUESTS", "PROMPT", "OUTPUT", "ROWS", "COST"],
        ["x", "x", "2", "0", "7", "0", "$0.0015"],
    ]
    asked = audit.records.asked
    assert (asked.tenant, asked.since.seconds, list(asked.models)) == ("acme", 1_793_491_200, ["fast"])
    assert not asked.HasField("until")
    await weir(*words, "--to", "2026-11-01T14")
    assert audit.records.asked.until.seconds == 1_793_491_200 + 15 * 3600
    assert "not '1 Nov'" in (await weir("usage", "show", "--from", "1 Nov")).err
    csv = (await weir(*words, "-o", "csv")).out.splitlines()
    assert (csv[0][:21], csv[1][:6]) == ("tenant,model,requests", "x,x,2,")
    [row] = (await weir(*words, "--json")).json()["rows"]
    assert (row["tenant"], row["requests"], row["spend_microusd"]) == ("x", 2, 1500)


async def test_reconcile(weir: Operator, services: tuple[Audit, Csds], store: MemoryStore, tmp_path: Path) -> None:
    audit, _ = services
    await weir("set", "tenants", "acme", "plan=paid", "time_zone=Asia/Tokyo", "--create")
    made = await weir("set", "budgets", "acme", "monthly_microusd=$5", "enforcement=hard", "--create")
    assert made.code == 0, made.err
    spend = pb.Spend(tenant="acme", day="2026-11-23", day_microusd=5, month="2026-11", month_microusd=9)
    await store.txn(puts=[Put(keys.key_of(spend), keys.encode(spend))])
    told = tmp_path / "delivered"
    told.write_text('{"request_id": "r1", "prompt_tokens": 3, "completion_tokens": 4}\n')
    while "acme" not in (await weir("get", "spend", "-o", "name")).out:  # the registry has not heard of it yet
        pass
    agreed = await weir("usage", "reconcile", "--delivered", str(told))
    assert (agreed.code, agreed.out) == (
        0,
        "2 requests of 9 records, 1 tenants with a budget, sums up to record 9: they agree\n",
    )
    left = (await weir("usage", "budgets", "-o", "csv")).out.splitlines()
    assert [left[1].split(",")[at] for at in (0, 2, 5)] == ["acme", "5000000", "refused"]
    [ledger], [delivered] = audit.compared.ledger, audit.compared.delivered
    assert (ledger.tenant, ledger.time_zone, ledger.day_microusd) == ("acme", "Asia/Tokyo", 5)
    assert (delivered.request_id, delivered.completion_tokens) == ("r1", 4)
    audit.records.differences = (records_pb2.SumDifference(subject="493000 acme", detail="requests 1 and 2"),)
    differ = await weir("usage", "reconcile")
    assert (differ.code, differ.out.splitlines()[0]) == (1, "sums: 493000 acme: requests 1 and 2")
    audit.ok = False
    differ = await weir("usage", "reconcile")
    assert (differ.code, differ.out.splitlines()[0]) == (1, "doubled: r1: twice")
    told.write_text("{}\n")
    assert (await weir("usage", "reconcile", "--delivered", str(told))).code == 2


async def test_requests(weir: Operator, services: tuple[Audit, Csds]) -> None:
    audit, _ = services
    table = (await weir("requests", "--model", "fast@1", "--outcome", "stop")).out.splitlines()
    assert [line.split()[-6:-3] for line in table[1:]] == [["acme", "fast@1", "stop"]] * 2
    assert [" r2 " in table[1], " r1 " in table[2]] == [True, True]
    assert (audit.records.asked.model, audit.records.asked.model_version) == ("", "fast@1")
    [newest] = (await weir("requests", "-n", "1", "--id", "r2", "--json")).json()["requests"]
    assert (newest["request_id"], audit.records.asked.request_id) == ("r2", "r2")
    assert (await weir("requests", "--follow", "-o", "csv")).code == 2


async def test_records_rebuild(weir: Operator, services: tuple[Audit, Csds]) -> None:
    done = await weir("records", "rebuild")
    assert not done.err
    assert (done.code, done.out) == (0, "records 1 to 9 of the audit log are projected anew\n")
    late = await weir("records", "rebuild", "--wait", "0")
    assert (late.code, "4 of 9" in late.err) == (1, True)


async def test_workers(weir: Operator, services: Any, store: MemoryStore) -> None:
    worker = pb.Endpoint(service="worker", instance="worker-0", engine="simulated", simulated=True)
    worker.model_versions.append("weir-fast@1")
    await store.txn(puts=[Put(keys.key_of(worker), keys.encode(worker))])
    await weir("set", "tenants", "acme", "plan=paid", "--create")  # once it returns, the registry has seen both
    table = await weir("workers", "-o", "wide")
    for shown in ("simulated (simulated)", "60 / 100", "40%", "25.0%", "2.0 s"):
        assert shown in table.out
    assert max(map(len, (await weir("workers")).out.splitlines())) <= 100
    [listed] = (await weir("workers", "--json")).json()["workers"]
    assert listed["model_versions"] == ["weir-fast@1"]
    assert (listed["load"]["prefix_hit_rate"], listed["load"]["preemptions_total"]) == (0.25, 9)
    del weir.services["admission-0"]
    weir.describe()
    unloaded = await weir("workers", "--json")
    assert unloaded.json()["workers"][0]["load"] is None
    assert "the load of the workers is not known" in unloaded.err


async def test_audit(weir: Operator, services: tuple[Audit, Csds]) -> None:
    audit, _ = services
    tail = (await weir("audit", "tail", "-n", "2", "-o", "wide")).out
    assert "registry.SetLimits limits/acme/* revision 9" in tail
    assert tail.splitlines()[-1].split() == ["3", "-", "-", "DAMAGED:", "the", "line", "is", "malformed"]
    records = (await weir("audit", "tail", "--tenant", "globex", "--json")).json()["records"]
    assert "request" not in records[0]["record"]
    assert records[1]["record"]["request"]["tenant"] == "globex"
    assert records[2] == {"sequence": 3, "damage": "the line is malformed"}
    assert (await weir("audit", "verify", "--json")).json()["ok"]
    audit.ok = False
    broken = await weir("audit", "verify")
    assert broken.code == 1
    assert "fault: record 2" in broken.out
    accepted = (await weir("audit", "accept", "--reason", "restored")).out
    assert accepted == "accepted: restored\nrecord 7 says so; the log takes records again\n"


async def test_xds_status(weir: Operator, services: tuple[Audit, Csds]) -> None:
    _, csds = services
    good = (await weir("xds", "status", "--json")).json()
    assert good["revision"] == 42
    assert [row["name"] for row in good["resources"]] == ["gateway", "worker"]
    told = (await weir("xds", "status")).out
    assert "ACKED" in told
    assert told.startswith(
        "good: all that is connected (1) has acknowledged all that it follows (snapshot revision 42)\n"
    )
    csds.nack = True
    bad = await weir("xds", "status", "--resources")
    assert bad.code == 1
    assert bad.out.startswith(
        "not good: 1 of 1 clients refused, and go on with what they had: envoy-0, Cluster gateway: "
    )


async def test_a_service_that_is_away_is_named(weir: Operator) -> None:
    there = weir.services["registry-0"]["address"]
    weir.services["registry-0"]["address"] = "127.0.0.1:9"
    weir.describe()
    away = await weir("get", "tenants")
    assert away.code == 1
    assert away.err.startswith("error: registry does not answer at 127.0.0.1:9; see `weir status`")
    own = weir.tls(Person(NAME))
    weir.describe(TlsFiles("/nowhere/ca", own.cert, own.key))
    assert "the certificate of tester cannot be read" in (await weir("get", "tenants")).err
    weir.services["registry-1"] = {"service": "registry", "address": there}
    weir.describe()
    assert (await weir("get", "tenants")).code == 0, "another of its processes is there"


async def test_one_that_hangs_is_left_for_another(weir: Operator) -> None:
    """It accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        address = f"127.0.0.1:{hanging.getsockname()[1]}"
        weir.services["a-registry"] = {"service": "registry", "address": address}
        weir.describe()
        assert (await weir("get", "tenants")).code == 0  # within the time of one call


@contextlib.contextmanager
def edge(status: int, body: bytes, seen: list[dict[str, Any]], reason: str = "") -> Iterator[str]:
    """An HTTP server that answers every POST alike."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["content-length"])
            seen.append({"key": self.headers["authorization"], **json.loads(self.rfile.read(length))})
            self.send_response(status)
            self.send_header("x-weir-model-version", "weir-fast@1")
            self.send_header("x-weir-simulated", "true")
            self.send_header("retry-after", "7")
            if reason:
                self.send_header("x-weir-reason", reason)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            """Says nothing."""

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


STREAM = b"".join(
    b"data: " + json.dumps(event).encode() + b"\n\n"
    for event in (
        {"model": "weir-fast", "choices": [{"index": 0, "delta": {"role": "assistant"}}]},
        {"choices": [{"index": 0, "delta": {"content": "Hello"}}]},
        {"choices": [{"index": 0, "delta": {"content": " there"}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}},
    )
)
TLS = TlsFiles("a", "b", "c")


async def test_complete_streams(tmp_path: Path) -> None:
    weir = Operator(tmp_path)
    (tmp_path / "env").write_text("export WEIR_KEY_ACME=wk_acme\n")
    seen: list[dict[str, Any]] = []
    with edge(200, b": heartbeat\n\n" + STREAM + b"data: [DONE]\n\n", seen) as url:
        weir.describe(TLS, url)
        said = await weir("complete", "Hi", "--system", "Be brief", "--max-tokens", "5", "--seed", "1")
        assert said.code == 0, said.err
        assert said.out == "Hello there\n"
        assert "(weir-fast@1, simulated, stop, 3+2 tokens" in said.err
        whole = (await weir("complete", "Hi", "--key", "wk_mine", "--json")).json()
        assert (whole["text"], whole["usage"]["total_tokens"]) == ("Hello there", 5)
        assert (await weir("complete", "Hi", "--tenant", "nobody")).code == 1
    assert [request["key"] for request in seen] == ["Bearer wk_acme", "Bearer wk_mine"]
    assert seen[0]["messages"] == [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hi"}]
    assert (seen[0]["max_tokens"], seen[0]["seed"], seen[0]["stream"]) == (5, 1, True)


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (
            429,
            b'{"error": {"message": "slow down", "code": "quota_requests", "param": "rpm"}}',
            "slow down [rpm] (QUOTA",
        ),
        (503, b"upstream is away", "upstream is away (DEPENDENCY_UNAVAILABLE); try again in 7 s"),
        (200, STREAM, "the stream broke before its end"),
        (200, b'data: {"error": {"message": "worker died", "code": "worker_lost"}}\n\n', "worker died (WORKER_LOST)"),
    ],
)
async def test_complete_fails_clearly(tmp_path: Path, status: int, body: bytes, words: str) -> None:
    weir = Operator(tmp_path)
    with edge(status, body, []) as url:
        weir.describe(TLS, url)
        failed = await weir("complete", "Hi", "--key", "wk_x")
    assert failed.code == 1
    assert words in failed.err


async def test_a_refusal_of_the_edge_is_named_by_its_reason(tmp_path: Path) -> None:
    weir = Operator(tmp_path)
    body = b'{"error": {"message": "Limit reached.", "code": "quota_tokens", "param": null}}'
    with edge(429, body, [], "QUOTA_TOKENS") as url:
        weir.describe(TLS, url)
        assert (await weir("complete", "Hi", "--key", "wk_x")).err == (
            "error: Limit reached. (QUOTA_TOKENS); try again in 7 s\n"
        )


async def test_audit_verify_offline(tmp_path: Path) -> None:
    weir = Operator(tmp_path)
    signer = load_or_create_signer(tmp_path / "keys")
    public = tmp_path / "keys" / "checkpoint.pub"
    log = AuditFiles(
        tmp_path / "log",
        tmp_path / "checkpoints",
        sign=signer,
        verify=load_verifier(public),
        now=lambda: "2026-01-01T00:00:00Z",
    )
    log.open()
    log.commit([Incoming("a", b'{"id":"a"}'), Incoming("b", b'{"id":"b"}')])
    log.close()
    given = ("--directory", str(tmp_path))
    good = (await weir("audit", "verify", *given, "--json")).json()
    assert (good["ok"], good["records"]) == (True, 2)
    # A folder that is consistent in itself may be forged as a whole: what was noted elsewhere tells.
    assert "compared with no anchor" in good["notes"][-1]
    pinned = await weir("audit", "verify", *given, "--fingerprint", good["key_fingerprint"], "--json")
    assert not pinned.json()["notes"]
    swapped = await weir("audit", "verify", *given, "--fingerprint", "0" * 64)
    assert swapped.code == 1
    assert "not the one with that fingerprint" in swapped.out
    elsewhere = (await weir("audit", "verify", "--directory", str(tmp_path / "nowhere"))).err
    assert elsewhere.endswith("nowhere/log is no folder\n")
    segment = next((tmp_path / "log").glob("*.log"))
    raw = bytearray(segment.read_bytes())
    raw[raw.index(b'"b"') + 1] ^= 1
    segment.write_bytes(raw)
    bad = await weir("audit", "verify", *given)
    assert bad.code == 1
    assert "DOES NOT HOLD" in bad.out
    assert "fault: " in bad.out


async def test_no_mesh(tmp_path: Path) -> None:
    for words in (("get", "tenants"), ("complete", "Hi"), ("workers",)):
        answer = await Operator(tmp_path)(*words)
        assert answer.code == 1
        assert "weir up" in answer.err


async def test_as_a_process(weir: Operator) -> None:
    """What is typed in a shell: exit codes, and a reader that has enough."""
    assert (await weir.process("get", "tenants")).out == "no tenants\n"
    assert (await weir.process("get", "tenats")).code == 2
    helped = await weir.process("--help")
    assert (helped.code, helped.out.count("\n  ")) == (0, len(COMMANDS))
    process = await weir.start("schema", "--all")
    assert process.stdout is not None
    await process.stdout.read(10)
    process.stdout._transport.close()  # type: ignore[attr-defined]
    _, err = await process.communicate()
    assert err == b""


async def test_simulate_and_calibrate_run_what_they_name(weir: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []

    def run(argv: list[str], **_: Any) -> Any:
        ran.append(argv[1:])
        return type("Done", (), {"returncode": 3})

    monkeypatch.setattr(apart.subprocess, "run", run)
    assert (await weir("simulate", "x.toml", "--workers", "2", "--json")).code == 3
    assert (await weir("calibrate", "--model", "m")).code == 3
    assert ran == [
        ["-m", "simulation", "x.toml", "--workers", "2", "--json"],
        ["-m", "services.worker.calibration", "--model", "m"],
    ]
    monkeypatch.setattr(apart.importlib.util, "find_spec", lambda _: None)
    assert "not installed here" in (await weir("simulate")).err
