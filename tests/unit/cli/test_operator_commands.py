"""The operators' commands as processes, against real servers with mTLS: the registry itself, and small servers with
the protocols of the audit log, the control plane and the edge."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import json
import os
import sys
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
from weir.registry.v1 import registry_pb2 as pb

from libs.auditlog import AuditFiles, load_or_create_signer, load_verifier
from libs.config import TlsFiles
from libs.pki import issue
from libs.registry import MemoryStore, Put, keys
from libs.rpc import make_server
from libs.rpc.server import bind
from libs.service.process import serve
from services.registry.app import build
from services.registry.config import Settings

ROOT = Path(__file__).resolve().parents[3]


class Answer:
    """What a command did."""

    def __init__(self, code: int, out: bytes, err: bytes) -> None:
        self.code, self.out, self.err = code, out.decode(), err.decode()

    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


class Cli:
    """Runs `weir` for a state directory."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.services: dict[str, dict[str, str]] = {}

    def describe(self, tls: TlsFiles, edge_url: str = "http://127.0.0.1:9") -> None:
        self.tls = tls
        file = {
            "services": self.services,
            "edge_url": edge_url,
            "tls": {"ca": tls.ca, "cli_cert": tls.cert, "cli_key": tls.key},
        }
        (self.state / "mesh.json").write_text(json.dumps(file))

    async def __call__(self, *arguments: str) -> Answer:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "services.cli",
            *arguments,
            cwd=ROOT,
            env={**os.environ, "WEIR_STATE_DIR": str(self.state), "COLUMNS": "200"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), 60)
        return Answer(process.returncode or 0, out, err)


class Audit(audit_pb2_grpc.AuditServiceServicer):
    """Answers Tail and Verify."""

    ok = True

    async def Tail(self, request: audit_pb2.TailRequest, context: Any) -> audit_pb2.TailResponse:  # noqa: N802
        admin = audit_pb2.AdminEvent(actor="key:k1", action="registry.SetLimits", resource="limits/acme/*", revision=9)
        event = audit_pb2.RequestEvent(
            tenant=request.tenant or "acme", model_version="weir-fast@1", operation="chat", outcome="stop"
        )
        records = [audit_pb2.Record(id="a", source="registry/r0", admin=admin), audit_pb2.Record(id="b", request=event)]
        return audit_pb2.TailResponse(
            records=[audit_pb2.StoredRecord(sequence=n, record=r) for n, r in enumerate(records, 1)]
        )

    async def Verify(self, request: audit_pb2.VerifyRequest, context: Any) -> audit_pb2.VerifyResponse:  # noqa: N802
        return audit_pb2.VerifyResponse(ok=self.ok, records=2, checkpoints=1, faults=[] if self.ok else ["record 2"])


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
async def cli(tmp_path: Path) -> AsyncIterator[tuple[Cli, MemoryStore, Audit, Csds]]:
    pki = tmp_path / "pki"

    def tls(name: str) -> TlsFiles:
        files = issue(pki, name)
        return TlsFiles(files.ca, files.cert, files.key)

    (tmp_path / "pepper").write_text("0123456789abcdef")
    config = Settings(
        service="registry",
        instance="registry-0",
        tls=tls("registry"),
        pepper_file=str(tmp_path / "pepper"),
        audit_target="",
        drain_seconds=0.1,
    )
    store, audit, csds = MemoryStore(), Audit(), Csds()
    command = Cli(tmp_path)
    async with contextlib.AsyncExitStack() as stack:
        running = await stack.enter_async_context(serve(await build(config, store=store), config))
        for name, add in (
            (
                "admission",
                lambda server: admission_pb2_grpc.add_AdmissionServiceServicer_to_server(Admission(), server),
            ),
            ("audit", lambda server: audit_pb2_grpc.add_AuditServiceServicer_to_server(audit, server)),
            (
                "controlplane",
                lambda server: csds_pb2_grpc.add_ClientStatusDiscoveryServiceServicer_to_server(csds, server),
            ),
        ):
            server: grpc.aio.Server = make_server()
            add(server)
            port = bind(server, "127.0.0.1:0", tls=tls(name))
            await server.start()
            stack.push_async_callback(server.stop, None)
            command.services[f"{name}-0"] = {"service": name, "address": f"127.0.0.1:{port}"}
        command.services["registry-0"] = {"service": "registry", "address": f"127.0.0.1:{running.port}"}
        command.describe(tls("cli"))
        await asyncio.wait_for(running.ready.wait(), 10)
        yield command, store, audit, csds


