"""The timeline of a drill, line by line, and its verdicts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from loadtest.overload import drills
from loadtest.overload.samples import Sample, encode
from loadtest.overload.timeline import SHORT, Check, Second, Tail, header, line, offered, verdict
from simulation.lengths import Lengths
from simulation.workload import TenantLoad


def sample(tenant: str, at: float, outcome: str = "ok", **fields: object) -> Sample:
    served = outcome == "ok"
    base: dict[str, object] = {
        "at": at,
        "tenant": tenant,
        "prompt_tokens": 10,
        "output_tokens": 4,
        "max_tokens": 4,
        "outcome": outcome,
        "ttft": 0.25 if served else None,
        "e2e": 0.5,
        "delivered_tokens": 4 if served else 0,
        "retry_after": None if served else 1.0,
    }
    return Sample(**(base | fields))  # type: ignore[arg-type]


def test_a_second_tells_each_tenant_and_the_mesh() -> None:
    second = Second(7, queued={"paid": 3}, wait={"paid": 0.5}, shed={"flood": 0.9}, pressure=0.5, workers=2)
    second.tenant("calm").asked = 2
    second.add(sample("calm", 7.1))
    for outcome in ("REJECTED_OVERLOAD", "REJECTED_OVERLOAD", "REJECTED_DEADLINE", "INTERNAL"):
        second.add(sample("flood", 7.2, outcome))
    second.add(sample("calm", 7.3, degraded=("output_capped",)))
    second.notes.append("something is done")
    note, text = line(second, ["calm", "flood"]).splitlines()
    assert note == "   7 s ** something is done"
    calm, flood, mesh = text.split(" | ")[1:]
    assert calm.split() == ["2", "2", "250"]
    assert flood.split() == ["0", "0", "-", "edge", "2", "late", "1", "FAIL", "1", "(internal)"]
    assert mesh == "q paid 3, wait paid 0.5s, shed flood 90%, pressure 0.5, degraded output_capped 1, workers 2"


def test_the_header_is_as_wide_as_its_lines() -> None:
    tenants = ["calm", "flood"]
    names, columns = header(tenants).splitlines()
    text = line(Second(0), tenants)
    bars = [at for at, letter in enumerate(text) if letter == "|"]
    assert bars == [at for at, letter in enumerate(columns) if letter == "|"]
    assert bars == [at for at, letter in enumerate(names) if letter == "|"]


def test_every_reason_has_a_word_of_its_own() -> None:
    assert len(set(SHORT.values())) == len(SHORT)


def test_offered_requests_are_those_of_the_workload() -> None:
    loads = [TenantLoad("a", rate=5.0, variation=0.0, lengths=Lengths.fixed(1, 1))]
    found = offered(loads, 2.5, seed=1)
    assert sum(found[0].values()) + sum(found[1].values()) + sum(found[2].values()) in (12, 13)
    assert found[1] == Counter(a=5)


def test_new_samples_are_read_once_and_only_whole(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    first, second = sample("a", 1.0), sample("b", 2.0)
    path.write_bytes(b'{"weir": "run"}\n' + encode(first) + encode(second)[:20])
    tail = Tail(path)
    assert tail.new() == [first]
    with path.open("ab") as file:
        file.write(encode(second)[20:])
    assert tail.new() == [second]
    assert tail.new() == []


def test_a_verdict_holds_when_all_does() -> None:
    good, bad = Check("x", "1", True), Check("y", "2", False)
    assert verdict([good]) == ("  held   x: 1\nverdict: as expected", True)
    text, held = verdict([good, bad])
    assert not held
    assert text.endswith("  MISSED y: 2\nverdict: NOT as expected")


TIMES = drills.FloodTimes(before=2, flood=4, after=8)
SHARE = 2.0


def flood(**changes: str) -> dict[str, bool]:
    """Which expectations hold after an exemplary flood, with some ends changed."""
    calm = changes.get("calm", "ok")
    refusal = changes.get("refusal", "REJECTED_OVERLOAD")
    samples = [sample("calm", at / 2, calm if 4 <= at < 12 else "ok") for at in range(28)]
    samples += [sample("flood", 2.0 + at / 40, "ok" if at % 10 == 0 else refusal) for at in range(160)]
    samples += [sample("flood", 6.0 + at) for at in range(8)]
    shed = {"flood": 0.9} if "shed" in changes else {}
    rows = [Second(at, workers=2, shed=shed if at > 11 else {}) for at in range(14)]
    return {check.what: check.held for check in drills.flood_checks(samples, rows, TIMES, SHARE)}


def test_an_exemplary_flood_is_as_expected() -> None:
    assert all(flood().values()), flood()


def test_a_flood_that_reaches_others_is_found_out() -> None:
    missed = [what for what, held in flood(calm="REJECTED_DEADLINE").items() if not held]
    assert missed == [
        "calm is served inside its objective during the flood",
        "calm is refused during the flood",
    ]


def test_failures_are_no_refusals() -> None:
    missed = [what for what, held in flood(refusal="INTERNAL").items() if not held]
    assert missed == ["flood's excess is refused", "requests that failed instead of being refused"]


def test_shedding_that_does_not_end_is_found_out() -> None:
    missed = [what for what, held in flood(shed="stays").items() if not held]
    assert missed == [
        f"nothing is shed and hardly anything waits {when}" for when in ("from second 10 on", "at the end")
    ]


OVERLOAD = drills.OverloadTimes(before=2, double=4, fourfold=4, kill=1, after=8)


def overload(*, free: str = "REJECTED_DEADLINE", paid: str = "ok", lost: str = "ok", workers: int = 2) -> list[str]:
    """Which expectations an exemplary overload, with some ends changed, misses."""
    samples = [sample("paying", at / 4, paid if 8 <= at < 40 else "ok") for at in range(72)]
    samples += [sample("gratis", 2 + at / 8, free if at % 4 else "ok", degraded=("output_capped",)) for at in range(64)]
    samples += [sample("paying", 7.1, lost)]
    rows = [Second(at, workers=workers) for at in range(18)]
    return [check.what for check in drills.overload_checks(samples, rows, OVERLOAD) if not check.held]


def test_an_exemplary_overload_is_as_expected() -> None:
    assert overload() == []


def test_an_overload_that_goes_wrong_is_found_out() -> None:
    assert overload(lost="WORKER_LOST") == ["requests that failed, the killed worker's included"]
    assert overload(workers=1) == ["the killed worker is back"]
    assert any("shed before" in what for what in overload(paid="REJECTED_DEADLINE"))
