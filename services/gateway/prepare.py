"""The first stage: template and tokenise, while safety, quota and route are being decided."""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace
from weir.registry.v1 import registry_pb2

from libs.clock import Clock
from libs.errors import Reason, WeirError
from libs.routing import Route
from services.gateway.catalog import Catalog
from services.gateway.config import Settings
from services.gateway.lease import Lease, forget
from services.gateway.policy.answers import answer_key, repeatable
from services.gateway.policy.parameters import NO_OUTPUT, bind_parameters, invalid
from services.gateway.policy.plans import LADDER_FLAGS, OVER_QUOTA, SAFETY_SKIPPED
from services.gateway.policy.spec import Spec
from services.gateway.ports import InputCheck, RouterPort, SafetyPort
from services.gateway.request import Candidate, Prepared, Progress, Request, queue_class_of, with_texts
from services.gateway.structures import StructureChecks
from services.gateway.text import TextModel

_UNCHECKED = InputCheck(None)
_MESSAGE_CHARS = 32
"""What rendering one more message costs, in characters to tokenise."""


class Preparation:
    """Makes candidates out of requests. One per process."""

    def __init__(
        self, settings: Settings, *, catalog: Catalog, router: RouterPort, safety: SafetyPort, clock: Clock
    ) -> None:
        self._settings = settings
        self._catalog = catalog
        self._router = router
        self._safety = safety
        self._clock = clock
        self._structures = StructureChecks()

    async def prepare(self, request: Request, lease: Lease, progress: Progress) -> Prepared:
        """What to ask admission for; the lease holds the quota for it then.

        :raises WeirError: whatever refused it.
        """
        if request.internal is not None:
            now = self._clock.monotonic()
            given = request.internal
            return Prepared(candidate=given.candidate, queue_class=given.queue_class, tokenised=now, decided=now)
        spec = request.spec
        checking: Future[InputCheck] | None = None
        routing: Future[tuple[Route, bool]] | None = None
        await self._structures.check(spec.parameters.structure)
        try:
            asked = request.question(self._catalog, spec.model)
            routing = self._router.start_resolve(asked, deadline=request.deadline, traceparent=request.traceparent)
            # Policies and tokenizer are needed before a router that is asked answers; the same function says which.
            known = routing.done() and routing.exception() is None
            guess = progress.route = routing.result()[0] if known else self._catalog.resolve(asked)
            version = self._catalog.version(guess.model_version)
            text = await self._catalog.text(version, request.deadline.remaining(self._clock))
            candidate = await self._read(request, spec.model, guess, version, text, _UNCHECKED)
            # What does not fit is refused before anybody reads it.
            checking = self._check(request, version, text, progress)
            tokenised = self._clock.monotonic()
            lease.start(candidate)
            check = await checking
            route, routed_locally = await routing
            progress.route = route
            progress.reservation = reservation = await lease.taken()
            if route.model_version != guess.model_version or check.texts is not None:
                candidate = await self.candidate(request, spec.model, route, check, progress)
                await lease.hold(candidate)
                progress.reservation = reservation = lease.reservation or reservation
            else:
                _require_hidden(spec, check)
                read = candidate
                arm = read.arm if route is guess else self._catalog.arm_key(spec.model, route)
                candidate = Candidate(spec.model, route, version, text, read.prompt, read.bound, check, arm, read.parts)
        except BaseException:
            for future in (checking, routing):
                if future is not None:
                    forget(future)
            raise
        flags = (
            ("router_local", routed_locally),
            ("quota_local", reservation.local),
            (OVER_QUOTA, reservation.over_quota),
            (SAFETY_SKIPPED, check.skipped),
        )
        return Prepared(
            candidate=candidate,
            queue_class=queue_class_of(request.tenant, batch=spec.batch, over_quota=reservation.over_quota),
            degraded=tuple([name for name, on in flags if on]),
            answer_key=self._answer_key(request, candidate),
            tokenised=tokenised,
            decided=self._clock.monotonic(),
        )

    async def again(self, request: Request, before: Prepared, lease: Lease, progress: Progress) -> Prepared:
        """What to ask admission for instead, since the request's arm was taken out: by this gateway's own snapshot,
        which shows that.

        :raises WeirError: whatever refused it.
        """
        model = request.spec.model
        route = progress.route = self._router.resolve_here(request.question(self._catalog, model))
        candidate = await self.candidate(request, model, route, before.candidate.check, progress, before.candidate)
        await lease.hold(candidate)
        degraded = tuple([flag for flag in before.degraded if flag not in LADDER_FLAGS])
        return replace(before, candidate=candidate, degraded=degraded, answer_key=self._answer_key(request, candidate))

    async def candidate(
        self,
        request: Request,
        model: str,
        route: Route,
        known: InputCheck,
        progress: Progress,
        before: Candidate | None = None,
    ) -> Candidate:
        """The request for a route's version, with its own tokens and limits. Its input is checked again where `known`
        was said under other policies; `before` spares tokenising anew.

        :raises WeirError: whatever refused it: CONTENT_FILTER, or DEPENDENCY_UNAVAILABLE under fail closed;
            INVALID_REQUEST also when what the caller wants to see is not shown under these policies.
        """
        version = self._catalog.version(route.model_version)
        text = await self._catalog.text(version, request.deadline.remaining(self._clock))
        check = known
        if check.asked != self._catalog.policies(request.tenant, version):
            check = await self._check(request, version, text, progress)
        _require_hidden(request.spec, check)
        same = before is not None and before.text is text and before.check is check
        return await self._read(request, model, route, version, text, check, before if same else None)

    async def encode(self, text: TextModel, spec: Spec) -> list[int]:
        """The prompt's tokens; long inputs are tokenised in a thread.

        :raises WeirError: INVALID_REQUEST when there are none, or ids outside the vocabulary.
        """
        if max(spec.parameters.logit_bias, default=0) >= text.vocabulary_size:
            raise invalid("logit_bias", "a token id is outside the vocabulary")
        if spec.token_ids is not None:
            if max(spec.token_ids) >= text.vocabulary_size:
                raise invalid("prompt", "a token id is outside the vocabulary")
            return list(spec.token_ids)
        texts = spec.texts()
        long = sum(map(len, texts)) + _MESSAGE_CHARS * len(texts) > self._settings.encode_inline_chars
        if spec.messages is not None:
            encode: Any = text.encode_chat
            given: Any = spec.messages
        else:
            encode, given = text.encode, spec.prompt
        ids: list[int] = await asyncio.to_thread(encode, given) if long else encode(given)
        if not ids:
            raise invalid("prompt", "is empty")
        return ids

    async def _read(
        self,
        request: Request,
        model: str,
        route: Route,
        version: registry_pb2.ModelVersion,
        text: TextModel,
        check: InputCheck,
        before: Candidate | None = None,
    ) -> Candidate:
        """Its tokens for a version, with the version's defaults and the limits of it and of the tenant.

        :raises WeirError: see `encode`, `_inputs` and `bind_parameters`.
        """
        spec = request.spec
        arm = self._catalog.arm_key(model, route)
        limits = self._catalog.limits(request.identity.tenant, spec.model, version)
        if spec.inputs:
            context = min(limits.context_length, limits.max_context or limits.context_length)
            inputs = await self._inputs(text, spec, check.texts, context)
            parts = tuple(parts_of(inputs, version.context_length))
            return Candidate(model, route, version, text, [], NO_OUTPUT, check, arm, parts)
        prompt = before.prompt if before is not None else await self.encode(text, with_texts(spec, check.texts))
        bound = bind_parameters(spec.parameters, limits, len(prompt))
        return Candidate(model, route, version, text, prompt, bound, check, arm)

    async def _inputs(
        self, text: TextModel, spec: Spec, replaced: tuple[str, ...] | None, context: int
    ) -> list[list[int]]:
        """The tokens of what is to be embedded; of what safety `replaced`, those of the new words.

        :raises WeirError: CONTEXT_LENGTH_EXCEEDED; INVALID_REQUEST for ids outside the vocabulary.
        """
        given = list(spec.inputs)
        if any(not isinstance(one, str) and max(one) >= text.vocabulary_size for one in given):
            raise invalid("input", "a token id is outside the vocabulary")
        if replaced is not None:
            kept = zip(given, spelt(text, spec), replaced, strict=True)
            given = [one if was == now else now for one, was, now in kept]
        found = []
        for one in given:
            if not isinstance(one, str):
                found.append(list(one))
            elif len(one) > self._settings.encode_inline_chars:
                found.append(await asyncio.to_thread(text.encode, one))
            else:
                found.append(text.encode(one))
        if max(map(len, found)) > context:
            raise WeirError(Reason.CONTEXT_LENGTH_EXCEEDED, f"an input exceeds {context} tokens", limit="input")
        return found

    def _check(
        self, request: Request, version: registry_pb2.ModelVersion, text: TextModel, progress: Progress
    ) -> Future[InputCheck]:
        texts = spelt(text, request.spec)
        progress.policies = self._catalog.policies(request.tenant, version)
        size, most = sum(map(len, texts)), self._settings.max_input_chars
        if size > most:
            message = f"the input has {size} characters; the limit is {most}"
            raise WeirError(Reason.PAYLOAD_TOO_LARGE, message, limit="max_input_chars")
        return self._safety.start_check(
            tenant=request.identity.tenant,
            policies=progress.policies,
            texts=texts,
            request_id=request.id,
            deadline=request.deadline,
            traceparent=request.traceparent,
        )

    def _answer_key(self, request: Request, candidate: Candidate) -> bytes:
        bound, check = candidate.bound, candidate.check
        if (
            candidate.parts
            or not request.plan.remembers
            or not repeatable(bound, seeded=request.spec.parameters.seed is not None)
        ):
            return b""
        tenant, version = request.identity.tenant, candidate.route.model_version
        return answer_key(tenant, version, candidate.prompt, bound, check.policies)


def spelt(text: TextModel, spec: Spec) -> list[str]:
    """What safety reads: token ids as the text that they spell."""
    if spec.inputs:
        return [one if isinstance(one, str) else text.decode(one) for one in spec.inputs]
    return spec.texts() if spec.token_ids is None else [text.decode(spec.token_ids)]


def parts_of(inputs: Sequence[list[int]], most: int) -> Iterator[list[list[int]]]:
    """The inputs in their order, in parts of at most `most` tokens: a grant is for what a worker can hold at once, and
    between two of them others have their turn. An input of its own may have more."""
    part: list[list[int]] = []
    tokens = 0
    for each in inputs:
        if part and tokens + len(each) > most:
            yield part
            part, tokens = [], 0
        part.append(each)
        tokens += len(each)
    yield part


def _require_hidden(spec: Spec, check: InputCheck) -> None:
    """Refuse to show what the model might have said instead where its words may not all leave: no filter looks at
    alternatives, which never become text.

    :raises WeirError: INVALID_REQUEST.
    """
    given = spec.parameters
    if given.logprobs and check.alters_output:
        raise invalid(
            given.logprobs_field,
            "alternatives to tokens are not shown under safety policies that redact or block outputs; "
            "log-probabilities of the chosen tokens are",
        )
