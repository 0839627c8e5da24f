"""What `weir tenants explain` makes of what the services said."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st
from weir.audit.v1 import audit_pb2
from weir.registry.v1 import registry_pb2 as pb

from libs.auditlog.security import Kind, Row, Sight, record_of
from libs.registry import RegistrySnapshot
from services.cli.explain import show
from services.cli.explain.tenant import Facts, _p95, explain

NOW = 100_000.0


def record(ago: float, *, outcome: str = "stop", reason: str = "", ttft: float = 0.0, **more: Any) -> audit_pb2.Record:
    event = audit_pb2.RequestEvent(tenant="tiny", model="weir-fast", operation="chat", outcome=outcome, reason=reason)
    if outcome != "rejected":
        event.model_version, event.prompt_tokens, event.completion_tokens = "weir-fast@1", 100, 50
        event.time_to_first_token.CopyFrom(Duration(nanos=int(ttft * 1e9)))
    event.MergeFrom(audit_pb2.RequestEvent(**more))
    return audit_pb2.Record(time=Timestamp(seconds=int(NOW - ago)), request=event)


def edge(ago: float, kind: Kind, reason: str, count: int) -> audit_pb2.Record:
    """As edge-auth and the limiter hand them in: counted."""
    row = Row(Sight(kind, reason, tenant="tiny"), count, NOW - ago - 30, NOW - ago)
    return record_of(row, record_id="r", source="ratelimit/ratelimit-0")


def snapshot(**changes: Any) -> RegistrySnapshot:
    limits = pb.Limits(
        tenant="tiny",
        model="*",
        requests_per_minute=5,
        tokens_per_minute=1000,
        spend_microusd=100,
        spend_window=Duration(seconds=3600),
    )
    collections: dict[str, Any] = {
        "tenants": {"tiny": pb.Tenant(id="tiny", plan=pb.PLAN_FREE, weight=2)},
        "keys": {"k1": pb.ApiKey(id="k1", tenant="tiny"), "k2": pb.ApiKey(id="k2", tenant="acme")},
        "limits": {("tiny", "*"): limits, ("acme", "*"): pb.Limits(tenant="acme", model="*")},
        "plans": {"free": pb.PlanPolicy(id="free", weight=3, kv_share=0.5)},
        "model_versions": {"weir-fast@1": pb.ModelVersion(name="weir-fast", version="1", tier="fast")},
        "slos": {("generate", "fast"): pb.Slo(route="generate", tier="fast", ttft_p95=Duration(nanos=500_000_000))},
        "prices": {"*": pb.Price(model="*", input_microusd_per_million=100_000, output_microusd_per_million=200_000)},
    }
    return RegistrySnapshot(revision=1, **(collections | changes))


def told(*records: audit_pb2.Record, **changes: Any) -> dict[str, Any]:
    made = explain(Facts(snapshot(**changes), records, NOW), "tiny")
    json.dumps(made)
    with redirect_stdout(io.StringIO()):
        show.show(made)
    return made


def test_a_content_tenant_has_nothing_against_it() -> None:
    made = told(record(4000), record(10, ttft=0.2))
    assert made["findings"] == []
    assert (made["weight"], made["plan"]["kv_share"], made["keys"]["live"]) == (6.0, 0.5, 1)
    [limits] = made["limits"]
    assert (limits["used_requests"], limits["used_tokens"]) == (1, 150)
    # 100 tokens at ten cents and 50 at twenty cents per million; the older request is outside the window.
    assert (limits["spent_microusd"], limits["spent_is_all"]) == (20, True)
    assert made["objectives"][0]["measured_ttft_p95"] == pytest.approx(0.2)
    assert made["recent"]["outcomes"] == {"stop": 2}


def test_refusals_are_counted_by_reason_with_what_to_do() -> None:
    made = told(
        *[record(50, outcome="rejected", reason="QUOTA_TOKENS")] * 3,
        record(20, outcome="evicted", reason="EVICTED_TTL"),
        record(10, degraded=["output_capped"]),
    )
    assert made["recent"]["reasons"]["QUOTA_TOKENS"] == {"count": 3, "last": NOW - 50}
    assert made["findings"][0] == (
        "3 of its last 5 requests: QUOTA_TOKENS, its tokens per minute are used up: "
        "`weir set limits 'tiny/*' tokens_per_minute=…`"
    )
    assert made["findings"][1].startswith("1 of its last 5 requests: EVICTED_TTL")
    assert made["findings"][2] == "1 of its last 5 requests were served degraded: output_capped"
    # Refused requests use nothing of the limits.
    assert made["limits"][0]["used_requests"] == 1


def test_what_the_edge_refused_is_this_tenants_own(capsys: pytest.CaptureFixture[str]) -> None:
    made = told(
        edge(90, Kind.RATE_LIMITED, "quota_requests", 40),
        record(60),
        edge(30, Kind.RATE_LIMITED, "quota_requests", 2),
        edge(20, Kind.FORBIDDEN, "scope_missing", 7),
        edge(10, Kind.KEY_NEW_SOURCE, "new_network", 1),
    )
    assert made["edge"] == {
        "QUOTA_REQUESTS": {"count": 42, "since": NOW - 120, "last": NOW - 30},
        "SCOPE_MISSING": {"count": 7, "since": NOW - 50, "last": NOW - 20},
    }
    assert made["findings"] == [
        "the edge refused 42 of its requests, 1970-01-02 03:44:40 to 03:46:10 UTC: QUOTA_REQUESTS, "
        "its requests per minute are used up: `weir set limits 'tiny/*' requests_per_minute=…`",
        "the edge refused 7 of its requests, 1970-01-02 03:45:50 to 03:46:20 UTC: SCOPE_MISSING, "
        "its key may not do this: `weir get keys`",
    ]
    assert made["recent"]["requests"] == 1, "they never reached a gateway"
    show.show(made)
    assert "all tenants" not in capsys.readouterr().out


def test_limits_that_are_nearly_used_up_are_named() -> None:
    made = told(*[record(10)] * 6)
    assert "it used 6 of 5 requests per minute (*)" in made["findings"]
    assert "it used 900 of 1000 tokens per minute (*)" in made["findings"]
    assert "it spent at least $0.00012 of $0.0001 per 1 h (*)" in made["findings"]


def test_a_budget_is_told_in_the_periods_of_its_zone() -> None:
    """At `NOW`, 1970-01-02 in UTC, it is still the first in Honolulu."""
    tenant = pb.Tenant(id="tiny", plan=pb.PLAN_FREE, time_zone="Pacific/Honolulu")
    budget = pb.Budget(tenant="tiny", monthly_microusd=1_000_000, daily_microusd=10_000)
    spend = pb.Spend(tenant="tiny", day="1970-01-01", day_microusd=10_000, month="1969-12", month_microusd=999_999)
    given: dict[str, Any] = {"tenants": {"tiny": tenant}, "budgets": {"tiny": budget}, "spend": {"tiny": spend}}
    made = told(**given)
    assert [(each["period"], each["spent_microusd"]) for each in made["budget"]] == [
        ("1970-01", 0),
        ("1970-01-01", 10_000),
    ]
    assert made["findings"] == [
        "it spent $0.01 of its $0.01 for 1970-01-01, and is refused: `weir set budgets tiny daily_microusd=…`"
    ]
    budget.enforcement = pb.BUDGET_ENFORCEMENT_SOFT
    assert "served all the same" in told(**given)["findings"][0]
    assert told()["budget"] == []


def test_what_was_spent_is_whole_when_the_log_is() -> None:
    for whole in (True, False):
        made = explain(Facts(snapshot(), [record(10)], NOW, whole), "tiny")
        assert made["limits"][0]["spent_is_all"] is whole


def test_a_spend_cap_without_a_price_counts_nothing_and_says_so() -> None:
    made = told(record(10), prices={})
    assert made["limits"][0]["spent_microusd"] == 0
    assert made["findings"] == ["its spend cap does not count weir-fast@1: no price; see `weir get prices`"]


def test_slow_first_tokens_are_held_against_the_objective() -> None:
    assert told(*[record(4000, ttft=0.9)] * 2)["findings"] == [
        "its first tokens of tier fast take 900 ms (p95 of 2), the objective is 500 ms"
    ]


@pytest.mark.parametrize(
    ("shed", "queued", "words"),
    [
        (
            0.4,
            7,
            "the edge refuses 40% of its requests (come back after 2 s); the next request of class free waits 3 s",
        ),
        (0.0, 7, "pool demo is overloaded: the next request of class free waits 3 s behind 7"),
        (0.0, 0, ""),
    ],
)
def test_overloaded_pools_say_what_they_do_to_it(shed: float, queued: int, words: str) -> None:
    level = pb.PoolLevel(
        pool="demo", classes=[pb.ClassLevel(queue_class="free", wait=Duration(seconds=3), queued=queued)]
    )
    level.tenants.add(tenant="other", shed=0.9)
    if shed:
        level.tenants.add(tenant="tiny", shed=shed, retry_after=Duration(seconds=2))
    findings = told(levels={"demo": level})["findings"]
    assert len(findings) == bool(words)
    assert words in "".join(findings)


def test_a_tenant_that_nobody_can_act_as_is_told_first() -> None:
    keys = {
        "k1": pb.ApiKey(id="k1", tenant="tiny", revoked_at=Timestamp(seconds=1)),
        "k2": pb.ApiKey(id="k2", tenant="tiny", expires_at=Timestamp(seconds=1)),
    }
    lost = pb.Tenant(id="tiny", plan_policy="gone")
    findings = told(keys=keys, tenants={"tiny": lost})["findings"]
    assert findings[0].startswith("nobody can act as it: no live key (1 revoked, 1 expired)")
    assert findings[1].startswith("its plan 'gone' is not defined")
    for more in ({"workloads": ["spiffe://weir.internal/sa/x"]}, {"jwt_issuer": "https://issuer.example"}):
        assert told(keys=keys, tenants={"tiny": pb.Tenant(id="tiny", **more)})["findings"] == []


def test_without_the_audit_log_nothing_is_shown_as_zero() -> None:
    made = explain(Facts(snapshot(), None, NOW), "tiny")
    assert (made["recent"], made["edge"]) == (None, None)
    assert made["limits"][0]["used_tokens"] is None
    assert made["findings"] == ["the audit log cannot be asked: its requests are not known"]
    out = io.StringIO()
    with redirect_stdout(out):
        show.show(made)
    assert "? of 1000" in out.getvalue()


@given(st.lists(st.floats(0, 10), min_size=1, max_size=60))
def test_at_least_95_of_100_are_at_most_the_percentile(values: list[float]) -> None:
    found = _p95(values)
    assert found in values
    assert sum(value <= found for value in values) >= 0.95 * len(values)
    assert sum(value < found for value in values) < 0.95 * len(values)
