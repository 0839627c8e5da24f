"""Recorded runs: how they are written and read, and what comparing the simulator with one says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulation import records, validate
from simulation.outcomes import Outcome
from simulation.records import Record
from simulation.report import LABEL
from simulation.scenario import Cluster, Objective, Scenario, TenantSpec
from simulation.simulator import Simulator
from simulation.workload import Workload

CLUSTER = Cluster(workers=2, costs={"step_base": 0.01, "step_per_sequence": 0.0005}, sizes={"max_running": 8})
HEADER = {
    "workers": 2,
    "costs": CLUSTER.costs,
    "sizes": CLUSTER.sizes,
    "ttft_slo": 1.0,
    "itl_slo": 0.05,
    "warmup": 2.0,
    "machine": "not read",
}


def record(outcome: Outcome) -> Record:
    arrival = outcome.arrival
    return Record(
        at=arrival.at,
        tenant=arrival.tenant,
        prompt_tokens=arrival.prompt_tokens,
        output_tokens=arrival.output_tokens,
        max_tokens=arrival.max_tokens,
        outcome=outcome.outcome,
        ttft=outcome.ttft,
        e2e=outcome.e2e,
        weight=arrival.weight,
        timeout=arrival.timeout,
        delivered_tokens=outcome.delivered,
    )


@pytest.fixture(scope="module")
def run() -> list[Record]:
    """A run of the simulator at one and a half times the capacity, told as if the mesh had run it."""
    scenario = Scenario(
        seconds=12.0,
        cluster=CLUSTER,
        objectives={"paid": Objective(ttft=1.0, itl=0.05)},
        tenants=(TenantSpec(tenant="a", load=0.9), TenantSpec(tenant="b", load=0.6, weight=2.0)),
    )
    arrivals = list(Workload(scenario.loads(), scenario.seconds, scenario.seed).arrivals())
    return [record(each) for each in Simulator(scenario, arrivals=arrivals).run().outcomes]


def written(folder: Path, lines: list[Record]) -> Path:
    path = folder / "run.jsonl"
    records.write(path, lines, header=HEADER)
    return path


def test_what_is_written_is_read_in_order_of_time(tmp_path: Path, run: list[Record]) -> None:
    header, read = records.read(written(tmp_path, run))
    assert read == sorted(run, key=lambda each: each.at)
    assert header == {"weir": "run", **HEADER}


def test_lines_that_are_no_records_are_named(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text('{"weir": "run"}\n{"at": 1.0, "tenant": "a"}\n')
    with pytest.raises(ValueError, match="line 2"):
        records.read(path)


def test_a_run_without_header_and_with_fields_of_others_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    line = {"at": 1.0, "tenant": "a", "prompt_tokens": 3, "output_tokens": 2, "max_tokens": 2, "outcome": "ok"}
    path.write_text(json.dumps({**line, "status": 200}) + "\n\n")
    header, (only,) = records.read(path)
    assert header == {}
    assert only.queue_class == "paid"
    assert only.ttft is None


def test_the_simulator_has_no_error_against_itself(tmp_path: Path, run: list[Record]) -> None:
    comparison = validate.compare(written(tmp_path, run))
    assert comparison.errors() == dict.fromkeys(comparison.errors(), 0.0)
    assert comparison.real == comparison.simulated
    assert comparison.requests == sum(each.at >= 2.0 for each in run)
    assert comparison.simulated.outcomes["REJECTED_DEADLINE"] > 0


def test_errors_are_of_the_simulator_relative_to_the_mesh(tmp_path: Path, run: list[Record]) -> None:
    def slow(each: Record) -> Record:
        ttft = None if each.ttft is None else 2 * each.ttft
        return Record(**{**{n: getattr(each, n) for n in each.__struct_fields__}, "ttft": ttft})

    found = validate.errors(written(tmp_path, [slow(each) for each in run]))
    assert found["sim_ttft_p50_error_pct"] == pytest.approx(-50.0)
    assert found["sim_ttft_p95_error_pct"] == pytest.approx(-50.0)
    assert found["sim_goodput_error_pct"] > 0.0  # of the mesh's, some first tokens are late now


def test_quotas_and_callers_that_left_are_left_out(tmp_path: Path, run: list[Record]) -> None:
    odd = [
        Record(at=3.0, tenant="a", prompt_tokens=5, output_tokens=5, max_tokens=5, outcome=outcome)
        for outcome in ("QUOTA_TOKENS", "CANCELLED")
    ]
    comparison = validate.compare(written(tmp_path, [*run, *odd]))
    assert comparison.left_out == 2
    assert comparison.real == comparison.simulated


def test_a_run_in_which_nothing_can_be_replayed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no request"):
        validate.errors(written(tmp_path, []))


def test_the_command_says_simulation(tmp_path: Path, run: list[Record], capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, run)
    assert validate.main([str(path)]) == 0
    assert LABEL in capsys.readouterr().out
    assert validate.main([str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["label"] == LABEL
    assert told == {"label": LABEL, **validate.errors(path)}
    assert validate.main([str(tmp_path / "none")]) == 1
