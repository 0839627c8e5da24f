"""The generated Prometheus rules, judged by Prometheus's own promtool on the histories that `burns` is judged on."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from google.protobuf.duration_pb2 import Duration
from weir.registry.v1 import registry_pb2 as pb

from libs.burn import WINDOWS, Tally, burns
from libs.burn.rules import rules_of, rules_text
from libs.resources.codec import unpack
from libs.resources.forms import from_plain
from tests.support.prometheus import promtool

ROOT = Path(__file__).parents[3]
SLOS = [
    pb.Slo(route="generate", tier="fast", ttft_p95=Duration(seconds=2), availability=0.999),
    pb.Slo(route="generate", tier="*", availability=0.99),
]
PER_MINUTE = 100_000
HISTORIES = {
    # minutes and bad events per minute, one after the other
    "calm": [(360, 0)],
    "ten minutes of a young mesh": [(10, 310)],
    "two hours and ten minutes of it": [(130, 310)],
    "fast burn": [(60, 0), (70, 2_000)],
    "a burn that has ended": [(60, 0), (70, 2_000), (40, 0)],
    "a spike": [(360, 0), (1, 10_000), (3, 0)],
    "slow burn": [(1500, 400)],
    "very slow burn": [(4400, 130)],
    "under the budget": [(4400, 60)],
}


def judged_here(history: list[tuple[int, int]], target: float) -> set[tuple[str, str]]:
    """(severity, long window) of what fires at the end of the history, by `burns`."""
    tally, now = Tally(), 0.0
    for minutes, bad in history:
        for _ in range(minutes):
            for part in range(12):  # every five seconds, as a process counts, not in lumps
                now += 5.0
                share = (part + 1) * bad // 12 - part * bad // 12
                tally.add(PER_MINUTE // 12 - share, share, now)
    names = {3600: "1h", 21600: "6h", 86400: "1d", 259200: "3d"}
    return {(each.window.severity, names[each.window.long]) for each in burns(tally, target, now) if each.fires}


def series(tier: str, history: list[tuple[int, int]]) -> list[dict[str, str]]:
    """The counters of `history` in promtool's notation, one sample per minute."""
    values: dict[str, list[str]] = {"good": ["0"], "bad": ["0"]}
    totals = {"good": 0, "bad": 0}
    for minutes, bad in history:
        for outcome, step in (("good", PER_MINUTE - bad), ("bad", bad)):
            values[outcome].append(f"{totals[outcome] + step}+{step}x{minutes - 1}")
            totals[outcome] += step * minutes
    labels = f'route="generate", tier="{tier}", objective="availability"'
    return [
        {"series": f'weir_slo_events_total{{{labels}, outcome="{outcome}"}}', "values": " ".join(values[outcome])}
        for outcome in ("good", "bad")
    ]


@pytest.mark.parametrize("name", HISTORIES)
def test_promtool_and_burns_agree(tmp_path: Path, name: str) -> None:
    history = HISTORIES[name]
    fired = judged_here(history, 0.999)
    minutes = sum(each for each, _ in history)
    (tmp_path / "rules.yml").write_text(rules_text(SLOS))
    wanted = [
        {
            "exp_labels": {
                "severity": window.severity,
                "objective": "availability",
                "long_window": long,
                "short_window": short,
                "route": "generate",
                "tier": "fast",
            }
        }
        for window, (long, short) in zip(
            WINDOWS, [("1h", "5m"), ("6h", "30m"), ("1d", "2h"), ("3d", "6h")], strict=True
        )
        if (window.severity, long) in fired
    ]
    check = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": f"{minutes}m",  # No rule remembers: what was before the end need not be evaluated.
        # Else promtool takes groups in any order, and alerts look at ratios of one evaluation ago, which are stale.
        "group_eval_order": [group["name"] for group in rules_of(SLOS)["groups"]],
        "tests": [
            {
                "interval": "1m",
                "input_series": series("fast", history),
                "promql_expr_test": [
                    {
                        # Labels and annotations of what fires; values are compared by the rates, not by their text.
                        "expr": "count by (severity, objective, long_window, short_window, route, tier) "
                        '(ALERTS{alertname="WeirSloBurn"})',
                        "eval_time": f"{minutes}m",
                        "exp_samples": [{"labels": _labels(each["exp_labels"]), "value": 1} for each in wanted],
                    }
                ],
            }
        ],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump(check))
    promtool("test", "rules", str(tmp_path / "test.yml"))


def test_the_histories_tell_the_windows_apart() -> None:
    assert judged_here(HISTORIES["calm"], 0.999) == set()
    assert judged_here(HISTORIES["under the budget"], 0.999) == set()
    assert judged_here(HISTORIES["a spike"], 0.999) == set()
    assert judged_here(HISTORIES["ten minutes of a young mesh"], 0.999) == set()
    assert judged_here(HISTORIES["two hours and ten minutes of it"], 0.999) == {("ticket", "1d")}
    assert ("page", "1h") in judged_here(HISTORIES["fast burn"], 0.999)
    assert ("page", "1h") not in judged_here(HISTORIES["a burn that has ended"], 0.999)
    assert judged_here(HISTORIES["very slow burn"], 0.999) == {("ticket", "3d")}


def test_the_committed_rules_are_those_of_the_declared_objectives() -> None:
    files = [path.read_text() for path in (ROOT / "deploy" / "seed").glob("*.yaml")]
    forms = [form for text in files for form in yaml.safe_load_all(text) if form["kind"] == "Slo"]
    declared = [unpack(from_plain(form)) for form in forms]
    assert (ROOT / "deploy" / "alerts" / "slo.yml").read_text() == rules_text(declared)


def test_every_objective_alerts_in_every_window() -> None:
    alerts = rules_of(SLOS)["groups"][1]["rules"]
    found = {
        (each["labels"]["objective"], each["labels"]["long_window"], each["expr"].count("tier=")) for each in alerts
    }
    assert len(alerts) == 3 * len(WINDOWS)
    assert {objective for objective, _, _ in found} == {"availability", "ttft_p95"}
    page = next(each for each in alerts if each["labels"]["long_window"] == "1h" and "ttft" in each["expr"])
    assert "> 0.72 " in page["expr"]  # 14.4 times the 5% that may be late


def test_tiers_of_their_own_are_left_out_of_the_rule_for_the_others() -> None:
    others = [each for each in rules_of(SLOS)["groups"][1]["rules"] if "tier!~" in each["expr"]]
    assert len(others) == len(WINDOWS)
    assert all('tier!~"fast"' in each["expr"] for each in others)


def _labels(labels: dict[str, str]) -> str:
    return "{" + ", ".join(f'{name}="{value}"' for name, value in labels.items()) + "}"
