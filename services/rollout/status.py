"""A rollout with its evidence, as operators see it."""

from __future__ import annotations

from weir.registry.v1 import registry_pb2
from weir.rollout.v1 import rollout_pb2 as pb

from libs.election import Election
from libs.errors import Reason, WeirError
from libs.registry import RegistryView
from libs.rollouts import BASELINE, arms_of, is_live
from services.rollout import convert
from services.rollout.controller import Controller
from services.rollout.history import History
from services.rollout.knowledge import Knowledge
from services.rollout.policy.evidence import ArmEvidence, Evidence, Stage
from services.rollout.policy.phases import Phase

_WHOLE = 10_000
_SHOWN = (Phase.SHADOW, Phase.CANARY, Phase.EXPERIMENT)


class StatusReader:
    """Puts statuses together; any replica can."""

    def __init__(
        self,
        *,
        view: RegistryView,
        knowledge: Knowledge,
        controller: Controller,
        history: History,
        election: Election,
    ) -> None:
        self._view = view
        self._knowledge = knowledge
        self._controller = controller
        self._history = history
        self._election = election

    def status(self, alias: str) -> pb.RolloutStatus:
        """How a rollout stands.

        :raises WeirError: NOT_FOUND when the alias never had one.
        """
        rollout = self._view.snapshot.rollouts.get(alias)
        if rollout is None:
            raise WeirError(Reason.NOT_FOUND, f"no rollout of {alias!r}", limit="alias")
        evidence = self._knowledge.evidence(rollout)
        made = pb.RolloutStatus(
            rollout=rollout,
            decisions=self._history.of(rollout.id)[:100],
            workers=_workers(self._view, rollout),
            leader=self._election.leadership is not None,
            leader_instance=self._election.leader,
            sources=len(self._knowledge.sources()),
        )
        made.arms.extend(_arms(rollout, evidence, self._given(rollout)))
        if is_live(rollout):
            made.waits_for = self._controller.decide(rollout).text
        made.gates.extend(convert.gate_status(each) for each in self._controller.gates(rollout.id))
        return made

    def _given(self, rollout: registry_pb2.Rollout) -> str:
        if is_live(rollout):
            return ""
        alias = self._view.snapshot.aliases.get(rollout.alias)
        return alias.targets[0].model_version if alias is not None and alias.targets else ""


def _arms(rollout: registry_pb2.Rollout, evidence: Evidence, given: str) -> list[pb.ArmStatus]:
    """`given`: the version that callers get after the rollout's end; empty while it runs."""
    phase, step = _stage(rollout, evidence)
    arms = arms_of(rollout)
    users = {arm.name: evidence.get(Stage(phase, step, arm.name), ArmEvidence()) for arm in arms}
    mirrors = {arm.name: evidence.get(Stage(phase, step, arm.name, mirrored=True), ArmEvidence()) for arm in arms}
    total = sum(each.started for each in users.values())
    return [
        _arm(
            pb.ArmStatus(
                arm=arm.name,
                model_version=arm.model_version,
                weight=arm.weight if not given else _WHOLE * (arm.model_version == given),
                measured_share=round(10_000 * users[arm.name].started / total) if total else 0,
                mirrored=mirrors[arm.name].requests,
            ),
            # In a shadow phase all that is known of a candidate comes from copies.
            mirrors[arm.name] if phase is Phase.SHADOW and arm.name != BASELINE else users[arm.name],
        )
        for arm in arms
    ]


def _arm(made: pb.ArmStatus, known: ArmEvidence) -> pb.ArmStatus:
    made.requests = known.requests
    made.error_rate = known.errors / known.requests if known.requests else 0.0
    made.stream_completion = known.completed / known.streams if known.streams else 0.0
    made.ttft_p50, made.ttft_p95, made.ttft_p99 = (known.ttft.quantile(share) for share in (0.5, 0.95, 0.99))
    made.itl_p50, made.itl_p95 = (known.itl.quantile(share) for share in (0.5, 0.95))
    made.cost_per_1k_tokens = known.cost.per_1k_tokens
    made.cost_per_request = known.cost.per_request
    for metric, moments in known.scores.items():
        made.scores[metric] = moments.mean
    return made


def _stage(rollout: registry_pb2.Rollout, evidence: Evidence) -> tuple[Phase, int]:
    """The present phase and step; of a rollout that has ended, the last that anybody met."""
    state = convert.state(rollout)
    if state.phase in _SHOWN:
        return state.phase, state.step
    met = [(stage.phase, stage.step) for stage in evidence if stage.phase in _SHOWN]
    return max(met, default=(state.phase, state.step))


def _workers(view: RegistryView, rollout: registry_pb2.Rollout) -> list[pb.WorkerState]:
    versions = (rollout.baseline, *(arm.model_version for arm in rollout.arms))
    found = []
    for worker in convert.workers(view.snapshot, versions):
        for version in versions:
            model = worker.models.get(version)
            if model is not None:
                state = registry_pb2.ModelState(model_version=version, detail=model.detail)
                state.state = int(model.load)  # type: ignore[assignment]
                found.append(pb.WorkerState(worker=worker.name, zone=worker.zone, state=state))
    return found