async def test_tenants_keys_and_limits(cli: tuple[Cli, MemoryStore, Audit, Csds]) -> None:
    weir = cli[0]
    assert (await weir("tenants")).out.strip() == "no tenants"
    made = (await weir("tenants", "set", "acme", "--plan", "paid", "--weight", "2", "--json")).json()
    assert (made["plan"], made["weight"]) == ("PLAN_PAID", 2.0)
    changed = (await weir("--json", "tenants", "set", "acme", "--max-deadline", "1.5", "--audit-required")).json()
    # What was not given stays.
    assert (changed["plan"], changed["max_deadline"], changed["audit_required"]) == ("PLAN_PAID", 1.5, True)
    stale = await weir("tenants", "set", "acme", "--weight", "3", "--revision", str(made["revision"]))
    assert stale.code == 1
    assert stale.err.startswith("error: tenants/acme is at revision")
    assert stale.err.count("\n") == 1
    assert "(CONFLICT)" in stale.err
    assert "acme" in (await weir("tenants", "list")).out

    limits = (await weir("limits", "set", "acme", "--rpm", "3", "--tpm", "200", "--json")).json()
    assert (limits["requests_per_minute"], limits["tokens_per_minute"], limits["model"]) == (3, 200, "*")
    more = (await weir("limits", "set", "acme", "--concurrency", "1", "--json")).json()
    assert (more["requests_per_minute"], more["concurrency"]) == (3, 1)
    assert "unlimited" in (await weir("limits", "list")).out

    key = await weir("keys", "create", "acme", "--scope", "inference", "--ttl", "1h", "--note", "test")
    secret = key.out.strip()
    assert secret.startswith("wk_")
    assert secret.rsplit("_", 1)[1] not in key.err
    listed = (await weir("keys", "list", "--tenant", "acme", "--json")).json()["keys"]
    assert [each["id"] for each in listed] == [secret.split("_")[1]]
    assert "hash" not in listed[0]
    assert "is revoked" in (await weir("keys", "revoke", secret)).out
    assert (await weir("keys", "list", "--json")).json()["keys"][0]["revoked_at"]
    for bad, word in (
        (("keys", "create", "gone"), "no tenant"),
        (("keys", "create", "acme", "--scope", "root"), "'root'"),
        (("keys", "revoke", "gone"), "no key"),
        (("limits", "set", "gone", "--rpm", "1"), "no tenant"),
        (("tenants", "set", "No"), "lower case"),
    ):
        answer = await weir(*bad)
        assert answer.code == 1
        assert answer.err.startswith("error: ")
        assert word in answer.err
    for usage in (("keys", "create", "acme", "--ttl", "soon"), ("tenants", "set", "acme", "--plan", "gold")):
        assert (await weir(*usage)).code == 2


async def test_changes_can_be_tried_and_say_why(cli: tuple[Cli, MemoryStore, Audit, Csds]) -> None:
    weir = cli[0]
    await weir("tenants", "set", "acme", "--reason", "they pay")
    secret = (await weir("keys", "create", "acme", "--reason", "they asked")).out.strip()
    for trial in (
        ("tenants", "set", "globex"),
        ("limits", "set", "acme", "--rpm", "3"),
        ("plans", "set", "gold"),
        ("slos", "set", "generate", "--availability", "0.99"),
        ("prices", "set", "*", "--input", "1"),
    ):
        answer = await weir(*trial, "--dry-run")
        assert (answer.code, answer.err) == (0, "nothing was changed: a dry run\n")
    tried = await weir("keys", "create", "acme", "--dry-run")
    assert "would be made" in tried.out
    assert "wk_" not in tried.out + tried.err
    assert "would be revoked" in (await weir("keys", "revoke", secret, "--dry-run")).out
    refused = await weir("limits", "set", "globex", "--rpm", "3", "--dry-run")
    assert (refused.code, "no tenant" in refused.err) == (1, True)
    history = (await weir("registry", "history", "--json")).json()["entries"]
    assert [entry["reason"] for entry in history] == ["they asked", "they pay"]


