"""Mirrored generations: prompt → worker → comparison. When, how many and on whose quota is `libs.mirrors`' matter."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from prometheus_client import Histogram
from weir.admission.v1 import admission_pb2
from weir.quota.v1 import quota_pb2

from libs.mirrors import Copy, MirrorMetrics, MirrorQueue, Verdict
from libs.outcomes import Ran
from libs.rollouts import SHADOW_TENANT
from libs.telemetry.tracing import Span
from services.gateway.internal import Run
from services.gateway.policy.finals import FinalAnswer, answered
from services.gateway.policy.spec import Spec
from services.gateway.ports import Mirrored
from services.gateway.shadow.compare import comparable, compare, repeatable

_METRICS = MirrorMetrics("weir_gateway")
_FIRST_DIFFERENCE = Histogram(
    "weir_gateway_shadow_first_difference",
    "Position of the first token that differs, of answers that do.",
    buckets=(0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
)


class Runs(Protocol):
    """What generates; `services.gateway.serve.Pipeline` fits."""

    async def encode(self, model_version: str, spec: Spec) -> list[int]:
        """The prompt's tokens for a version."""

    async def run(self, run: Run) -> FinalAnswer:
        """Generate, to the end."""


class Mirrors(MirrorQueue[Mirrored]):
    """One per process and event loop."""

    def __init__(self, runs: Runs, **more: Any) -> None:
        """:param more: see `MirrorQueue`."""
        super().__init__(metrics=_METRICS, **more)
        self._runs = runs

    def mirror(self, request: Mirrored) -> None:
        """Called on the event loop, once per request whose route has a mirror, in the turn after the user's first text
        was handed to its face; not for requests that end without any text, nor for replayed answers. Returns at once.
        """
        target = request.route.mirror
        if target is None:
            raise ValueError("the request is not to be mirrored")
        route = "batch" if request.spec.batch else "generate"
        self.take(request, target, request.copy_arm, route=route, traceparent=request.traceparent)

    async def answer(self, copy: Copy[Mirrored], trace: Span) -> Ran:
        """See `MirrorQueue`."""
        trace.set("gen_ai.request.model", copy.arm.alias)
        trace.set("gen_ai.response.model", copy.target.model_version)
        prompt, same_tokens = await self._prompt(copy)
        found = await self._generate(copy, prompt, trace)
        # The user's answer may take longer, and needs no task to be waited for.
        copy.asked.answer.add_done_callback(lambda users: self._compare(copy, users, found, same_tokens=same_tokens))
        return answered(found, copy.arm.alias)

    async def _prompt(self, copy: Copy[Mirrored]) -> tuple[list[int], bool]:
        """The prompt in the candidate's tokens, and whether both versions mean the same by tokens."""
        versions, asked = self._snapshot().model_versions, copy.asked
        users, candidate = versions.get(asked.route.model_version), versions.get(copy.target.model_version)
        alike = False
        if users is not None and candidate is not None:
            alike = _alike(users.tokenizer_sha256, candidate.tokenizer_sha256)
            templates = _alike(users.chat_template_sha256, candidate.chat_template_sha256)
            if alike and (templates or asked.spec.messages is None):
                return list(asked.prompt), True
        prompt = await self._runs.encode(copy.target.model_version, asked.spec)
        return prompt, alike or prompt == list(asked.prompt)

    async def _generate(self, copy: Copy[Mirrored], prompt: list[int], trace: Span) -> FinalAnswer:
        asked, parameters = copy.asked, copy.asked.parameters
        run = Run(
            request_id=f"{asked.request_id}~shadow",
            # Copies of different tenants' prompts must not meet in a prefix cache, nor the copy the user's.
            tenant=f"{SHADOW_TENANT}/{asked.identity.tenant}",
            model_version=copy.target.model_version,
            pool=copy.target.pool,
            zones=copy.target.zones,
            queue_class=admission_pb2.QUEUE_CLASS_SHADOW,
            prompt=prompt,
            parameters=parameters,
            version_share=copy.share,
            deadline=copy.deadline,
            traceparent=trace.traceparent,
        )
        reserve = quota_pb2.Reserve(
            model=copy.arm.alias,
            request_id=run.request_id,
            tokens=len(prompt) + parameters.max_tokens * parameters.n,
            prompt_tokens=len(prompt),
            max_output_tokens=parameters.max_tokens,
            choices=parameters.n,
            model_version=run.model_version,
        )
        async with self.lease(reserve, copy.deadline, trace) as used:
            answer = await self._runs.run(run)
            usage = answer.end.usage
            used.tokens, used.prompt_tokens = usage.prompt_tokens + usage.completion_tokens, usage.prompt_tokens
        return answer

    def _compare(
        self, copy: Copy[Mirrored], users: asyncio.Future[FinalAnswer], answer: FinalAnswer, *, same_tokens: bool
    ) -> None:
        if users.cancelled() or not comparable(users.result()) or not comparable(answer):
            _METRICS.compared(Verdict.INCOMPARABLE)
            return
        if not same_tokens:
            _METRICS.compared(Verdict.UNCOUNTED)
            return
        found = compare(users.result(), answer, exactness=repeatable(copy.asked.parameters))
        for name, value in found.scores():
            self._evidence.score(copy.arm, name, value)
        if found.exact is None:
            _METRICS.compared(Verdict.UNCOUNTED)
        else:
            _METRICS.compared(Verdict.SAME if found.exact else Verdict.DIFFERENT)
        if found.first_difference is not None:
            _FIRST_DIFFERENCE.observe(found.first_difference)


def _alike(one: str, other: str) -> bool:
    return bool(one) and one == other
