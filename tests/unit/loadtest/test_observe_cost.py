"""The figures of `make bench-observe` that are about metrics themselves."""

from __future__ import annotations

from libs.diagnosis import Process, Scrape, Window, parse
from libs.outcomes import tenants
from libs.telemetry import accelerators
from loadtest.bench_observe import weighed
from loadtest.observe import names
from loadtest.observe.cost import observations

GATEWAY = """gen_ai_server_request_duration_count{gen_ai_response_model="m@1"} N
gen_ai_server_request_duration_bucket{le="+Inf",gen_ai_response_model="m@1"} N
gen_ai_client_token_usage_total{gen_ai_token_type="output"} N00
weir_gateway_degraded_total{kind="some"} 0N
process_cpu_seconds_total N
"""
ADMISSION = """weir_admission_queue_wait_seconds_count N
weir_admission_queue_wait_seconds_sum 0.N
weir_admission_outcomes_total{outcome="granted"} N
weir_admission_queue_depth N
"""


def test_observations_are_counted_and_amounts_are_one_each() -> None:
    texts = {Process("gateway-1", "gateway"): GATEWAY, Process("admission-1", "admission"): ADMISSION}
    before, after = ({who: parse(text.replace("N", n)) for who, text in texts.items()} for n in ("10", "20"))
    # Of each of ten requests duration and tokens, by our own; by the library's a degraded one, a wait, an outcome.
    assert observations(Window(Scrape(1.0, before), Scrape(2.0, after))) == (20.0, 30.0, 10.0)


def test_names_that_somebody_makes_up_are_not_series() -> None:
    before = names.series_after(1)
    after = names.series_after(20_000)
    # Two outcomes, three units and a price of each tenant at most, and what accelerators did.
    assert after - before <= 6 * tenants.MOST + accelerators.MOST + 8
    assert names.series_after(40_000) - after <= 8


def test_pages_add_up() -> None:
    each = {"seconds": 0.015, "unpacked": 2000.0, "bytes": 500.0, "series": 10.0}
    assert weighed({"gateway": each, "worker": each}) == {
        "scrape_ms": 30.0,
        "scrape_kb": 4.0,
        "scrape_kb_packed": 1.0,
        "scrape_series": 20.0,
        "scrape_core_pct": 0.2,
    }
