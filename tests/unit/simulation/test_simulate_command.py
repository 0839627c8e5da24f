"""`weir simulate` (tests/unit/cli has the command): options, output, and that both always say what they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.admission.policy.fair_queue import FairQueue, Item
from simulation.__main__ import main, parser, scenario_of

SMALL = ("--workers", "2", "--seconds", "6")


def test_the_report_says_simulation_first_and_in_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--preset", "fairness", "--timeline"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("simulation: fairness, 2 workers, fair, 6 s")
    assert "simulation, second by second:" in text
    assert "heavy / light" in text
    assert main([*SMALL, "--preset", "fairness", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["label"] == "simulation"
    assert told["simulated"] is True
    assert {row["tenant"] for row in told["tenants"]} == {"heavy", "middle", "light"}


def test_g12_a_service_gap_beyond_its_bound_is_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that forgets to charge one of its tenants; a plain queue promises nothing."""
    unfair = ("--preset", "fairness", "--workers", "2", "--seconds", "12")
    dispatch = FairQueue.dispatch

    def forgets(queue: FairQueue, request_id: str) -> Item:
        item = dispatch(queue, request_id)
        if item.request.tenant == "light":
            queue.correct("light", item.request.weight, -item.cost)
        return item

    monkeypatch.setattr(FairQueue, "dispatch", forgets)
    assert main(unfair) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: the service gap of heavy and light (paid) is ")
    assert "of its bound" in error
    monkeypatch.undo()
    assert main([*unfair, "--discipline", "fifo"]) == 0


def test_options_change_the_scenario() -> None:
    options = parser().parse_args([*SMALL, "--rate", "7.5", "--seed", "9", "--discipline", "fifo"])
    scenario = scenario_of(options)
    assert sum(load.rate for load in scenario.loads()) == pytest.approx(7.5)
    assert (scenario.seed, scenario.cluster.workers, scenario.seconds) == (9, 2, 6.0)
    assert scenario.warmup < 6.0
    assert scenario.limits().discipline == "fifo"
    half, whole = (scenario_of(parser().parse_args([*SMALL, "--load", load])) for load in ("0.5", "1"))
    assert sum(load.rate for load in half.loads()) == pytest.approx(sum(load.rate for load in whole.loads()) / 2)


def test_a_scenario_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'name = "mine"\nseconds = 4.0\nwarmup = 0.0\n[cluster]\nworkers = 1\n'
        '[[tenants]]\ntenant = "x"\nrate = 3.0\nlengths = "20+5"\n'
    )
    assert main([str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scenario"] == "mine"


@pytest.mark.parametrize("text", ["tenants = 3", "name = [", 'other = 1\n[[tenants]]\ntenant = "x"', "seconds = 1.0\n"])
def test_a_scenario_that_makes_no_sense_is_one_line_of_error(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    assert main([str(path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert len(error.splitlines()) == 1
