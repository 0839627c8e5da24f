"""What `weir workers` shows: the registry's workers joined with what admission was told."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from typing import Any, cast

from google.protobuf.duration_pb2 import Duration
from weir.admission.v1 import admission_pb2 as admission
from weir.registry.v1 import registry_pb2 as registry

from libs.resources.codec import pack
from libs.resources.forms import plain
from services.cli import calls
from services.cli.commands import workers
from services.cli.output import print_table


def endpoint(name: str, **fields: Any) -> dict[str, Any]:
    made = registry.Endpoint(
        service="worker", instance=name, zone="zone-a", pool="demo", engine="torch", model_versions=["m@1"]
    )
    for field, value in fields.items():
        setattr(made, field, value)
    return plain(made, unset=True)


def state(name: str, *, told: bool = True, draining: bool = False, **report: Any) -> dict[str, Any]:
    hello = admission.WorkerHello(
        worker=name, zone="zone-b", pool="demo", engine="torch", model_versions=["m@2"], total_blocks=200, block_size=16
    )
    made = admission.WorkerState(hello=hello, draining=draining, held_sequences=3, held_blocks=30)
    if told:
        made.report.CopyFrom(admission.CapacityReport(free_blocks=150, **report))
        made.report_age.CopyFrom(Duration(nanos=400_000_000))
    return plain(made, unset=True)


def table(rows: list[dict[str, Any]]) -> list[str]:
    """The printed lines, cells between single bars."""
    out = io.StringIO()
    with redirect_stdout(out):
        print_table(workers._COLUMNS, map(workers.cells, rows), empty="none", wide=True)
    return out.getvalue().splitlines()


def test_a_worker_is_shown_with_its_last_report() -> None:
    report = {
        "running": 4,
        "waiting": 2,
        "swapped": 1,
        "fragmentation": 0.125,
        "prefix_queried_total": 1000,
        "prefix_hit_total": 333,
        "preemptions_total": 7,
        "prefill_tokens_per_second": 1234.4,
        "decode_step": Duration(nanos=6_500_000),
    }
    [row] = workers.merged([endpoint("w0")], [state("w0", **report)])
    shown = dict(zip(workers._COLUMNS, workers.cells(row), strict=True))
    assert shown == {
        "WORKER": "w0",
        "ZONE": "zone-a",
        "POOL": "demo",
        "ENGINE": "torch",
        "MODELS": ["m@1"],
        "STATE": "ready",
        "RUN": 4,
        "WAIT": 2,
        "SWAP": 1,
        "KV FREE": "150 / 200",
        "KV USED": "25%",
        "FRAG": "12%",
        "HITS": "33.3%",
        "PREEMPT": 7,
        "STEP": "6.5 ms",
        "PREFILL/S": "1234",
        "AGE": "0.4 s",
        "NUMERICS": [],
    }
    load = row["load"]
    assert (load["held_sequences"], load["held_blocks"], load["block_size"]) == (3, 30, 16)
    assert (load["report_age"], load["decode_step"], load["kv_usage"]) == (0.4, 0.0065, 0.25)
    json.dumps(row)


def test_what_is_not_known_is_not_shown_as_zero() -> None:
    quiet, unasked, joining = workers.merged(
        [endpoint("a", engine="simulated", simulated=True), endpoint("b"), endpoint("c")],
        [state("a"), state("c", told=False)],
    )
    shown = dict(zip(workers._COLUMNS, workers.cells(quiet), strict=True))
    assert shown["ENGINE"] == "simulated (simulated)"
    assert [shown[name] for name in ("HITS", "STEP", "PREFILL/S")] == [None, None, None]
    assert (shown["RUN"], shown["PREEMPT"]) == (0, 0)
    assert unasked["load"] is None
    assert "unreported" in workers.cells(unasked)
    assert "joining" in workers.cells(joining)
    lines = table([quiet, unasked, joining])
    assert len([line for line in lines if " m@1 " in line]) == 3


def test_what_a_worker_says_that_it_has_ready_goes_before_what_it_registered_with() -> None:
    [row] = workers.merged([endpoint("w0")], [state("w0", model_versions=["m@1", "m@3"])])
    assert dict(zip(workers._COLUMNS, workers.cells(row), strict=True))["MODELS"] == ["m@1", "m@3"]


def test_versions_that_are_not_ready_are_listed_with_the_reason() -> None:
    made = registry.Endpoint(service="worker", instance="w0", model_versions=["m@1"])
    made.model_states.add(model_version="m@1", state=registry.LOAD_STATE_READY)
    made.model_states.add(model_version="m@2", state=registry.LOAD_STATE_LOADING)
    made.model_states.add(model_version="m@3", state=registry.LOAD_STATE_FAILED, detail="m@3 is not signed")
    rows = workers.merged([plain(made, unset=True)], [state("w0"), state("w2", draining=True)])
    assert workers.not_ready(rows) == [("w0", "m@2", "loading", ""), ("w0", "m@3", "failed", "m@3 is not signed")]


def test_a_draining_worker_that_left_the_registry_is_still_listed() -> None:
    present, gone = workers.merged([endpoint("w1")], [state("w1"), state("w2", draining=True)])
    assert (present["instance"], gone["instance"]) == ("w1", "w2")
    assert (gone["zone"], gone["model_versions"]) == ("zone-b", ["m@2"])
    assert "draining" in workers.cells(gone)


def test_workers_of_a_pool_whose_numbers_differ_are_named() -> None:
    def worker(name: str, numerics: dict[str, str], pool: str = "demo") -> dict[str, Any]:
        versions = ["m@1", "n@1"]
        return plain(
            registry.Endpoint(instance=name, pool=pool, model_versions=versions, numerics=numerics), unset=True
        )

    alike = {"m@1": "aa", "n@1": "cc"}
    a, b = worker("a", alike), worker("b", alike)
    other, partly = worker("c", {"m@1": "bb", "n@1": "cc"}), worker("d", {"m@1": "aa"})
    assert workers.apart([a, b, worker("e", {"m@1": "bb"}, pool="apart")]) == []
    flagged = "; a stream that moves between them is flagged numerics_changed"
    assert workers.apart([a, b, other]) == ["m@1: numbers differ between a, b (aa) and c (bb)" + flagged]
    assert workers.apart([a, partly]) == ["n@1: numbers differ between a (cc) and d (unknown)" + flagged]
    assert workers.apart([partly]) == []
    assert len(workers.apart([worker("x", {}), worker("y", {})])) == 2
    [row] = workers.merged([a], [state("a")])
    assert dict(zip(workers._COLUMNS, workers.cells(row), strict=True))["NUMERICS"] == ["aa", "cc"]


def test_a_worker_that_is_not_ready_is_not_among_those_that_count() -> None:
    ready = registry.Endpoint(service="worker", instance="w0", address="h:1")
    other = registry.Endpoint(service="worker", instance="w1", address="h:2", leaving=True)

    def listed(method: str, **_: Any) -> registry.ListResponse:
        assert method == "List"
        return registry.ListResponse(resources=[pack(each) for each in (ready, other)], revision=3)

    snapshot = calls.read(cast(calls.Service, listed), ("endpoints",))
    assert snapshot.endpoints_of("worker") == [ready]
    assert list(snapshot.unready.values()) == [other]
