"""What benches write into a mesh and read from it, and what they conclude. Pure parts."""

from __future__ import annotations

import asyncio
import math
import time
from pathlib import Path

import msgspec
import pytest

from loadtest import bench_fairness, bench_overload, bench_quota
from loadtest.figures import number, verdict
from loadtest.overload.generator import Run, run_to_end
from loadtest.overload.samples import Objective, Sample, read
from loadtest.overload.senders import Route
from loadtest.overload.setting import (
    CALIBRATION,
    TenantSpec,
    by_label,
    duration,
    histogram_quantile,
    limits,
    slo,
    tenant,
    total,
)
from services.cli.mesh.site import ROOT, load_profile
from services.worker.calibration import report
from simulation.lengths import Lengths
from simulation.workload import TenantLoad


def test_the_slow_engine_is_the_measured_one_four_times_as_slow() -> None:
    measured = report.read(ROOT / "deploy/calibration/weir-quality.toml")
    slow = report.read(ROOT / CALIBRATION)
    assert msgspec.structs.replace(slow, costs=measured.costs) == measured, "all but the costs is the same"
    for name, cost in msgspec.structs.asdict(measured.costs).items():
        factor = 1 / 4 if name == "prefill_tokens_per_second" else 4
        assert getattr(slow.costs, name) == pytest.approx(cost * factor, rel=1e-4), name


def test_the_profile_simulates_that_engine() -> None:
    worker = load_profile(ROOT, "overload")["worker"]
    assert worker["engine"] == "simulated"
    assert worker["simulated"]["calibration"] == CALIBRATION
    assert worker["simulated"]["max_running"] * 2 == bench_overload.SLOTS == bench_fairness.SLOTS


def test_tenants_are_written_as_the_registry_wants_them() -> None:
    spec = TenantSpec(id="x", paid=False, weight=2.0, tokens_per_minute=500, max_deadline=1.5)
    record = tenant(spec)
    assert (record.plan, record.weight, list(record.workloads)) == (1, 2.0, ["spiffe://weir.internal/sa/load-x"])
    assert record.max_deadline.ToMilliseconds() == 1500
    assert limits(spec).tokens_per_minute == 500
    assert limits(spec).requests_per_minute > 10**6, "what is not said is no limit"


def test_an_objective_declares_what_is_finite() -> None:
    found = slo("fast", Objective(ttft=0.5))
    assert (found.route, found.tier, found.ttft_p95.ToMilliseconds()) == ("generate", "fast", 500)
    assert not found.HasField("itl_p95")
    assert duration(2.25).ToMilliseconds() == 2250


SCRAPES = [
    {'depth{pool="p",class="paid"}': 2.0, 'depth{pool="p",class="free"}': 1.0, "depth_other": 9.0},
    {'depth{pool="p",class="paid"}': 3.0},
]


def test_metrics_are_summed_over_processes() -> None:
    assert total(SCRAPES, "depth") == 6.0
    assert total(SCRAPES, "depth", **{"class": "paid"}) == 5.0
    assert by_label(SCRAPES, "depth", "class") == {"paid": 5.0, "free": 1.0}


def histogram(*counts: int) -> list[dict[str, float]]:
    return [{f'h_bucket{{le="{edge}"}}': float(n) for edge, n in zip(("1.0", "2.0", "+Inf"), counts, strict=True)}]


def test_a_quantile_is_the_bucket_that_holds_it() -> None:
    before, after = histogram(5, 5, 5), histogram(103, 104, 105)
    assert histogram_quantile(before, after, "h", 0.5) == 1.0
    assert histogram_quantile(before, after, "h", 0.99) == 2.0
    assert histogram_quantile(before, after, "h", 1.0) == math.inf
    assert math.isnan(histogram_quantile(before, before, "h", 0.5)), "nothing was observed"


@pytest.mark.parametrize(
    ("value", "target", "found"),
    [
        (0.95, "≥ 0.95", "met"),
        (0.94, "≥ 0.95", "missed"),
        (50.0, "≤ 50", "met"),
        (51.0, "≤ 50", "missed"),
        (0.0, "= 0", "met"),
        (1.0, "= 0", "missed"),
        (math.nan, "≤ 50", "not measured"),
    ],
)
def test_targets_are_judged(value: float, target: str, found: str) -> None:
    assert verdict(value, target) == found


def test_figures_without_a_value_are_null() -> None:
    assert [number(value) for value in (math.nan, math.inf, 0.12345)] == [None, None, 0.1235]


def sample(at: float, who: str, prompt: int, output: int) -> Sample:
    return Sample(
        at=at,
        tenant=who,
        prompt_tokens=prompt,
        output_tokens=output,
        max_tokens=output,
        outcome="ok",
        e2e=0.5,
        delivered_tokens=output,
        events=(0.25,),
    )


def test_shares_are_of_the_tokens_in_the_window() -> None:
    samples = [sample(at, "heavy", 30, 10) for at in range(40)] + [sample(at, "light", 7, 3) for at in range(40)]
    found = bench_fairness.shares(samples, start=10.0, end=30.0)
    assert (found.heavy, found.light) == (40.0, 10.0)
    assert found.error == pytest.approx(0.0)
    # Each second the heavy one gets (30 + 2·10)/4 and the light one 7 + 2·3 cost units per weight.
    assert found.gap == pytest.approx(0.5 * 20 + 12.5)
    assert found.bound == 2 * 2 * bench_fairness.SLOTS * 40


def test_goodput_ratios_are_to_that_at_capacity() -> None:
    good = {1.0: 10.0, 1.5: 9.5, 2.0: 9.0, 4.0: 12.0}
    assert bench_overload.ratios(good, "fifo_") == {
        "fifo_goodput_ratio_1_5x": 0.95,
        "fifo_goodput_ratio_2x": 0.9,
        "fifo_goodput_ratio_4x": 1.2,
    }
    assert sum(bench_overload.SHARES.values()) == pytest.approx(1.0)


def test_what_was_delivered_is_held_to_the_limit() -> None:
    found = bench_quota.delivered([sample(at, "capped", 900, 100) for at in range(0, 120, 6)], 119.0)
    assert found.most == bench_quota.LIMIT
    assert found.used == 1.0, "two limits' worth fit into 119 seconds"


class Echo:
    """An edge that answers every request with one token."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        usage = b'data: {"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}\n\ndata: [DONE]\n\n'
        data = b'data: {"x":1}\n\n' + usage
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        try:
            while head_in := await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(int(head_in.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
                writer.write(head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data))
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


async def test_a_run_sends_open_and_closed_loops_and_records_every_request(tmp_path: Path) -> None:
    server = await asyncio.start_server(Echo().serve, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    lengths = Lengths.fixed(3, 1)
    loads = (
        TenantLoad("open", rate=20.0, variation=0.0, lengths=lengths, name="open-loop"),
        TenantLoad("closed", clients=2, think=0.05, lengths=lengths, name="closed"),
    )
    run = Run(
        loads=loads,
        routes={each.label: Route(address=address, key="wk") for each in loads},
        seconds=1.0,
        begin=time.time() + 0.1,
        trace=True,
    )
    out = tmp_path / "run.jsonl"
    async with server:
        effort = await asyncio.to_thread(run_to_end, run, out)
    samples = read(out)
    assert {each.outcome for each in samples} == {"ok"}
    assert sum(each.load == "open-loop" for each in samples) in (19, 20)
    assert sum(each.load == "closed" for each in samples) >= 2
    assert all(len(each.events) == 1 and each.delivered_tokens == 1 for each in samples)
    assert effort.cpu > 0
