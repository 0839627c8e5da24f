"""What happened between two scrapes."""

from __future__ import annotations

import pytest

from libs.diagnosis import Process, Scrape, Window, parse
from libs.diagnosis.events import events
from libs.diagnosis.overview import overview

ROLLOUT, LIMITER = Process("rollout-1", "rollout"), Process("ratelimit-1", "ratelimit")
ROUTERS = (Process("router-1", "router"), Process("router-2", "router"))
STARTED = "process_start_time_seconds 100"
DECISIONS = STARTED + '\nweir_rollout_decisions_total{alias="weir-fast",kind="promote"} '
BREAKER = STARTED + '\nweir_router_breaker_state{model_version="m@1",zone="zone-a"} '


def window(
    before: dict[Process, str], after: dict[Process, str], *, gone: frozenset[Process] = frozenset(), back: bool = False
) -> Window:
    scrapes = [
        Scrape(at, {who: parse(text) for who, text in texts.items()}) for at, texts in ((1, before), (11, after))
    ]
    silent = scrapes[0 if back else 1]._replace(silent=gone)
    return Window(silent if back else scrapes[0], scrapes[1] if back else silent)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({ROLLOUT: DECISIONS + "3"}, {ROLLOUT: DECISIONS + "3"}, ()),
        ({ROLLOUT: DECISIONS + "3"}, {ROLLOUT: DECISIONS + "4"}, ("rollout of weir-fast: promote",)),
        ({ROLLOUT: STARTED}, {ROLLOUT: DECISIONS + "2"}, ("rollout of weir-fast: promote (2 times)",)),
        ({ROLLOUT: STARTED}, {ROLLOUT: "process_start_time_seconds 200"}, ("rollout-1 began anew",)),
        (
            dict.fromkeys(ROUTERS, BREAKER + "0"),
            dict.fromkeys(ROUTERS, BREAKER + "2"),
            ("the breaker of m@1 in zone-a opened",),
        ),
        (
            dict.fromkeys(ROUTERS, BREAKER + "2"),
            dict.fromkeys(ROUTERS, BREAKER + "1"),
            ("the breaker of m@1 in zone-a lets requests through",),
        ),
        (dict.fromkeys(ROUTERS, BREAKER + "1"), dict.fromkeys(ROUTERS, BREAKER + "0"), ()),
    ],
)
def test_each_thing_that_happened_is_told_once(
    before: dict[Process, str], after: dict[Process, str], told: tuple[str, ...]
) -> None:
    assert events(window(before, after)) == told


def test_who_stops_answering_and_who_answers_again_is_told() -> None:
    one, both = {LIMITER: STARTED}, {LIMITER: STARTED, ROLLOUT: STARTED}
    assert events(window(both, one, gone=frozenset({ROLLOUT}))) == ("rollout-1 does not answer",)
    assert events(window(one, both, gone=frozenset({ROLLOUT}), back=True)) == ("rollout-1 answers again",)


def test_rollouts_and_budgets_are_those_of_who_knows_them() -> None:
    leads = """weir_rollout_leader LEADS
weir_rollout_phase{alias="weir-fast",phase="canary"} 1
weir_rollout_weight{alias="weir-fast",arm="baseline",model_version="f@1"} 9500
weir_rollout_weight{alias="weir-fast",arm="canary",model_version="f@2"} 500
weir_rollout_weight{alias="other",arm="canary",model_version="f@2"} 500
weir_error_budget_consumed{route="generate",tier="fast",objective="availability"} 0.25
weir_error_budget_consumed{route="predict",tier="fast",objective="availability"} 0
"""
    spent = 'weir_budget_spent_ratio{tenant="acme",period="month"} 0.75\n'
    followed = leads.replace("9500", "10000").replace("0.25", "0.2")
    pages = {
        ROLLOUT: followed.replace("LEADS", "0"),
        Process("rollout-2", "rollout"): leads.replace("LEADS", "1"),
        LIMITER: spent,
    }
    found = overview(window(pages, pages))
    [rollout] = found.rollouts
    assert rollout == ("weir-fast", "canary", (("baseline", "f@1", 0.95), ("canary", "f@2", 0.05)))
    assert found.budgets == (("acme month", 0.75), ("generate fast availability", 0.25))
