"""Pages as values, windows over restarts, and the names that rules read by."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from prometheus_client import REGISTRY, generate_latest

import libs.diagnosis
from libs.diagnosis import Evidence, Finding, Process, Scrape, Stage, Window, diagnose, follow, parse, remembered
from libs.diagnosis.thresholds import OTHERS
from loadtest.observe.planted import planted
from services.admission.metrics import OTHER

GATEWAY = Process("gateway-1", "gateway", "zone-a")
ADMISSION = Process("admission-1", "admission")
OWNERS = (
    *("admission", "gateway", "worker", "predictor", "rollout", "registry"),
    *("controlplane", "router", "ratelimit"),
)


def window(before: str, after: str) -> Window:
    return Window(Scrape(100.0, {GATEWAY: parse(before)}), Scrape(110.0, {GATEWAY: parse(after)}))


TENANTS = """weir_admission_queue_depth{pool="p",queue_class="paid"} 40
weir_admission_queue_wait_seconds_count{pool="p",queue_class="paid"} COUNT
weir_admission_queue_wait_seconds_sum{pool="p",queue_class="paid"} COUNT
weir_admission_tenant_requests{pool="p",tenant="NAME",state="queued"} 40
weir_admission_tenant_requests{pool="p",tenant="NAME",state="held"} 4
weir_admission_tenant_requests{pool="p",tenant="victim",state="held"} 4
"""


def window_of_tenants(name: str) -> tuple[Scrape, Scrape]:
    """A pool in which everything that waits is this tenant's, beside another's that runs."""
    texts = (TENANTS.replace("NAME", name).replace("COUNT", str(count)) for count in (0, 50))
    before, after = ({ADMISSION: parse(text)} for text in texts)
    return Scrape(1.0, before), Scrape(11.0, after)


def test_a_page_is_read_with_its_escapes_and_without_what_is_no_sample() -> None:
    page = parse('# HELP a b\na 1\nb{x="q\\"\\\\\\n",y="}"} 2.5e-3 1700000000\nc{} +Inf\nbroken{ 3\nd word\n')
    assert page["a"] == [({}, 1.0)]
    assert page["b"] == [({"x": 'q"\\\n', "y": "}"}, 0.0025)]
    assert page["c"][0].value == float("inf")
    assert page.keys() == {"a", "b", "c"}


def test_a_counter_grows_and_begins_anew_with_its_process() -> None:
    assert window('n{k="a"} 5\nn{k="b"} 1', 'n{k="a"} 9\nn{k="b"} 1').gained(GATEWAY, "n") == 4
    assert window('n{k="a"} 5', 'n{k="a"} 9\nn{k="b"} 2').gained(GATEWAY, "n", k="b") == 2
    assert window("n 5", "n 3").gained(GATEWAY, "n") == 3
    began = "process_start_time_seconds {}\nn {}"
    # It has counted further than its predecessor had: only its start tells.
    assert window(began.format(1, 5), began.format(105, 9)).gained(GATEWAY, "n") == 9


def test_what_is_on_one_scrape_only_has_no_rates() -> None:
    other = Process("gateway-2", "gateway")
    both = Window(Scrape(1.0, {GATEWAY: parse("n 1")}), Scrape(2.0, {GATEWAY: parse("n 2"), other: parse("n 9")}))
    assert both.of("gateway") == [GATEWAY]


def test_scrapes_at_one_moment_say_nothing() -> None:
    with pytest.raises(ValueError, match="apart"):
        diagnose(Scrape(1.0, {}), Scrape(1.5, {}))
    with pytest.raises(ValueError, match="later"):
        Window(Scrape(1.0, {}), Scrape(1.0, {}))


def test_what_was_found_before_has_held_since_then() -> None:
    old, new = (
        Finding(Stage.SAFETY, {"process": "safety-1"}, (Evidence("processor", 0.95, "cores"),), since, ())
        for since in (10.0, 20.0)
    )
    other = new._replace(whom={"process": "safety-2"})
    assert [each.since for each in remembered([new, other], [old])] == [10.0, 20.0]


def test_what_holds_over_windows_in_a_row_has_held_since_the_first_of_them() -> None:
    [planting] = [each for each in planted() if each.name == "a frozen process"]
    before, after = planting.scrapes()
    answered = before._replace(silent=frozenset())
    times = [before.at + 10 * number for number in range(5)]
    first, second, third, fourth, fifth = (before._replace(at=time) for time in times)
    assert follow([first, second, after._replace(at=times[2])]).findings[0].since == times[0]
    broken = [first, second, answered._replace(at=times[2]), fourth, fifth]
    assert follow(broken).findings[0].since == times[3]
    assert follow([third, fourth]).seconds == 10.0
    with pytest.raises(ValueError, match="two"):
        follow([first])


def test_who_did_not_answer_once_only_is_not_silent() -> None:
    gone = frozenset({GATEWAY})
    assert diagnose(Scrape(1.0, {}, gone), Scrape(9.0, {})).findings == ()
    [found] = diagnose(Scrape(1.0, {}, gone), Scrape(9.0, {}, gone)).findings
    assert (found.stage, found.whom, found.since) == (
        Stage.SILENT,
        {"process": "gateway-1", "zone": "zone-a"},
        1.0,
    )
    assert "`weir logs gateway-1`" in found.remedies[0].what


def test_many_small_tenants_are_not_one() -> None:
    """What admission counts as others' is nobody's flood, however much of it waits."""
    others = window_of_tenants(OTHER)
    assert all(each.stage is not Stage.TENANT for each in diagnose(*others).findings)
    assert OTHERS == OTHER
    [flood] = [each for each in diagnose(*window_of_tenants("flooder")).findings if each.stage is Stage.TENANT]
    assert flood.whom["tenant"] == "flooder"
    assert "`weir tenants explain flooder`" in flood.remedies[0].what


def test_what_a_restarted_process_does_it_does_since_its_start() -> None:
    [planting] = [each for each in planted() if each.name == "safety"]
    before, after = planting.scrapes()
    later = {
        process: {**page, "process_start_time_seconds": parse(f"s {before.at + 4}")["s"]}
        for process, page in after.pages.items()
    }
    found = diagnose(before, after._replace(pages=later)).binds
    assert found is not None
    assert found.since == before.at + 4


def test_every_metric_that_a_rule_reads_exists() -> None:
    for service in OWNERS:
        importlib.import_module(f"services.{service}.metrics")
    for more in ("libs.outcomes.tenants", "libs.telemetry.accelerators"):
        importlib.import_module(more)
    there = set(re.findall(r"^# TYPE (\S+)", generate_latest(REGISTRY).decode(), re.MULTILINE))
    there |= {f"{name}{end}" for name in there for end in ("_sum", "_count")}
    sources = Path(libs.diagnosis.__file__).parent.glob("*.py")
    read = {name for each in sources for name in re.findall(r'"((?:weir|process)_[a-z_]+[a-z])"', each.read_text())}
    assert len(read) > 20
    assert read - there == set()


def test_the_simulated_workers_show_what_real_ones_do() -> None:
    importlib.import_module("services.worker.metrics")
    there = set(re.findall(r"^# TYPE (\S+)", generate_latest(REGISTRY).decode(), re.MULTILINE))
    [planting] = [each for each in planted() if each.name == "decode"]
    _, after = planting.scrapes()
    shown = {name for process, page in after.pages.items() if process.service == "worker" for name in page}
    assert {re.sub(r"_(sum|count)$", "", name) for name in shown} <= there
