"""What a mesh does at the moment, out of two scrapes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.diagnosis import Process, Scrape, Window, parse
from libs.diagnosis.overview import overview, quantile
from loadtest.observe.planted import Planted, planted

GATEWAY, PREDICTOR = Process("gateway", "gateway", "zone-a"), Process("predictor-a", "predictor", "zone-a")
PAGE = """weir_gateway_outcomes_total{operation="chat",outcome="stop",reason=""} GOOD
weir_gateway_outcomes_total{operation="chat",outcome="rejected",reason="REJECTED_QUEUE_FULL"} BAD
weir_gateway_outcomes_total{operation="chat",outcome="rejected",reason="QUOTA_TOKENS"} 7
gen_ai_client_token_usage_total{gen_ai_token_type="output"} GOOD0
gen_ai_server_time_to_first_token_bucket{le="0.1"} 0
gen_ai_server_time_to_first_token_bucket{le="0.5"} GOOD
gen_ai_server_time_to_first_token_bucket{le="+Inf"} GOOD
weir_tenant_requests_total{tenant="acme",outcome="stop"} GOOD
weir_tenant_requests_total{tenant="acme",outcome="rejected"} BAD
weir_tenant_requests_total{tenant="idle",outcome="stop"} 5
weir_tenant_used_total{tenant="acme",unit="prompt_tokens"} GOOD0
weir_tenant_used_total{tenant="acme",unit="completion_tokens"} GOOD00
weir_tenant_spend_microusd_total{tenant="acme",plane="generate"} GOOD000000
"""


def window(texts: dict[Process, str], *, seconds: float = 10.0) -> Window:
    """GOOD grows by 50 and BAD by 10."""

    def pages(good: int, bad: int) -> dict[Process, dict[str, list[object]]]:
        return {who: parse(text.replace("GOOD", str(good)).replace("BAD", str(bad))) for who, text in texts.items()}

    return Window(Scrape(100.0, pages(10, 1)), Scrape(100.0 + seconds, pages(60, 11)))


def test_rates_refusals_and_tenants_are_those_between_the_scrapes() -> None:
    found = overview(window({GATEWAY: PAGE}))
    [plane] = found.planes
    assert (plane.name, plane.requests, plane.refused, plane.used) == ("generate", 6.0, 1.0, 50.0)
    assert (plane.p50, plane.p95) == (0.5, 0.5)
    assert found.reasons == (("REJECTED_QUEUE_FULL", 1.0),)
    [acme] = found.tenants  # who does nothing is not told of
    assert (acme.name, acme.requests, acme.refused, acme.used) == ("acme", 6.0, 1.0, 500.0)
    assert acme.dollars == pytest.approx(18_000)
    assert found.silent == ()


def test_predictions_are_a_plane_of_their_own() -> None:
    text = """weir_predictor_inference_request_success_total{model="a@1"} GOOD
weir_predictor_inference_count_total{model="a@1"} GOOD0
weir_predictor_refused_total{reason="DEADLINE_EXCEEDED"} BAD
weir_predictor_inference_compute_infer_duration_seconds_total{model="a@1"} 0.GOOD
weir_predictor_active_requests 3
"""
    found = overview(window({GATEWAY: PAGE, PREDICTOR: text}))
    plane = found.planes[1]
    assert (plane.name, plane.requests, plane.refused, plane.used) == ("predict", 6.0, 1.0, 50.0)
    assert math.isnan(plane.p50)
    assert ("DEADLINE_EXCEEDED", 1.0) in found.reasons
    [serving] = found.serving
    assert serving.busy == pytest.approx(0.05)
    assert serving.running == 3


def test_who_does_not_answer_is_named() -> None:
    before, after = window({GATEWAY: PAGE}).before, window({GATEWAY: PAGE}).after
    assert overview(Window(before, after._replace(silent=frozenset({PREDICTOR})))).silent == ("predictor-a",)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=6), st.floats(0.01, 1.0))
def test_a_quantile_is_the_bound_below_which_so_much_lies(counts: list[int], q: float) -> None:
    bounds = [str(10.0**place) for place in range(len(counts) - 1)] + ["+Inf"]
    total, lines = 0, list[str]()
    for bound, count in zip(bounds, counts, strict=True):
        total += count
        lines.append(f'h_bucket{{le="{bound}"}} {total}')
    empty = "\n".join(line.rpartition(" ")[0] + " 0" for line in lines)
    found = quantile(
        Window(Scrape(1.0, {GATEWAY: parse(empty)}), Scrape(2.0, {GATEWAY: parse("\n".join(lines))})), [GATEWAY], "h", q
    )
    if not total:
        assert math.isnan(found)
        return
    below = sum(count for bound, count in zip(bounds, counts, strict=True) if float(bound) <= found)
    less = sum(count for bound, count in zip(bounds, counts, strict=True) if float(bound) < found)
    assert below >= q * total - 1e-6
    assert less < q * total + 1e-6


@pytest.mark.parametrize("situation", list(planted()), ids=lambda each: each.name)
def test_of_every_planted_mesh_there_is_an_overview(situation: Planted) -> None:
    found = overview(Window(*situation.scrapes()))
    assert found.queues
    assert found.serving