async def test_plans_objectives_prices_spend_and_levels(cli: tuple[Cli, MemoryStore, Audit, Csds]) -> None:
    weir, store = cli[0], cli[1]
    for name in ("weir-fast", "weir-quality"):
        alias = pb.Alias(name=name, targets=[pb.AliasTarget(model_version=f"{name}@1", weight=100)])
        await store.txn(puts=[Put(keys.key_of(alias), keys.encode(alias))])
    steps = ("--step", "cap_output=64@0.5", "--step", "smaller_model=weir-quality:weir-fast")
    made = (await weir("plans", "set", "gold", "--weight", "4", "--over-quota", "serve-idle", *steps, "--json")).json()
    assert (made["weight"], made["over_quota"]) == (4.0, "OVER_QUOTA_SERVE_IDLE")
    assert made["ladder"][1] == {"smaller_model": {"models": {"weir-quality": "weir-fast"}}}
    changed = (await weir("plans", "set", "gold", "--kv-share", "0.5", "--json")).json()
    assert (changed["kv_share"], len(changed["ladder"]), changed["weight"]) == (0.5, 2, 4.0)
    assert "cap_output=64@0.5 → smaller_model=weir-quality:weir-fast" in (await weir("plans", "list")).out
    bad = await weir("plans", "set", "gold", "--step", "smaller_model=gone:weir-fast")
    assert (bad.code, "[plan.ladder[0].smaller_model.models[gone]]" in bad.err) == (1, True)
    assert (await weir("plans", "set", "gold", "--no-steps", "--json")).json()["ladder"] == []
    assert (await weir("tenants", "set", "acme", "--plan-policy", "gold", "--json")).json()["plan_policy"] == "gold"

    slo = (
        await weir("slos", "set", "generate", "fast", "--ttft-p95", "500ms", "--availability", "0.99", "--json")
    ).json()
    assert (slo["ttft_p95"], slo["availability"], slo["itl_p95"]) == (0.5, 0.99, None)
    slo = (await weir("slos", "set", "generate", "fast", "--ttft-p95", "0", "--itl-p95", "50ms", "--json")).json()
    assert (slo["ttft_p95"], slo["availability"], slo["itl_p95"]) == (None, 0.99, 0.05)
    assert "50 ms" in (await weir("slos")).out

    price = (await weir("prices", "set", "weir-fast", "--input", "0.10", "--output", "$0.40", "--json")).json()
    assert (price["input_microusd_per_million"], price["output_microusd_per_million"]) == (100_000, 400_000)
    assert "$0.40" in (await weir("prices")).out
    assert "as the price" in (await weir("prices")).out
    costly = (await weir("prices", "set", "weir-fast", "--input-cost", "0.05", "--output-cost", "0.2", "--json")).json()
    assert (costly["input_cost_microusd_per_million"], costly["input_microusd_per_million"]) == (50_000, 100_000)
    assert "$0.05 / $0.20" in (await weir("prices")).out

    limits = (await weir("limits", "set", "acme", "--spend", "0.02", "--spend-window", "1h", "--json")).json()
    assert (limits["spend_microusd"], limits["spend_window"]) == (20_000, 3600.0)
    assert "$0.02 per 1 h" in (await weir("limits", "list")).out
    limits = (await weir("limits", "set", "acme", "--spend-window", "0", "--json")).json()
    assert (limits["spend_microusd"], limits["spend_window"]) == (20_000, None)

    level = pb.PoolLevel(pool="demo", tenants=[pb.TenantLevel(tenant="acme", shed=0.4)])
    await store.txn(puts=[Put(keys.key_of(level), keys.encode(level))])
    await weir("tenants", "set", "other")  # once it returns, the registry has seen the level too
    assert (await weir("levels", "--json")).json()["levels"][0]["tenants"][0]["shed"] == 0.4
    assert "acme" in (await weir("levels")).out


async def test_explain_a_tenant(cli: tuple[Cli, MemoryStore, Audit, Csds]) -> None:
    weir, store = cli[0], cli[1]
    worker = pb.Endpoint(service="gateway", instance="gateway-0", metrics_address="127.0.0.1:9")
    await store.txn(puts=[Put(keys.key_of(worker), keys.encode(worker))])
    await weir("tenants", "set", "acme", "--plan", "paid")
    told = (await weir("tenants", "explain", "acme", "--json")).json()
    assert (told["plan"]["id"], told["recent"]["outcomes"], told["mesh"]) == ("paid", {"stop": 1}, {})
    assert "! nobody can act as it" in (await weir("tenants", "explain", "acme")).out
    assert (await weir("tenants", "explain", "gone")).err == "error: no tenant is called 'gone'\n"
    del weir.services["audit-0"]
    weir.describe(weir.tls)
    blind = await weir("tenants", "explain", "acme")
    assert blind.code == 0
    assert "the audit log cannot be asked" in blind.err


