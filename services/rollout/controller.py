"""The leader's loop: rollouts whose evidence or surroundings changed are decided upon, and the outcome is written,
fenced."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from weir.registry.v1 import registry_pb2

from libs.changes import Change, Writer, put
from libs.clock import Clock
from libs.election import Leadership
from libs.errors import Reason, WeirError
from libs.registry import Put, RegistrySnapshot, RegistryView, Store, keys
from libs.rollouts import is_live
from libs.telemetry import get_logger
from services.rollout import convert, metrics
from services.rollout.budgets import RouteTier
from services.rollout.config import Settings
from services.rollout.history import action_of
from services.rollout.knowledge import Knowledge
from services.rollout.policy.decision import Decision
from services.rollout.policy.phases import Kind, Phase
from services.rollout.policy.plan import GateStatus, Plan, Situation, State

log = get_logger(__name__)
_OPEN = frozenset({Phase.SHADOW, Phase.CANARY, Phase.EXPERIMENT})
_ONWARD = frozenset({Kind.ADVANCE, Kind.PROMOTE, Kind.RESUME, Kind.WAIT})
_AWAY_SECONDS = 0.5
"""Before another attempt while the store is away."""

Decide = Callable[[Plan, State, Situation], Decision]
"""`services.rollout.policy.decide`."""


class Controller:
    """Decides while `lead` runs; `decide` may be asked by any replica."""

    def __init__(
        self,
        *,
        settings: Settings,
        store: Store,
        view: RegistryView,
        writer: Writer,
        knowledge: Knowledge,
        decide: Decide,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._store = store
        self._view = view
        self._writer = writer
        self._knowledge = knowledge
        self._decide = decide
        self._clock = clock
        self._by = f"controller/{settings.instance}"
        self._dirty: set[str] = set()
        self._wake = asyncio.Event()
        self._gates: dict[str, tuple[GateStatus, ...]] = {}
        """By rollout id, as of the last look."""
        self._decided: dict[str, float] = {}
        """By rollout id: when we last wrote a decision, monotonic seconds."""
        self._written: dict[RouteTier, registry_pb2.ErrorBudget] = {}
        self._budgets_due = 0.0

    def touch(self, aliases: set[str]) -> None:
        """Their evidence changed."""
        self._dirty |= aliases
        self._wake.set()

    def use(self, snapshot: RegistrySnapshot) -> None:
        """The registry changed: a rollout, a worker, a switch."""
        metrics.publish_rollouts(snapshot.rollouts.values())
        self.touch(_live(snapshot))

    def decide(self, rollout: registry_pb2.Rollout) -> Decision:
        """What is to be done about a live rollout, as far as this replica knows."""
        started = time.perf_counter()
        plan, state = convert.plan(rollout, self._view.snapshot), convert.state(rollout)
        decision = self._decide(plan, state, self._knowledge.situation(rollout))
        metrics.DECIDE_SECONDS.inc(time.perf_counter() - started)
        self._gates[rollout.id] = decision.gates
        if decision.kind is Kind.ROLL_BACK or state.phase.final:
            return decision
        if (given := self._given_instead(rollout)) is not None and decision.kind in _ONWARD:
            text = f"the alias gives {given}, as somebody chose, so callers do not meet this rollout; abort it"
            return _held(state, decision, text)
        if state.phase not in _OPEN:
            return decision
        if not self._knowledge.settled:
            text = "gateways have not all reported since this replica started"
            return Decision(Kind.WAIT, text, state, decision.gates)
        if decision.kind in _ONWARD and not self._knowledge.sources():
            # What it looks like says nothing of how it is.
            text = f"no gateway has reported for {self._settings.stale_seconds:g} s: nothing is known of callers"
            return _held(state, decision, text)
        since = self._clock.monotonic() - self._decided.get(rollout.id, -math.inf)
        if decision.kind is Kind.RESUME and since < self._settings.resume_seconds:
            return Decision(Kind.WAIT, f"{decision.text}; goes on soon", state, decision.gates)
        return decision

    def gates(self, rollout_id: str) -> tuple[GateStatus, ...]:
        """What each gate said of each arm when this replica last looked; of an ended rollout, at its end."""
        return self._gates.get(rollout_id, ())

    def keep(self, rollout_ids: set[str]) -> None:
        """Forgets other rollouts' gates."""
        for gone in self._gates.keys() - rollout_ids:
            del self._gates[gone]
        for gone in self._decided.keys() - rollout_ids:
            del self._decided[gone]

    async def lead(self, term: Leadership) -> None:
        """Goes on until cancelled; see `libs.election`."""
        metrics.LEADER.set(1)
        metrics.TERMS.inc()
        log.info("leading", instance=self._settings.instance)
        try:
            self._dirty = _live(self._view.snapshot)
            # What another leader wrote down is its own: ours may differ.
            self._written.clear()
            self._budgets_due = self._clock.monotonic()
            while True:
                aliases, self._dirty = self._dirty, set()
                self._wake.clear()
                for alias in sorted(aliases):
                    await self._step(alias, term)
                self._publish_gates()
                await self._keep_budgets(term)
                await asyncio.sleep(self._settings.decide_interval)
                if not self._dirty:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self._settings.tick):
                            await self._wake.wait()
                    if not self._wake.is_set():
                        self._dirty = _live(self._view.snapshot)
        finally:
            metrics.LEADER.set(0)
            log.info("not_leading", instance=self._settings.instance)

    def _publish_gates(self) -> None:
        snapshot = self._view.snapshot
        live = {alias: snapshot.rollouts[alias].id for alias in _live(snapshot)}
        metrics.publish_gates({alias: self.gates(identity) for alias, identity in live.items()})

    async def _step(self, alias: str, term: Leadership) -> None:
        rollout = self._view.snapshot.rollouts.get(alias)
        if rollout is None or not is_live(rollout):
            return
        try:
            decision = self.decide(rollout)
        except Exception as error:  # a fault over one rollout must not keep others from being taken back
            metrics.FAILURES.labels("DECIDE").inc()
            log.error("decide_failed", alias=alias, error=type(error).__name__, exc_info=error)
            return
        if not decision.changes:
            return
        try:
            await self._write(rollout, decision, term)
        except WeirError as error:
            metrics.FAILURES.labels(error.reason.name).inc()
            log.warning("decision_not_written", alias=alias, kind=decision.kind.value, reason=error.reason.name)
            self._dirty.add(alias)
            if error.reason is Reason.CONFLICT and error.limit == "guard":
                with suppress(WeirError):
                    await term.confirm()
            elif error.reason is not Reason.CONFLICT:
                await asyncio.sleep(_AWAY_SECONDS)

    async def _write(self, rollout: registry_pb2.Rollout, decision: Decision, term: Leadership) -> None:
        now = self._clock.time()

        def plan(snapshot: RegistrySnapshot) -> Change[registry_pb2.Rollout]:
            present = snapshot.rollouts.get(rollout.alias)
            if present is None or present.revision != rollout.revision:
                # Somebody steered it, or we did and the answer was lost: decided on what is no more.
                raise WeirError(Reason.CONFLICT, "the rollout changed meanwhile", limit="rollout")
            made = convert.with_state(rollout, decision.state, reason=decision.text, by=self._by, now=now)
            if decision.state.phase is not Phase.PROMOTED:
                return Change(made, (put(made),))
            return Change(made, (put(made), put(_promoted(snapshot, rollout))))

        done = await self._writer.commit(
            actor=self._by,
            action=action_of(decision.kind.value),
            plan=plan,
            reason=decision.text,
            guards=(term.guard,),
        )
        self._decided[rollout.id] = self._clock.monotonic()
        metrics.DECISIONS.labels(rollout.alias, decision.kind.value).inc()
        log.info(
            "rollout_decided",
            alias=rollout.alias,
            rollout=rollout.id,
            kind=decision.kind.value,
            phase=decision.state.phase.name,
            step=decision.state.step,
            why=decision.text,
            revision=done.revision,
        )

    def _given_instead(self, rollout: registry_pb2.Rollout) -> str | None:
        """What the alias gives, if that is not the rollout's baseline alone."""
        alias = self._view.snapshot.aliases.get(rollout.alias)
        targets = [target.model_version for target in alias.targets] if alias is not None else []
        return None if targets == [rollout.baseline] else ", ".join(targets) or "nothing"

    async def _keep_budgets(self, term: Leadership) -> None:
        """Writes budgets down every `budget_seconds`, and at once when an alert or exhaustion begins or ends."""
        status = self._knowledge.budget_status()
        due = self._clock.monotonic() >= self._budgets_due
        for where, budget in status.items():
            before = self._written.get(where)
            if (
                before is not None
                and _said(before) == _said(budget)
                and not (due and _counts(before) != _counts(budget))
            ):
                continue
            made = registry_pb2.ErrorBudget()
            made.CopyFrom(budget)
            made.windows = self._knowledge.budgets.packed(where)
            try:
                # Beside the fence of changes: nobody's decision is invalid because of it, and it makes no history.
                result = await self._store.txn(compares=[term.guard], puts=[Put(keys.key_of(made), keys.encode(made))])
            except WeirError as error:
                if error.reason is not Reason.DEPENDENCY_UNAVAILABLE:
                    raise
                return
            if not result.succeeded:
                with suppress(WeirError):
                    await term.confirm()
                return
            _tell_alerts(before, budget)
            self._written[where] = budget
        if due:
            self._budgets_due = self._clock.monotonic() + self._settings.budget_seconds


