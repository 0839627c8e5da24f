"""Every table that `weir` prints, with values as long as real ones, on terminals of 80, 100 and 140 columns.

A table without a case here fails a test, and so do columns that are made by hand.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.timestamp_pb2 import Timestamp
from weir.audit.v1 import audit_pb2
from weir.records.v1 import records_pb2
from weir.registry.v1 import registry_pb2 as pb
from weir.rollout.v1 import rollout_pb2

from libs.artifacts import gc as collecting
from libs.diagnosis import Process, overview
from libs.registry import RegistrySnapshot
from libs.resources.codec import pack
from libs.resources.kinds import KINDS
from libs.tables import Layout, layout
from libs.traces import Span
from services.cli import calls, output
from services.cli.commands import (
    audit,
    authority,
    certs,
    models_gc,
    operators,
    predict,
    predictors,
    requests,
    rollout_views,
    safety,
    schema,
    show,
    slo,
    top,
    usage,
    workers,
    xds,
)
from services.cli.explain import show as explaining
from services.cli.explain.tenant import Facts, explain
from services.cli.mesh import report, traces
from services.cli.observe import scraping
from simulation import report as simulated

ROOT = Path(__file__).parents[3]
MADE_BY = ("print_found", "print_table", "table_lines", "layout")
MODEL = "stone-search-model@2026-11-28"
TENANT = "globex-research"
WORKER = "worker-7f9c6d5b8d-x2k4q"
PERSON = "operator:alexandra.smith"
BY_TOKEN = "oidc:https://login.example.com/realms/weir#alexandra.smith"
POLICY = "customer-secrets@2026-11-01"
WHY = "the customer's migration of 28 November needs it"
NOW = time.time()
AT = Timestamp(seconds=int(NOW) - 86_400 * 40)


class Case(NamedTuple):
    run: Callable[[pytest.MonkeyPatch, Path], object]
    keeps: tuple[str, ...]
    """What stands in it at any width, whole."""


WHOLE = re.compile(r"\d[\d.,]*( (ms|s|MB))?|\d\d-\d\d \d\d:\d\d")
CASES: dict[str, Case] = {}


def case(place: str, *keeps: str) -> Callable[[Any], Any]:
    """:param place: the module and the function that make the table."""

    def known(run: Any) -> Any:
        CASES[place] = Case(run, keeps)
        return run

    return known


def registry(patch: pytest.MonkeyPatch, answer: Any, **collections: Any) -> None:
    """Services that answer all questions so, and a registry that holds that."""
    patch.setattr(calls, "ask", lambda *words, **fields: answer)
    patch.setattr(calls, "service", lambda *words: contextlib.nullcontext(lambda *words, **fields: answer))
    patch.setattr(calls, "snapshot", lambda *plurals: RegistrySnapshot(revision=1, **collections))


def endpoint(service: str) -> dict[tuple[str, str], pb.Endpoint]:
    made = pb.Endpoint(service=service, instance=WORKER, zone="europe-west4-a", pool="demo", engine="tensorrt-llm")
    made.model_versions.append(MODEL)
    failed = made.model_states.add(model_version=MODEL, state=pb.LOAD_STATE_FAILED)
    failed.detail = "the signature of model.safetensors does not fit"
    return {(service, WORKER): made}


@case("report.table", WORKER, "restarting")
def _(patch: pytest.MonkeyPatch, folder: Path) -> None:
    row = {"name": WORKER, "state": "restarting", "pid": 1234567, "restarts": 12, "uptime_s": 86_000.0}
    output.write(report.table([{**row, "address": "stone-search-7f9c6d5b8d.weir.internal:19030"}]))


@case("traces.listed", f"{7:032x}", "112300.1 ms", "DEPENDENCY_UNAVAILABLE")
def _(patch: pytest.MonkeyPatch, folder: Path) -> None:
    span = Span(
        trace_id=f"{7:032x}",
        span_id="a",
        name=f"chat {MODEL}",
        start_ns=0,
        end_ns=112_300_100_000,
        error="DEPENDENCY_UNAVAILABLE",
        attributes={"weir.tenant": TENANT, "gen_ai.response.model": MODEL},
    )
    (folder / f"{7:032x}.jsonl").write_bytes(msgspec.json.encode(span) + b"\n")
    traces.listed(folder, traces.Wanted(), output="table")


@case("show.show", MODEL, "1000000", "generate")
def _(patch: pytest.MonkeyPatch, folder: Path) -> None:
    limits = pb.Limits(tenant=TENANT, model=MODEL, requests_per_minute=60_000, tokens_per_minute=1_000_000)
    limits.spend_microusd, limits.spend_window.seconds = 20_000_000_000, 86_400 * 30
    objective = pb.Slo(route="generate", tier="fast")
    objective.ttft_p95.nanos = 500_000_000
    known = RegistrySnapshot(
        tenants={TENANT: pb.Tenant(id=TENANT, plan=pb.PLAN_PAID)},
        limits={(TENANT, MODEL): limits},
        slos={("generate", "fast"): objective},
        model_versions={MODEL: pb.ModelVersion(name=MODEL.partition("@")[0], version="2026-11-28", tier="fast")},
    )
    event = audit_pb2.RequestEvent(tenant=TENANT, model_version=MODEL, outcome="stop", prompt_tokens=123_456)
    record = audit_pb2.Record(time=Timestamp(seconds=int(NOW)), request=event)
    explaining.show(explain(Facts(known, [record], NOW), TENANT))


@case("authority.show", "controlplane", "read,")
def _(patch: pytest.MonkeyPatch, folder: Path) -> None:
    authority.show()


@case("usage.show", TENANT, MODEL, "$1234567.89")
def _(patch: pytest.MonkeyPatch, folder: Path) -> None:
    row = records_pb2.UsageRow(
        values=[TENANT, MODEL], requests=12_345_678, prompt_tokens=10**12, completion_tokens=10**12
    )
    row.spend_microusd = 1_234_567_890_000
    registry(patch, records_pb2.UsageResponse(rows=[row]))
    usage.show(by="tenant,version")


@case("usage.budgets", TENANT, "$5000.00", "$250.000001", "refused")
def _(patch: pytest.MonkeyPatch, folder: Path) -> None:
    budget = pb.Budget(tenant=TENANT, monthly_microusd=5_000_000_000, daily_microusd=250_000_001)
    registry(patch, None, tenants={TENANT: pb.Tenant(id=TENANT)}, budgets={TENANT: budget})
    usage.budgets()


@case("requests.requests", "f" * 32, "rejected_no_capacity")
def _(patch: pytest.MonkeyPatch, folder: Path) -> None:
    request = records_pb2.Request(request_id="f" * 32, time=AT, tenant=TENANT, key_id="k" * 12, model_version=MODEL)
    request.outcome, request.prompt_tokens, request.spend_microusd = "rejected_no_capacity", 123_456, 1_234_567
    request.user, request.queue_class, request.operation = "2026-11/0123456789abcdef", "over_quota", "chat"
    registry(patch, records_pb2.ListRequestsResponse(requests=[request]))
    requests.requests()


@case("predictors.predictors", WORKER, MODEL, "failed")
def _(patch: pytest.MonkeyPatch, folder: Path) -> None:
    registry(patch, None, endpoints=endpoint("predictor"))
    counted = "".join(f'weir_predictor_{name}{{model="{MODEL}"}} 1234567.5\n' for name in predictors._COUNTED)
    patch.setattr(scraping, "take", lambda at: scraping.Taken(0.0, dict.fromkeys(at, counted)))
    predictors.predictors()


@case("predict._table", "1234567", "0.987654", "systems")
def _(patch: pytest.MonkeyPatch, folder: Path) -> None:
    lines = predict._table(["count", "probability", "topic"], [[1_234_567, 0.98765432101, "systems"]])
    output.write("\n".join(lines))


@case("workers.workers", WORKER, MODEL, "signature")
def _(patch: pytest.MonkeyPatch, folder: Path) -> None:
    registry(patch, None, endpoints=endpoint("worker"))
    load = {
        **dict.fromkeys(("running", "waiting", "swapped", "preemptions_total", "prefill_tokens_per_second"), 12_345),
        **dict.fromkeys(("free_blocks", "total_blocks"), 123_456),
        **dict.fromkeys(("kv_usage", "fragmentation", "prefix_hit_rate", "decode_step"), 0.987),
        "draining": True,
        "report_age": 12.3,
        "model_versions": [],
    }
    patch.setattr(workers, "_states", lambda: ())
    patch.setattr(workers, "_load", lambda state: load)
    workers.workers()


@case("certs.show", "operator.alexandra.smith", "2027-11-28")
def _(patch: pytest.MonkeyPatch, folder: Path) -> None:
    row = {"name": "operator.alexandra.smith", "of": "spiffe://weir.internal/sa/controlplane", "serial": "0" * 40}
    patch.setattr(certs, "locate", lambda: SimpleNamespace(state=folder, tls=None))
    patch.setattr(certs, "_answering", lambda mesh: {})
    patch.setattr(certs, "_on_disk", lambda folder: {"a": {**row, "until": "2027-11-28T03:44:40Z"}})
    certs.show()


@case("schema.api_resources", "model-grants", "RolloutSwitch", "publisher")
def _(patch: pytest.MonkeyPatch, folder: Path) -> None:
    schema.api_resources()


@case("xds.status", "gateway-7f9c6d5b8d-x2k4q", "NACKED")
def _(patch: pytest.MonkeyPatch, folder: Path) -> None:
    row = {"client": "gateway-7f9c6d5b8d-x2k4q", "cluster": "gateway", "zone": "europe-west4-a"}
    row |= {"type": "ClusterLoadAssignment", "name": "controlplane.weir.internal", "version": "1234567"}
    row |= {"status": "NACKED", "error": "type.googleapis.com/envoy.config.cluster.v3.Cluster: unknown field"}
    patch.setattr(xds, "_fetch", lambda: {"revision": 1, "refused": "", "resources": [row]})
    for resources in (True, False):
        with contextlib.suppress(SystemExit):
            xds.status(resources=resources)


def policies(patch: pytest.MonkeyPatch) -> None:
    policy = pb.SafetyPolicy(id="customer-secrets", version="2026-11-01")
    policy.rules.add(
        id="international-bank-account",
        category="pii.international_bank_account",
        pattern=r"\b[A-Z]{2}[0-9]{2}(?:[ ]?[0-9A-Z]{4}){4,7}[0-9A-Z]{0,3}\b",
        action="redact",
        stage="both",
        replacement="[international-bank-account]",
    )
    registry(
        patch,
        None,
        safety_policies={POLICY: policy},
        tenants={TENANT: pb.Tenant(id=TENANT, safety_policies=[POLICY])},
        model_versions={MODEL: pb.ModelVersion(safety_policies=[POLICY])},
    )


@case("safety.list_", POLICY, TENANT, MODEL)
def _(patch: pytest.MonkeyPatch, folder: Path) -> None:
    policies(patch)
    safety.list_()


@case("safety.show", "international-bank-account", "pii.international_bank_account", "[A-Z]{2}[0-9]{2}(?:[")
def _(patch: pytest.MonkeyPatch, folder: Path) -> None:
    policies(patch)
    safety.show(POLICY)


@case("safety.try_", "international-bank-account", POLICY, "redact")
def _(patch: pytest.MonkeyPatch, folder: Path) -> None:
    policies(patch)
    safety.try_("DE89370400440532013000", TENANT)


@case("show.history", "11-19 03:44", "models/stone-search-model@2026-11-28", "1234567")
def _(patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.setattr(time, "gmtime", lambda *_: time.struct_time((2026, 11, 28, 0, 0, 0, 0, 0, 0)))
    entry = SimpleNamespace(revision=1234567, at=Timestamp(seconds=1795059880), actor=PERSON, action="registry.Apply")
    entry.id, entry.reason = "0123", WHY
    entry.changes = [SimpleNamespace(resource=f"models/{MODEL}", before="", after="{}")] * 2
    registry(patch, SimpleNamespace(entries=[entry]))
    show.history()


def filled(message: Any, depth: int = 3) -> Any:
    """Every field of it, with two of each where there may be several."""
    texts = {"tenant": TENANT, "principal": BY_TOKEN, "address": "stone-search-7f9c6d5b8d.weir.internal:19030"}
    for field in message.DESCRIPTOR.fields:
        if field.message_type is not None:
            if depth and field.is_repeated and not field.message_type.GetOptions().map_entry:
                for _ in range(2):
                    filled(getattr(message, field.name).add(), depth - 1)
            elif depth and not field.is_repeated:
                filled(getattr(message, field.name), depth - 1)
            continue
        value: Any = texts.get(field.name, MODEL if "version" in field.name else "customer-secrets")
        if field.enum_type is not None:
            value = field.enum_type.values[-1].number
        elif field.type in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT):
            value = 0.123456
        elif field.type == FieldDescriptor.TYPE_BOOL:
            value = True
        elif field.type == FieldDescriptor.TYPE_BYTES:
            value = b"x"
        elif field.type != FieldDescriptor.TYPE_STRING:
            value = 999_999 if field.name == "nanos" else 1_795_059_880
        if field.is_repeated:
            getattr(message, field.name).extend([value, value])
        elif field.containing_oneof is None or message.WhichOneof(field.containing_oneof.name) is None:
            setattr(message, field.name, value)
    return message


@case("show.print_resources", MODEL, f"{TENANT}/customer-secrets", BY_TOKEN)
def _(patch: pytest.MonkeyPatch, folder: Path) -> None:
    for kind in KINDS:
        show.print_resources([kind], [pack(filled(kind.message()))])


@case("rollout_views.status_lines", MODEL, WORKER, "canary-of-november", "roll back", "11-19 03:44")
def _(patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.setattr(time, "gmtime", lambda *_: time.struct_time((2026, 11, 28, 0, 0, 0, 0, 0, 0)))
    made = rollout_pb2.RolloutStatus()
    arm = made.arms.add(arm="canary-of-november", model_version=MODEL, weight=1000, requests=1_234_567)
    arm.measured_share, arm.error_rate, arm.cost_per_1k_tokens = 1234, 0.1234, 123_456
    arm.ttft_p50 = arm.ttft_p95 = arm.itl_p50 = 0.0123
    arm.scores["helpful"] = 0.98765
    gate = made.gates.add(arm="canary-of-november", low=-float("inf"), high=123.4, samples=10**6)
    gate.gate.metric, gate.baseline_samples = "stream_completion", 10**6
    made.workers.add(worker=WORKER, zone="europe-west4-a").state.CopyFrom(
        endpoint("worker")["worker", WORKER].model_states[0]
    )
    decision = made.decisions.add(kind="roll_back", text="the TTFT is 1.4 times the baseline's", by=BY_TOKEN)
    decision.revision, decision.at.seconds = 1234567, 1795059880
    output.write("\n".join(rollout_views.status_lines(made)))


@case("models_gc.gc", MODEL, "stays", "would go")
def _(patch: pytest.MonkeyPatch, folder: Path) -> None:
    kept = collecting.Kept(MODEL, (f"alias {MODEL.partition('@')[0]}", f"{WORKER} has it"))
    plan = collecting.Plan((collecting.Doomed(MODEL, "nobody needs it since 2026-11-01"),), (kept,))
    done = collecting.Collected(plan, (MODEL,), {}, (), (), 0)

    async def collect(*words: Any, **fields: Any) -> Any:
        return done

    patch.setattr(collecting, "collect", collect)
    patch.setattr(models_gc, "open_blobs", lambda name: SimpleNamespace(close=lambda: asyncio.sleep(0)))
    registry(patch, None)
    models_gc.gc(dry_run=True)


@case("slo.print_budgets", "generate", "stream_completion", "none, 12.3")
def _(patch: pytest.MonkeyPatch, folder: Path) -> None:
    one = pb.ObjectiveBudget(objective="stream_completion", consumed=12.3, good=10**9, bad=10**6, alert="ticket")
    for window in ("5m", "30m", "1h", "2h", "6h", "1d", "3d"):
        one.burn_rates[window] = 1234.5
    slo.print_budgets([pb.ErrorBudget(route="generate", tier="quality", objectives=[one])])


@case("top._table", TENANT, WORKER, "REJECTED_QUEUE_FULL", "99 s", "1234.50", "canary", "98%")
def _(patch: pytest.MonkeyPatch, folder: Path) -> None:
    plane = overview.Plane("generate", 1234.5, 12.3, 98_765.4, 0.1234, 99.1)
    who = overview.Tenant(TENANT, 1234.5, 12.3, 98_765.4, 1234.5, 12.3)
    busy = overview.Serving(Process(WORKER, "worker"), 0.987, 256, 128, 0.999, (MODEL, MODEL))
    idle = overview.Serving(Process("predictor-a", "predictor"), 0.0, 0, 0, math.nan, ())
    queue = overview.Queue("stone-search", 1234, 12.3, 0.123)
    binds = ("decode", "queue")
    rollout = overview.Rollout("stone-search", "canary", (("baseline", MODEL, 0.9), ("canary", MODEL, 0.1)))
    spent = overview.Spent(f"{TENANT} this month", 0.98)
    found = overview.Overview(
        *((plane,), (("REJECTED_QUEUE_FULL", 12.3),), (queue,), (busy, idle), (who,), (WORKER,), binds),
        *((rollout,), (spent,)),
    )
    output.write("\n".join(top.frame(found, ["11-28 03:44 something happened"])))


@case("operators.list_", BY_TOKEN, "publisher, releaser")
def _(patch: pytest.MonkeyPatch, folder: Path) -> None:
    row = {"principal": BY_TOKEN, "roles": ["publisher", "releaser"], "namespaces": ["stone-search"]}
    row |= {"tenants": [TENANT], "certificate_until": "2027-11-28T03:44:40Z", "changed": "", "changed_by": PERSON}
    registry(patch, None)
    patch.setattr(calls, "listing", lambda *words: ([pb.Resource()], 1))
    patch.setattr(operators, "_row", lambda *words: row)
    operators.list_()


@case("audit.tail", MODEL, "1234567", "11-19 03:44", "DAMAGED:")
def _(patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.setattr(time, "gmtime", lambda *_: time.struct_time((2026, 11, 28, 0, 0, 0, 0, 0, 0)))
    event = audit_pb2.RequestEvent(tenant=TENANT, operation="chat", model_version=MODEL, outcome="stop")
    record = audit_pb2.Record(source="gateway/gateway-7f9c6d5b8d-x2k4q", time=Timestamp(seconds=1795059880))
    record.request.CopyFrom(event)
    records = [
        audit_pb2.StoredRecord(sequence=1234567, record=record),
        audit_pb2.StoredRecord(sequence=1234568, damage="the line is malformed"),
    ]
    registry(patch, audit_pb2.TailResponse(records=records))
    audit.tail()


@case("report._table", TENANT, "1234567", "12%")
def _(patch: pytest.MonkeyPatch, folder: Path) -> None:
    named = dict.fromkeys(("offered", "served", "good", "failed", "prompt_tokens", "output_tokens"), 1_234_567)
    timed = dict.fromkeys(("ttft_p50", "ttft_p95", "ttft_p99", "itl_p95", "goodput_per_s"), 123.456)
    row = {**named, **timed, "refused": {"REJECTED_QUEUE_FULL": 12}, "interrupted": 0, "moved": 0, "second": 12}
    who = {"tenant": TENANT, "queue_class": "interactive"}
    gap = {"tenants": [TENANT, "acme-production"], "queue_class": "interactive", "over_bound": 0.1234}
    gap |= dict.fromkeys(("gap", "bound", "burst", "overtaken"), 12_345_678.9)
    told = {"tenants": [{**row, **who, "failed": {}}], "total": row, "service_gaps": [gap], "timeline": [row]}
    lines = [*simulated._tenants(told), *simulated._gaps(told), *simulated._timeline(told)]
    output.write("\n".join(lines))


def _sources() -> Iterator[Path]:
    yield from sorted((ROOT / "services/cli").rglob("*.py"))
    yield ROOT / "simulation/report.py"


def _functions() -> Iterator[tuple[str, ast.AST]]:
    for path in _sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path.stem}.{node.name}", node


@cache
def tables() -> dict[str, int]:
    """Where tables are made, and how many."""
    found: dict[str, int] = {}
    for place, function in _functions():
        made = [each for each in ast.walk(function) if isinstance(each, ast.Call) and _name(each) in MADE_BY]
        if made and not place.startswith("output."):
            found[place] = len(made)
    return found


def _name(call: ast.Call) -> str:
    return getattr(call.func, "id", getattr(call.func, "attr", ""))


def test_every_table_has_a_case() -> None:
    assert set(CASES) == set(tables())


BY_HAND = {"output.print_fields", "app.overview", "words.lines", "rollout_views.status_lines"}
"""Names and values below one another, and the list of commands: no tables."""


def test_columns_are_made_nowhere_else() -> None:
    found = set()
    for place, function in _functions():
        for node in ast.walk(function):
            padded = isinstance(node, ast.Call) and _name(node) in ("ljust", "rjust", "center")
            if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
                padded = ast.unparse(node.format_spec)[2:3] in "<>^"
            found |= {place} if padded else set()
    assert found <= BY_HAND


@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize("place", sorted(CASES))
def test_it_can_be_read(
    place: str, width: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn: list[tuple[Sequence[Sequence[str]], Sequence[str], Layout]] = []

    def recorded(rows: Sequence[Sequence[str]], columns: int | None, least: Sequence[str] = ()) -> Layout:
        drawn.append((rows, least, layout(rows, columns, least)))
        return drawn[-1][-1]

    for module in (output, simulated):
        monkeypatch.setattr(module, "layout", recorded)
        monkeypatch.setattr(module, "terminal_width", lambda: width)
    CASES[place].run(monkeypatch, tmp_path)
    out = capsys.readouterr().out
    assert len(drawn) >= tables()[place]
    for rows, least, found in drawn:
        lines = [*found.headings, *found.body]
        assert max(map(len, lines)) <= width, "\n".join(lines)
        _is_whole(rows, found)
        assert width < 140 or not found.gone or _widest(rows) > width
        assert set(found.gone) <= set(least)
    for word in CASES[place].keeps:
        assert word in out, out


def _widest(rows: Sequence[Sequence[str]]) -> int:
    return sum(2 + max(map(len, column)) for column in zip(*rows, strict=True)) - 2


def _is_whole(rows: Sequence[Sequence[str]], found: Layout) -> None:
    """Each word of what is shown stands in a line, and numbers with their units and times do so together."""
    text = "\n".join([*found.headings, *found.body])
    for row in rows:
        for heading, cell in zip(rows[0], row, strict=True):
            if heading not in found.gone:
                assert all(word in text for word in cell.split()), cell
                assert cell in text or not WHOLE.fullmatch(cell), cell


def test_numbers_end_in_one_column() -> None:
    rows = [["NAME", "REQUESTS", "P95"], ["acme", "12", "5 ms"], ["globex", "1,234", "-"]]
    found = layout(rows, 80)
    assert found.headings == ["NAME    REQUESTS   P95"]
    assert found.body == ["acme          12  5 ms", "globex     1,234     -"]
    assert layout([["A", "AT"], ["x", "11-19 03:44"]], 80).headings == ["A  AT"], "a time is no number"


def test_a_number_stays_with_its_unit_and_a_day_with_its_time() -> None:
    rows = [["A", "B", "C"], ["11-19 03:44", "12.5 ms", "a text of words"]]
    assert layout(rows, 26).body[0] == "11-19 03:44  12.5 ms  a"


def test_times_of_today_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "gmtime", lambda *_: time.struct_time((2026, 11, 28, 0, 0, 0, 0, 0, 0)))
    assert output.short("2026-11-28T03:44:40.123Z") == "03:44:40"
    assert output.short("2026-11-19T03:44:40.123Z") == "11-19 03:44"
    assert output.short("2027-01-02T03:44:40.123Z") == "2027-01-02"
    assert output.short("2026-11-28T03:44:40.123Z", wide=True) == "2026-11-28T03:44:40Z"
    assert output.short("") == ""
