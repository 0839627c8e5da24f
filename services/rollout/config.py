"""Settings of the rollout controller."""

from __future__ import annotations

from libs.config import ServiceSettings


class Settings(ServiceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the rollout controller needs beside the common settings. Durations in seconds."""

    service: str = "rollout"
    instance: str = "rollout-0"

    decide_interval: float = 0.1
    """Between two decisions about the same rollout at least; evidence that comes meanwhile waits so long."""
    tick: float = 1.0
    """Between two decisions about a live rollout at most: time alone completes steps too."""
    resume_seconds: float = 5.0
    """After a decision about a rollout no hold is lifted for so long: what comes and goes must not fill the history."""
    report_seconds: float = 0.25
    """How soon gateways shall report again."""
    stale_seconds: float = 10.0
    """A gateway that reported nothing for longer is not heard; without any heard, rollouts are held."""
    leader_ttl: float = 3.0
    """From a leader's death to the end of its lease; etcd rounds up to whole seconds, at least 2."""
    burn_scale: float = 1.0
    """Factor on the windows of burn rates of all traffic: 0.01 makes five minutes three seconds, for tests."""
    arm_burn_scale: float = 0.05
    """Factor on the windows of arms' burn rates, which are younger than a day: 0.05 makes five minutes 15 s."""
    budget_seconds: float = 30.0
    """Between two writes of the error budgets; a change of an alert is written at once."""
    max_arms: int = 5_000
    """Stages (rollout, phase, step, arm) that are kept per gateway; further ones are ignored."""
    max_sources: int = 1_000
    """Incarnations of gateways that are kept; the one not heard for longest goes first."""
    score_memory: int = 100_000
    """Ids of scores that are remembered per arm, to tell repeated ones."""