def _held(state: State, decision: Decision, text: str) -> Decision:
    """Instead of the decision, staying where it is."""
    if state.held or state.paused:
        return Decision(Kind.WAIT, text, state, decision.gates)
    return Decision(Kind.HOLD, text, replace(state, held=True), decision.gates)


def _promoted(snapshot: RegistrySnapshot, rollout: registry_pb2.Rollout) -> registry_pb2.Alias:
    """The alias, pointing to the candidate."""
    present = snapshot.aliases.get(rollout.alias)
    if present is None or [target.model_version for target in present.targets] != [rollout.baseline]:
        raise WeirError(Reason.CONFLICT, "the alias does not point to the rollout's baseline any more", limit="alias")
    made = registry_pb2.Alias()
    made.CopyFrom(present)
    made.targets[0].model_version = rollout.arms[0].model_version
    return made


def _live(snapshot: RegistrySnapshot) -> set[str]:
    return {alias for alias, rollout in snapshot.rollouts.items() if is_live(rollout)}


def _said(budget: registry_pb2.ErrorBudget) -> Mapping[str, tuple[str, bool]]:
    """What people and rollouts act on."""
    return {each.objective: (each.alert, each.consumed >= 1) for each in budget.objectives}


def _counts(budget: registry_pb2.ErrorBudget) -> Mapping[str, tuple[int, int]]:
    return {each.objective: (each.good, each.bad) for each in budget.objectives}


def _tell_alerts(before: registry_pb2.ErrorBudget | None, now: registry_pb2.ErrorBudget) -> None:
    known = _said(before) if before is not None else {}
    for each in now.objectives:
        said = (each.alert, each.consumed >= 1)
        if said != known.get(each.objective, ("", False)):
            log.warning(
                "error_budget",
                route=now.route,
                tier=now.tier,
                objective=each.objective,
                alert=each.alert or "none",
                consumed=round(each.consumed, 4),
            )
