"""Mirrored predictions: the same tensors to a rollout's candidate, after the user's answer, where no user sees it, and
compared. When, how many and on whose quota is `libs.mirrors`' matter; that nobody waits for them the executors'."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
from inference.open_inference_pb2 import ModelInferResponse
from weir.quota.v1 import quota_pb2

from libs.batching import Late
from libs.errors import Reason, WeirError
from libs.mirrors import Copy, MirrorMetrics, MirrorQueue, Verdict
from libs.outcomes import ArmKey, Ran
from libs.rollouts import SHADOW_TENANT
from libs.telemetry.tracing import Span
from services.predictor.call import Answer, Call, Rank
from services.predictor.compare import SCORES, Window, compare, told
from services.predictor.executors import Barred, Crashed, Executors
from services.predictor.port import ModelError, Tensor, Tensors
from services.predictor.tensors import check_rows, decode, from_raw

_METRICS = MirrorMetrics("weir_predictor")
_MOST_WINDOWS = 1024


class Mirrored(msgspec.Struct, frozen=True, eq=False):
    """A call and what its caller got."""

    call: Call
    answer: Answer


class Mirrors(MirrorQueue[Mirrored]):
    """One per process and event loop."""

    def __init__(self, executors: Executors, **more: Any) -> None:
        """:param more: see `MirrorQueue`."""
        super().__init__(metrics=_METRICS, **more)
        self._executors = executors
        self._windows: dict[ArmKey, Window] = {}

    def mirror(self, call: Call, answer: Answer, arm: ArmKey | None) -> None:
        """Called once per answer, `arm` being where its call counts; returns at once. What was not the version's own
        work is compared with nothing."""
        target = call.route.mirror
        if target is None or arm is None or answer.degraded or answer.version != call.version:
            return
        copy = replace(arm, arm=target.arm, mirrored=True)
        self.take(Mirrored(call, answer), target, copy, route="predict", traceparent=call.traceparent)

    async def answer(self, copy: Copy[Mirrored], trace: Span) -> Ran:
        """See `MirrorQueue`."""
        call, version, alias = copy.asked.call, copy.target.model_version, copy.arm.alias
        trace.set("weir.model_version", version)
        inputs, rows = self._inputs(call, version)
        reserve = quota_pb2.Reserve(
            model=alias, request_id=f"{call.request_id}~shadow", tokens=rows, rows=True, model_version=version
        )
        began = self._clock.monotonic()
        async with self.lease(reserve, copy.deadline, trace) as used:
            outputs = await self._execute(copy, inputs, rows)
            used.tokens = rows
        total = self._clock.monotonic() - began
        self._compare(copy, outputs)
        return Ran(whole=True, first=total, total=total, model_version=version, model=alias, rows=rows)

    def _inputs(self, call: Call, version: str) -> tuple[Tensors, int]:
        try:
            signature = self._executors.ask(version)
        except KeyError:
            raise _away(version) from None
        try:
            sent = decode(call.request, signature)
            rows = check_rows(sent, signature)
            return self._executors.rules(version).apply(sent, replace=call.degradable)[0], rows
        except WeirError as error:  # its baseline took them
            raise WeirError(Reason.ENGINE_ERROR, f"{version} does not take what its baseline takes") from error

    async def _execute(self, copy: Copy[Mirrored], inputs: Tensors, rows: int) -> Tensors:
        call, version = copy.asked.call, copy.target.model_version
        names = frozenset(output.name for output in copy.asked.answer.response.outputs)
        try:
            ran = await self._executors.run(
                version,
                inputs,
                outputs=names,
                rows=rows,
                # One tenant's copies must not stand in the way of another's.
                tenant=f"{SHADOW_TENANT}/{call.tenant}",
                rank=Rank.MIRRORED,
                deadline=copy.deadline.at,
            )
        except Late as late:
            reason = Reason.REJECTED_QUEUE_FULL if late.full else Reason.REJECTED_DEADLINE
            raise WeirError(reason, "there was no room for a copy", retry_after=late.retry_after) from None
        except (ModelError, Crashed, Barred) as error:  # copies of what its baseline lived through
            raise WeirError(Reason.ENGINE_ERROR, f"{version} failed on what its baseline answered") from error
        except KeyError:
            raise _away(version) from None
        return ran.outputs

    def _compare(self, copy: Copy[Mirrored], outputs: Tensors) -> None:
        found = compare(arrays_of(copy.asked.answer.response), outputs)
        for name, value in told(found):
            self._evidence.score(copy.arm, name, value)
        if len(found.users):
            if len(self._windows) >= _MOST_WINDOWS:
                self._windows.clear()
            distance = self._windows.setdefault(copy.arm, Window()).add(found.users, found.copies)
            if distance is not None:
                self._evidence.score(copy.arm, SCORES, distance)
        _METRICS.compared(Verdict.SAME if found.same else Verdict.DIFFERENT)


def arrays_of(response: ModelInferResponse) -> dict[str, np.ndarray]:
    """The outputs of an answer."""
    return {
        output.name: from_raw(raw, Tensor(output.name, output.datatype, tuple(output.shape)), output.shape)
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }


def _away(version: str) -> WeirError:
    return WeirError(Reason.NO_WORKERS, f"{version} is not loaded here")
