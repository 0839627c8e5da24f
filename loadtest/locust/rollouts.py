"""An operator who rolls versions of one alias out, one after the other, and leaves the alias as it was found."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from weir.registry.v1 import registry_pb2 as pb
from weir.registry.v1 import registry_pb2_grpc

from libs.artifacts import full_name, manifest_digest, read_key, sign
from libs.deadlines import to_duration
from libs.errors import Reason, WeirError
from libs.resources.codec import pack, unpack
from libs.rollouts import is_live, phase_of
from libs.rpc import make_channel
from loadtest.locust import settings
from loadtest.locust.messages import Told
from loadtest.locust.rows import PROMOTED

SUFFIX = "-locust"
"""Of the version that is registered where none is named: "weir-fast@1-locust"."""
_TIMEOUT = 10.0
"""Seconds of a call: a change rides out an election of etcd."""
_LOOK_SECONDS = 0.25
_BASIS_POINTS = 100  # in a percent
_REASON = "a load test rolls it out"
_PHASES = {pb.ROLLOUT_PHASE_CANARY: "canary", pb.ROLLOUT_PHASE_PROMOTED: PROMOTED}
"""What is reached on the way, by the name of its row."""
_ENDED = (pb.ROLLOUT_PHASE_PROMOTED, pb.ROLLOUT_PHASE_ROLLED_BACK, pb.ROLLOUT_PHASE_ABORTED)


class Operator:
    """Calls the registry with an operator's certificate. For one rollout at a time."""

    def __init__(self, how: settings.Operator, alias: str) -> None:
        self._how = how
        self._alias = alias
        self._channel = make_channel(
            how.registry, tls=how.tls, server_name="registry.weir.internal", translate_errors=True
        )
        self._registry: Any = registry_pb2_grpc.RegistryServiceStub(self._channel)
        self._home = ""

    async def roll_out(self, id: int) -> Told:
        """Roll the alias to its other version and wait for the end."""
        started = time.perf_counter()
        steps: list[tuple[str, float]] = []

        def reached(step: str) -> None:
            steps.append((step, round(time.perf_counter() - started, 4)))

        outcome, note = "ok", ""
        try:
            candidate = await self._candidate()
            reached("candidate")
            begun = await self._start(candidate)
            reached("start")
            ended = await self._end(begun, reached)
            if phase_of(ended) != pb.ROLLOUT_PHASE_PROMOTED:
                outcome = pb.RolloutPhase.Name(phase_of(ended)).removeprefix("ROLLOUT_PHASE_")
                note = ended.state.reason
        except WeirError as error:
            outcome, note = error.reason.name, error.message
        return Told(id=id, outcome=outcome, seconds=time.perf_counter() - started, steps=tuple(steps), note=note)

    async def close(self) -> None:
        """Abort what is under way, let the alias point where it did, and hang up."""
        try:
            if self._home:
                await self._restore()
        finally:
            await self._channel.close()

    async def _candidate(self) -> str:
        """The version that the alias does not give now, registered if need be."""
        present = (await self._get("Alias", self._alias)).alias.targets[0].model_version
        if not self._home:
            # A run that was killed may have left its rollout under way, and the alias at what it made.
            await self._abort()
            self._home = present.removesuffix(SUFFIX)
        other = self._how.candidate or self._home + SUFFIX
        if present != self._home:
            return self._home
        if not self._how.candidate:
            await self._register_twin(other)
        return other

    async def _register_twin(self, name: str) -> None:
        """The same model under another version, so that nothing but the rollout itself can be seen."""
        try:
            await self._get("ModelVersion", name)
            return
        except WeirError as error:
            if error.reason is not Reason.NOT_FOUND:
                raise
        version: Any = unpack(await self._get("ModelVersion", self._home))
        version.version = name.partition("@")[2]
        for computed in ("created_at", "signature"):
            version.ClearField(computed)
        version.digest = manifest_digest(version)
        if self._how.signing_key:
            version.signature = sign(version, read_key(Path(self._how.signing_key)))
        assert full_name(version) == name
        await self._apply(pack(version))

    async def _start(self, candidate: str) -> str:
        """Begin; the rollout's id."""
        steps = [
            pb.RolloutStep(
                weight=percent * _BASIS_POINTS,
                min_duration=to_duration(self._how.step_seconds),
                min_samples=self._how.step_samples,
            )
            for percent in self._how.steps
        ]
        rollout = pb.Rollout(
            alias=self._alias,
            arms=[pb.RolloutArm(name="canary", model_version=candidate)],
            steps=steps,
            sticky=pb.STICKY_BY_USER,
            few_keys_reason="users of a load test are few",
            reason=_REASON,
        )
        applied = (await self._apply(pack(rollout))).results[0]
        if applied.outcome == pb.OUTCOME_UNCHANGED:  # as it was applied before: it begins again
            return (await self._steer(pb.STEERING_RESTART)).rollout.rollout.id
        return str(json.loads(applied.change.after)["spec"]["id"])

    async def _end(self, begun: str, reached: Callable[[str], None]) -> pb.Rollout:
        """The rollout of this id once it has ended."""
        seen = -1
        while True:
            rollout: Any = unpack(await self._get("Rollout", self._alias))
            # A replica of the registry that is behind still knows the one before.
            phase = phase_of(rollout) if rollout.id == begun else seen
            if phase != seen and phase in _PHASES:
                reached(_PHASES[phase])
            seen = phase
            if phase in _ENDED:
                return rollout
            await asyncio.sleep(_LOOK_SECONDS)

    async def _abort(self) -> None:
        """The alias's rollout, if one is under way that a load test began."""
        try:
            rollout: Any = unpack(await self._get("Rollout", self._alias))
        except WeirError as error:
            if error.reason is Reason.NOT_FOUND:
                return
            raise
        if is_live(rollout) and rollout.reason == _REASON:
            await self._steer(pb.STEERING_ABORT)

    async def _restore(self) -> None:
        await self._abort()
        alias = await self._get("Alias", self._alias)
        if alias.alias.targets[0].model_version != self._home:
            del alias.alias.targets[:]
            alias.alias.targets.add(model_version=self._home, weight=100)
            await self._apply(alias)

    async def _get(self, kind: str, name: str) -> pb.Resource:
        return (await self._registry.Get(pb.GetRequest(kind=kind, name=name), timeout=_TIMEOUT)).resource

    async def _apply(self, resource: pb.Resource) -> pb.ApplyResponse:
        change = pb.ChangeOptions(reason=_REASON)
        return await self._registry.Apply(pb.ApplyRequest(resources=[resource], change=change), timeout=_TIMEOUT)

    async def _steer(self, steering: pb.Steering) -> pb.SteerRolloutResponse:
        change = pb.ChangeOptions(reason=_REASON)
        asked = pb.SteerRolloutRequest(alias=self._alias, steering=steering, change=change)
        return await self._registry.SteerRollout(asked, timeout=_TIMEOUT)
