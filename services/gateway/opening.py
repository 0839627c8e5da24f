"""The first half of a request: template and tokenise, while safety, quota and route are being decided."""

from __future__ import annotations

import asyncio
from asyncio import Future
from typing import Any

from weir.registry.v1 import registry_pb2

from libs.clock import Clock
from libs.errors import Reason, WeirError
from libs.routing import Route
from services.gateway.allowance import AHEAD, Allowance
from services.gateway.catalog import Catalog
from services.gateway.choice import SAFETY_SKIPPED
from services.gateway.config import Settings
from services.gateway.policy.answers import answer_key, repeatable
from services.gateway.policy.events import Usage
from services.gateway.policy.lengths import AnswerLengths
from services.gateway.policy.parameters import bind_parameters, invalid
from services.gateway.policy.plans import LADDER_FLAGS, OVER_QUOTA
from services.gateway.policy.spec import BoundParameters, Spec
from services.gateway.ports import InputCheck, QuotaPort, Reservation, RouterPort, SafetyPort
from services.gateway.request import Candidate, Request, forget, queue_class_of, settle, with_texts
from services.gateway.structures import StructureChecks
from services.gateway.text import TextModel

_MESSAGE_CHARS = 32
"""What rendering one more message costs, in characters to tokenise."""


class Opening:
    """Makes a candidate out of a request."""

    def __init__(
        self,
        settings: Settings,
        *,
        catalog: Catalog,
        quota: QuotaPort,
        router: RouterPort,
        safety: SafetyPort,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._catalog = catalog
        self._quota = quota
        self._router = router
        self._safety = safety
        self._clock = clock
        self._structures = StructureChecks()
        self.lengths = AnswerLengths()
        """Told by whoever ends requests."""

    async def decide(self, request: Request) -> tuple[Candidate, float]:
        """What to ask admission for, and when tokenisation was over (monotonic seconds). The quota is reserved then;
        the request's `reserved` says so also when this raises.

        :raises WeirError: whatever refused it.
        """
        spec = request.spec
        traceparent = request.span.traceparent
        checking: Future[InputCheck] | None = None
        routing: Future[tuple[Route, bool]] | None = None
        reserving: Future[Reservation] | None = None
        await self._structures.check(spec.parameters.structure)
        try:
            asked = request.question(self._catalog, spec.model)
            routing = self._router.start_resolve(asked, deadline=request.deadline, traceparent=traceparent)
            # Policies and tokenizer are needed before the router has answered; the same pure function says which.
            guess = request.routed = self._catalog.resolve(asked)
            version = self._catalog.version(guess.model_version)
            text = await self._catalog.text(version, request.deadline.remaining(self._clock))
            prompt = await self.encode(text, spec)
            bound = self.bind(request, version, len(prompt))
            # What does not fit is refused before anybody reads it.
            checking = self._check(request, version, text)
            tokenised = self._clock.monotonic()
            reserving = self._reserve(request, guess.model_version, len(prompt), bound)
            check = await checking
            route, routed_locally = await routing
            request.routed = route
            request.reservation = reservation = await reserving
            if route.model_version != guess.model_version or check.texts is not None:
                version = self._catalog.version(route.model_version)
                text = await self._catalog.text(version, request.deadline.remaining(self._clock))
                check = await self.vet(request, version, text, check)
                prompt = await self.encode(text, with_texts(spec, check.texts))
                bound = self.bind(request, version, len(prompt))
                reservation = await self._hold(request, route.model_version, len(prompt), bound) or reservation
            _require_hidden(spec, check)
        except BaseException:
            for future in (checking, routing):
                if future is not None:
                    forget(future)
            if reserving is not None and not reserving.cancel():  # its fallback would open a lease that nobody ends
                forget(reserving)
            raise
        if reservation.over_quota:
            request.queue_class = queue_class_of(request.tenant, batch=spec.batch, over_quota=True)
        flags = (
            ("router_local", routed_locally),
            ("quota_local", reservation.local),
            (OVER_QUOTA, reservation.over_quota),
            (SAFETY_SKIPPED, check.skipped),
        )
        request.degraded += [name for name, on in flags if on]
        return self._candidate(request, route, version, text, prompt, bound, check), tokenised

    async def decide_again(self, request: Request) -> Candidate:
        """What to ask admission for instead, since the request's arm was taken out: by this gateway's own snapshot,
        which shows that.

        :raises WeirError: whatever refused it.
        """
        spec = request.spec
        before = request.candidate
        request.degraded = [flag for flag in request.degraded if flag not in LADDER_FLAGS]
        route = request.routed = self._router.resolve_here(request.question(self._catalog, spec.model))
        version = self._catalog.version(route.model_version)
        text = await self._catalog.text(version, request.deadline.remaining(self._clock))
        check = await self.vet(request, version, text, before.check if before is not None else None)
        if before is not None and before.text is text and before.check is check:
            prompt = before.prompt
        else:
            prompt = await self.encode(text, with_texts(spec, check.texts))
        bound = self.bind(request, version, len(prompt))
        await self._hold(request, route.model_version, len(prompt), bound)
        return self._candidate(request, route, version, text, prompt, bound, check)

    async def vet(
        self, request: Request, version: registry_pb2.ModelVersion, text: TextModel, known: InputCheck | None
    ) -> InputCheck:
        """What safety says of the input under a version's policies: what it said before, where those are the same.

        :raises WeirError: CONTENT_FILTER, or DEPENDENCY_UNAVAILABLE under fail closed; INVALID_REQUEST when what the
            caller wants to see is not shown under these policies.
        """
        if known is None or known.asked != self._catalog.policies(request.tenant, version):
            known = await self._check(request, version, text)
        _require_hidden(request.spec, known)
        return known

    def _candidate(
        self,
        request: Request,
        route: Route,
        version: registry_pb2.ModelVersion,
        text: TextModel,
        prompt: list[int],
        bound: BoundParameters,
        check: InputCheck,
    ) -> Candidate:
        spec = request.spec
        arm = self._catalog.arm_key(spec.model, route)
        request.candidate = Candidate(spec.model, route, version, text, prompt, bound, check, arm)
        request.answer_key = b""
        if request.plan.remembers and repeatable(bound, seeded=spec.parameters.seed is not None):
            request.answer_key = answer_key(request.identity.tenant, route.model_version, prompt, bound, check.policies)
        return request.candidate

    async def _hold(
        self, request: Request, model_version: str, prompt_tokens: int, bound: BoundParameters
    ) -> Reservation | None:
        """Reserve anew if more will be served than is held: redacted words, and another version's tokens, may be more
        than the caller's. None when nothing was reserved anew; what grows does so when it is used."""
        if request.grows or _cost(prompt_tokens, bound) <= request.reserved:
            return None
        settle(self._quota, request, Usage())
        reserving = self._reserve(request, model_version, prompt_tokens, bound)
        try:
            request.reservation = await reserving
        except BaseException:
            if not reserving.cancel():  # its fallback would open a lease that nobody ends
                forget(reserving)
            raise
        return request.reservation

    async def encode(self, text: TextModel, spec: Spec) -> list[int]:
        """The prompt's tokens; long inputs are tokenised in a thread.

        :raises WeirError: INVALID_REQUEST when there are none, or ids outside the vocabulary.
        """
        if max(spec.parameters.logit_bias, default=0) >= text.vocabulary_size:
            raise invalid("logit_bias", "a token id is outside the vocabulary")
        if spec.token_ids is not None:
            if max(spec.token_ids) >= text.vocabulary_size:
                raise WeirError(Reason.INVALID_REQUEST, "prompt: a token id is outside the vocabulary", limit="prompt")
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
            raise WeirError(Reason.INVALID_REQUEST, "prompt: is empty", limit="prompt")
        return ids

    def bind(self, request: Request, version: registry_pb2.ModelVersion, prompt_tokens: int) -> BoundParameters:
        """The parameters with the defaults of a version and the limits of it and of the tenant.

        :raises WeirError: see `bind_parameters`.
        """
        limits = self._catalog.limits(request.identity.tenant, request.spec.model, version)
        return bind_parameters(request.spec.parameters, limits, prompt_tokens)

    def _check(self, request: Request, version: registry_pb2.ModelVersion, text: TextModel) -> Future[InputCheck]:
        ids = request.spec.token_ids  # checked as the text that they spell
        texts = request.spec.texts() if ids is None else [text.decode(ids)]
        request.pinned = self._catalog.policies(request.tenant, version)
        size, most = sum(map(len, texts)), self._settings.max_input_chars
        if size > most:
            raise WeirError(
                Reason.PAYLOAD_TOO_LARGE,
                f"the input has {size} characters; the limit is {most}",
                limit="max_input_chars",
            )
        return self._safety.start_check(
            tenant=request.identity.tenant,
            policies=request.pinned,
            texts=texts,
            request_id=request.id,
            deadline=request.deadline,
            traceparent=request.span.traceparent,
        )

    def _reserve(
        self, request: Request, model_version: str, prompt_tokens: int, bound: BoundParameters
    ) -> Future[Reservation]:
        again = bool(request.reserved)
        request.reserved = most = _cost(prompt_tokens, bound)
        if request.spec.parameters.max_tokens is None and not request.plan.serve_over_quota:
            likely = self.lengths.expected(request.identity.tenant, model_version) + AHEAD
            request.reserved = min(most, prompt_tokens + bound.n * likely)
        request.grows = request.reserved < most
        if again:
            request.leases += 1
            request.lease = f"{request.id}/{request.leases}"
        return self._quota.start_reserve(
            tenant=request.identity.tenant,
            model=request.spec.model,
            request_id=request.lease,
            tokens=request.reserved,
            prompt_tokens=prompt_tokens,
            max_output_tokens=bound.max_tokens,
            choices=bound.n,
            model_version=model_version,
            grows=request.grows,
            over_quota_allowed=request.plan.serve_over_quota,
            request_counted=again or request.identity.request_counted,
            deadline=request.deadline,
            traceparent=request.span.traceparent,
        )

    def allowance(self, request: Request, candidate: Candidate) -> Allowance | None:
        """What a request that is about to run may use; None where all that it may come to is reserved."""
        if not request.grows:
            return None
        return Allowance(
            self._quota,
            tenant=request.identity.tenant,
            lease=request.lease,
            prompt_tokens=len(candidate.prompt),
            reserved=request.reserved,
            most=_cost(len(candidate.prompt), candidate.bound),
            choices=candidate.bound.n,
            deadline=request.deadline,
            traceparent=request.span.traceparent,
        )


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


def _cost(prompt_tokens: int, bound: BoundParameters) -> int:
    """Tokens that it takes at most."""
    return prompt_tokens + bound.max_tokens * bound.n
