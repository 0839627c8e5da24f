"""What a bench makes of what callers saw."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from weir.registry.v1 import registry_pb2 as pb

from loadtest.overload.samples import OK
from loadtest.rollout.bad_predictor import unfaithful
from loadtest.rollout.drill import Watched, taken_back
from loadtest.rollout.site import Change
from loadtest.rollout.traffic import Seen
from loadtest.rollout.trial import Harm, NoHarmError, flaps, harm, moved_pct


def seen(sent: float, version: str = "m@1", *, user: str = "u", outcome: str = OK, ttft: float | None = 0.1) -> Seen:
    return Seen("m", user, sent, sent + 0.2, outcome, version, "", ttft, 8)


def test_harm_counts_from_the_first_bad_answer_to_the_decision_and_the_last_request_sent() -> None:
    answers = [
        seen(1.0),
        seen(10.0, "m@2"),
        seen(11.0, "m@2", outcome="ENGINE_ERROR"),
        seen(12.0),
        seen(13.0, "", outcome="ENGINE_ERROR"),
        seen(14.3, "m@2"),
        seen(20.0),
    ]
    found = harm(answers, candidate="m@2", decided=14.0, slow=False)
    assert found.detect == pytest.approx(14.0 - 11.2)
    assert found.off == pytest.approx(0.3)
    assert found.harmed_pct == pytest.approx(100 * 2 / 5)  # sent at 10, 11, 12, 13 and 14.3
    assert found.samples == 3


def test_every_answer_of_a_slow_canary_is_bad() -> None:
    answers = [seen(1.0, "m@2"), seen(2.0), seen(2.5)]
    assert harm(answers, candidate="m@2", decided=5.0, slow=True).harmed_pct == pytest.approx(100 / 3)
    with pytest.raises(NoHarmError):
        harm(answers, candidate="m@2", decided=5.0, slow=False)


def test_a_user_who_meets_two_versions_flaps() -> None:
    assert flaps([seen(1.0, "m@1"), seen(2.0, "m@1"), seen(3.0, "m@2", user="v")]) == 0
    assert flaps([seen(1.0, "m@1"), seen(2.0, "m@2"), seen(3.0, "m@2", user="v")]) == 1


def test_moved_users_are_those_answered_by_another_version_afterwards() -> None:
    before = [seen(1.0, "m@1", user=str(number)) for number in range(10)]
    after = [seen(2.0, "m@2" if number < 3 else "m@1", user=str(number)) for number in range(12)]
    assert moved_pct(before, after) == 30.0
    with pytest.raises(ValueError, match="both"):
        moved_pct(before, [])


def test_who_met_a_version_and_then_another_did_not_stay_with_it() -> None:
    answers = [
        seen(3.0, "m@1", user="went"),  # answers come in another order than they were asked for
        seen(1.0, "m@1", user="came"),
        seen(2.0, "m@2", user="came"),
        seen(2.0, "m@2", user="went"),
        seen(4.0, "", user="came", outcome="NO_WORKERS"),
        seen(9.0, "m@1", user="came"),
    ]
    assert unfaithful(answers, "m@2", until=9.0) == {"went"}
    assert unfaithful(answers, "m@2", until=3.0) == set()
    assert unfaithful(answers, "m@2", until=10.0) == {"went", "came"}


def broken(
    *,
    phase: pb.RolloutPhase = pb.ROLLOUT_PHASE_ROLLED_BACK,
    weight: int = 1000,
    hurt: Harm | None = None,
    others: Sequence[Seen] = (),
    after: Sequence[Seen] = (),
) -> list[str]:
    """What does not hold of a bad version that was watched."""
    arm, step = pb.RolloutArm(name="canary", model_version="m@2"), pb.ROLLOUT_PHASE_CANARY
    begun = pb.Rollout(baseline="m@1", arms=[arm], state=pb.RolloutState(phase=step, weights=[weight]))
    ended = pb.Rollout(baseline="m@1", arms=[arm], state=pb.RolloutState(phase=phase, reason="the Error rate is 0.3"))
    found = Watched(0.0, ended, [Change(1.0, begun), Change(2.0, ended)], [])
    hurt = hurt or Harm(detect=3.0, off=0.1, harmed_pct=5.0, samples=10)
    checks = taken_back(found, "m@2", "error", hurt, others=others or [seen(1.0)], after=after or [seen(9.0)])
    return [check.what for check in checks if not check.held]


def test_a_bad_version_is_taken_back_in_time_and_hurts_nobody_else() -> None:
    assert broken() == []
    assert broken(phase=pb.ROLLOUT_PHASE_PROMOTED) == ["the version is rolled back"]
    assert broken(hurt=Harm(16.0, 1.1, 5.0, 10)) == [
        "found out within 15 s of its first bad answer",
        "no request sent to it a second after the decision",
    ]
    assert broken(weight=1001) == ["it never had more than a tenth"]
    assert broken(others=[seen(1.0), seen(2.0, outcome="ENGINE_ERROR")]) == ["nobody else was failed"]
    for late in (seen(9.0, "m@2"), seen(9.0, outcome="NO_WORKERS")):
        assert broken(after=[seen(8.0), late]) == ["afterwards everybody is answered, by the version before"]