async def test_models_workers_and_endpoints(cli: tuple[Cli, MemoryStore, Audit, Csds]) -> None:
    weir, store = cli[0], cli[1]
    for version in ("1", "2"):
        model = pb.ModelVersion(name="weir-fast", version=version, tier="fast", pool="p", digest="d" * 64)
        await store.txn(puts=[Put(keys.key_of(model), keys.encode(model))])
    worker = pb.Endpoint(service="worker", instance="worker-0", engine="simulated", simulated=True)
    worker.model_versions.append("weir-fast@1")
    await store.txn(puts=[Put(keys.key_of(worker), keys.encode(worker))])
    pointed = await weir("models", "alias", "weir-fast", "weir-fast@1=90", "weir-fast@2=10:canary", "--revision", "0")
    assert "weir-fast@2=10% (canary)" in pointed.out
    assert (await weir("models", "alias", "weir-fast", "weir-fast@1=x")).code == 1
    assert "must sum to 100" in (await weir("models", "alias", "weir-fast", "weir-fast@1=1")).err
    table = (await weir("models")).out
    assert "weir-fast@2" in table
    assert "dddddddddddd" in table
    assert (await weir("models", "show", "weir-fast@1", "--json")).json()["tier"] == "fast"
    assert "canary" in (await weir("models", "show", "weir-fast")).out
    assert (await weir("models", "show", "gone")).code == 1
    table = (await weir("workers")).out
    for shown in ("simulated (simulated)", "60 / 100", "40%", "25.0%", "2.0 s"):
        assert shown in table
    [listed] = (await weir("workers", "--json")).json()["workers"]
    assert listed["model_versions"] == ["weir-fast@1"]
    assert (listed["load"]["prefix_hit_rate"], listed["load"]["preemptions_total"]) == (0.25, 9)
    del weir.services["admission-0"]
    weir.describe(weir.tls)
    unloaded = await weir("workers", "--json")
    assert unloaded.json()["workers"][0]["load"] is None
    assert "the load of the workers is not known" in unloaded.err
    assert "worker-0" in (await weir("endpoints", "--service", "worker")).out


async def test_audit(cli: tuple[Cli, MemoryStore, Audit, Csds], tmp_path: Path) -> None:
    weir, _, audit, _ = cli
    tail = (await weir("audit", "tail", "-n", "2")).out
    assert "registry.SetLimits limits/acme/* revision 9" in tail
    records = (await weir("audit", "tail", "--tenant", "globex", "--json")).json()["records"]
    assert "request" not in records[0]["record"]
    assert records[1]["record"]["request"]["tenant"] == "globex"
    assert (await weir("audit", "verify", "--json")).json()["ok"]
    audit.ok = False
    broken = await weir("audit", "verify")
    assert broken.code == 1
    assert "fault: record 2" in broken.out


async def test_xds_status(cli: tuple[Cli, MemoryStore, Audit, Csds]) -> None:
    weir, _, _, csds = cli
    good = (await weir("xds", "status", "--json")).json()
    assert good["revision"] == 42
    assert [row["name"] for row in good["resources"]] == ["gateway", "worker"]
    assert "ACKED" in (await weir("xds", "status")).out
    csds.nack = True
    assert (await weir("xds", "status", "--resources")).code == 1


async def test_a_service_that_is_away_is_named(cli: tuple[Cli, MemoryStore, Audit, Csds], tmp_path: Path) -> None:
    weir = cli[0]
    weir.services["registry-0"]["address"] = "127.0.0.1:9"
    files = issue(tmp_path / "pki", "cli")
    weir.describe(TlsFiles(files.ca, files.cert, files.key))
    away = await weir("tenants")
    assert away.code == 1
    assert away.err.startswith("error: registry does not answer at 127.0.0.1:9")
    weir.describe(TlsFiles("/nowhere/ca", files.cert, files.key))
    assert "certificates cannot be read" in (await weir("tenants")).err


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
    weir = Cli(tmp_path)
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
    weir = Cli(tmp_path)
    with edge(status, body, []) as url:
        weir.describe(TLS, url)
        failed = await weir("complete", "Hi", "--key", "wk_x")
    assert failed.code == 1
    assert words in failed.err


async def test_a_refusal_of_the_edge_is_named_by_its_reason(tmp_path: Path) -> None:
    weir = Cli(tmp_path)
    body = b'{"error": {"message": "Limit reached.", "code": "quota_tokens", "param": null}}'
    with edge(429, body, [], "QUOTA_TOKENS") as url:
        weir.describe(TLS, url)
        assert (await weir("complete", "Hi", "--key", "wk_x")).err == (
            "error: Limit reached. (QUOTA_TOKENS); try again in 7 s\n"
        )


async def test_audit_verify_offline(tmp_path: Path) -> None:
    weir = Cli(tmp_path)
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
    log.commit([("a", b'{"id":"a"}'), ("b", b'{"id":"b"}')])
    log.close()
    given = ("--directory", str(tmp_path))
    good = (await weir("audit", "verify", *given, "--json")).json()
    assert (good["ok"], good["records"]) == (True, 2)
    elsewhere = (await weir("audit", "verify", *given, "--log", str(tmp_path / "nowhere"))).err
    assert elsewhere.endswith("nowhere is no folder\n")
    segment = next((tmp_path / "log").glob("*.log"))
    raw = bytearray(segment.read_bytes())
    raw[raw.index(b'"b"') + 1] ^= 1
    segment.write_bytes(raw)
    bad = await weir("audit", "verify", *given)
    assert bad.code == 1
    assert "DOES NOT HOLD" in bad.out
    assert "fault: " in bad.out


async def test_no_mesh(tmp_path: Path) -> None:
    answer = await Cli(tmp_path)("models")
    assert answer.code == 1
    assert "weir up" in answer.err
