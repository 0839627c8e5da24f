"""The first stage: template and tokenise, while safety, quota and route are being decided."""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace
from weir.registry.v1 import registry_pb2

from libs.catalog.plans import LADDER_FLAGS, OVER_QUOTA, SAFETY_SKIPPED
from libs.errors import Reason, WeirError
from libs.limiter import Lease, forget
from libs.routing import Route
from libs.texts import TextModel
from services.gateway import metrics
from services.gateway.messages import reserve_message
from services.gateway.parts import Parts
from services.gateway.policy.answers import answer_key, repeatable
from services.gateway.policy.parameters import NO_OUTPUT, bind_parameters, invalid
from services.gateway.policy.resuming import check_same, gone, pinned
from services.gateway.policy.spec import Resumed, Spec
from services.gateway.ports import InputCheck
from services.gateway.request import Candidate, Prepared, Progress, Request, queue_class_of, with_texts

_UNCHECKED = InputCheck(None)
_MESSAGE_CHARS = 32
"""What rendering one more message costs, in characters to tokenise."""


async def prepare(parts: Parts, request: Request, lease: Lease, progress: Progress) -> Prepared:
    """What to ask admission for; the lease holds the quota for it then.

    :raises WeirError: whatever refused it.
    """
    catalog, clock, spec = parts.catalog, parts.clock, request.spec
    if request.internal is not None:
        now, given = clock.monotonic(), request.internal
        return Prepared(candidate=given.candidate, queue_class=given.queue_class, tokenised=now, decided=now)
    if spec.parameters.structure is not None:
        await parts.structures.check(spec.parameters.structure)
    checking: Future[InputCheck] | None = None
    routing: Future[tuple[Route, bool]] | None = None
    try:
        asked = request.question(catalog, spec.model)
        routing = parts.router.start_resolve(asked, deadline=request.deadline, traceparent=request.traceparent)
        # Policies and tokenizer are needed before a router that is asked answers; the same function says which.
        known = routing.done() and routing.exception() is None
        guess = routing.result()[0] if known else catalog.resolve(asked)
        if spec.resumed is not None:
            guess = _as_before(parts, guess, spec.resumed)
        progress.route = guess
        version = catalog.version(guess.model_version)
        text = await catalog.text(version, request.deadline.remaining(clock))
        candidate = await _read(parts, request, spec.model, guess, version, text, _UNCHECKED)
        # What does not fit is refused before anybody reads it.
        checking = _check(parts, request, version, text, progress)
        tokenised = clock.monotonic()
        _reserve(parts, request, candidate, lease)
        check = await checking
        checked = clock.monotonic()
        route, routed_locally = await routing
        routed = clock.monotonic()
        if spec.resumed is not None:
            route = guess
        progress.route = route
        reservation = await lease.taken()
        metrics.SAFETY.observe(checked - tokenised)
        metrics.ROUTE.observe(routed - checked)
        metrics.QUOTA.observe(clock.monotonic() - routed)
        if route.model_version != guess.model_version or check.texts is not None:
            candidate = await candidate_for(parts, request, spec.model, route, check, progress)
            await _hold(parts, request, candidate, lease)
            reservation = lease.reservation or reservation
        else:
            _require_hidden(spec, check)
            arm = candidate.arm if route is guess else catalog.arm_key(spec.model, route)
            candidate = replace(candidate, route=route, check=check, arm=arm)
    except BaseException:
        for future in (checking, routing):
            if future is not None:
                forget(future)
        raise
    if spec.resumed is not None:
        check_same(
            spec.resumed.cursor.origin,
            tenant=request.identity.tenant,
            model_version=route.model_version,
            prompt=candidate.prompt,
            bound=candidate.bound,
            policies=candidate.check.policies,
        )
    flags = (
        ("router_local", routed_locally),
        ("quota_local", reservation.local),
        (OVER_QUOTA, reservation.over_quota),
        (SAFETY_SKIPPED, check.skipped),
    )
    progress.policies = candidate.check.policies
    return Prepared(
        candidate=candidate,
        queue_class=queue_class_of(request.tenant, batch=spec.batch, over_quota=reservation.over_quota),
        degraded=tuple([name for name, on in flags if on]),
        answer_key=_answer_key(request, candidate),
        tokenised=tokenised,
        decided=clock.monotonic(),
    )


async def prepare_again(parts: Parts, request: Request, before: Prepared, lease: Lease, progress: Progress) -> Prepared:
    """What to ask admission for instead, since the request's arm was taken out: by this gateway's own snapshot, which
    shows that.

    :raises WeirError: whatever refused it.
    """
    model = request.spec.model
    route = parts.router.resolve_here(request.question(parts.catalog, model))
    candidate = await candidate_for(parts, request, model, route, before.candidate.check, Progress(), before.candidate)
    await _hold(parts, request, candidate, lease)
    progress.route, progress.policies = route, candidate.check.policies
    degraded = tuple([flag for flag in before.degraded if flag not in LADDER_FLAGS])
    return replace(before, candidate=candidate, degraded=degraded, answer_key=_answer_key(request, candidate))


def _reserve(parts: Parts, request: Request, candidate: Candidate, lease: Lease) -> None:
    known = request.spec.parameters.max_tokens is not None
    likely = None if known else parts.lengths.high(request.identity.tenant, candidate.route.model_version)
    lease.start(reserve_message(request, candidate, likely), most=candidate.most_tokens)


async def _hold(parts: Parts, request: Request, candidate: Candidate, lease: Lease) -> None:
    """Reserve anew if more will be served than is held: redacted words, and another version's tokens, may be more than
    the caller's."""
    if not lease.holds(candidate.most_tokens):
        _reserve(parts, request, candidate, lease)
        await lease.taken()


async def candidate_for(
    parts: Parts,
    request: Request,
    model: str,
    route: Route,
    known: InputCheck,
    progress: Progress,
    before: Candidate | None = None,
) -> Candidate:
    """The request for a route's version, with its own tokens and limits. Its input is checked again where `known` was
    said under other policies; `before` spares tokenising anew.

    :raises WeirError: whatever refused it: CONTENT_FILTER, or DEPENDENCY_UNAVAILABLE under fail closed;
        INVALID_REQUEST also when what the caller wants to see is not shown under these policies.
    """
    version = parts.catalog.version(route.model_version)
    text = await parts.catalog.text(version, request.deadline.remaining(parts.clock))
    check = known
    if check.asked != parts.catalog.policies(request.tenant, version):
        check = await _check(parts, request, version, text, progress)
    _require_hidden(request.spec, check)
    same = before is not None and before.text is text and before.check is check
    return await _read(parts, request, model, route, version, text, check, before if same else None)


async def encode(text: TextModel, spec: Spec, inline_chars: int) -> list[int]:
    """The prompt's tokens; inputs of more than `inline_chars` are tokenised in a thread.

    :raises WeirError: INVALID_REQUEST when there are none, or ids outside the vocabulary.
    """
    if max(spec.parameters.logit_bias, default=0) >= text.vocabulary_size:
        raise invalid("logit_bias", "a token id is outside the vocabulary")
    if max(spec.parameters.stop_token_ids, default=0) >= text.vocabulary_size:
        raise invalid("stop_token_ids", "a token id is outside the vocabulary")
    if spec.token_ids is not None:
        if max(spec.token_ids) >= text.vocabulary_size:
            raise invalid("prompt", "a token id is outside the vocabulary")
        return list(spec.token_ids)
    texts = spec.texts()
    long = sum(map(len, texts)) + _MESSAGE_CHARS * len(texts) > inline_chars
    given: tuple[Any, ...] = (spec.prompt,) if spec.messages is None else (spec.messages, spec.chat)
    to_ids: Any = text.encode if spec.messages is None else text.encode_chat
    ids: list[int] = await asyncio.to_thread(to_ids, *given) if long else to_ids(*given)
    if not ids:
        raise invalid("prompt", "is empty")
    return ids


async def _read(
    parts: Parts,
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
    spec, inline = request.spec, parts.settings.encode_inline_chars
    arm = parts.catalog.arm_key(model, route)
    limits = parts.catalog.limits(request.identity.tenant, spec.model, version)
    if spec.inputs:
        context = min(limits.context_length, limits.max_context or limits.context_length)
        inputs = await _inputs(text, spec, check.texts, context, inline)
        pieces = tuple(parts_of(inputs, version.context_length))
        return Candidate(model, route, version, text, [], NO_OUTPUT, check, arm, pieces)
    prompt = before.prompt if before is not None else await encode(text, with_texts(spec, check.texts), inline)
    words = spec.parameters.bad_words
    bound = bind_parameters(spec.parameters, limits, len(prompt), text.spellings(words) if words else ())
    if spec.resumed is not None:
        bound = pinned(bound, spec.resumed.cursor.origin)
    return Candidate(model, route, version, text, prompt, bound, check, arm)


def _as_before(parts: Parts, route: Route, resumed: Resumed) -> Route:
    """The route to the version that gave the beginning. It counts for no arm of a rollout: that did.

    :raises WeirError: CURSOR_GONE: the registry does not have it any more.
    """
    name = resumed.cursor.origin.model_version
    version = parts.catalog.snapshot.model_versions.get(name)
    if version is None:
        raise gone("its version is not served any more")
    zones = route.zones if route.model_version == name else ()
    return Route(name, "", version.pool, version.tier, zones, route.revision)


async def _inputs(
    text: TextModel, spec: Spec, replaced: tuple[str, ...] | None, context: int, inline_chars: int
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
        else:
            long = len(one) > inline_chars
            found.append(await asyncio.to_thread(text.encode, one) if long else text.encode(one))
    if max(map(len, found)) > context:
        raise WeirError(Reason.CONTEXT_LENGTH_EXCEEDED, f"an input exceeds {context} tokens", limit="input")
    return found


def _check(
    parts: Parts, request: Request, version: registry_pb2.ModelVersion, text: TextModel, progress: Progress
) -> Future[InputCheck]:
    texts = spelt(text, request.spec)
    progress.policies = parts.catalog.policies(request.tenant, version)
    size, most = sum(map(len, texts)), parts.settings.max_input_chars
    if size > most:
        message = f"the input has {size} characters; the limit is {most}"
        raise WeirError(Reason.PAYLOAD_TOO_LARGE, message, limit="max_input_chars")
    return parts.safety.start_check(
        tenant=request.identity.tenant,
        policies=progress.policies,
        texts=texts,
        request_id=request.id,
        deadline=request.deadline,
        traceparent=request.traceparent,
    )


def _answer_key(request: Request, candidate: Candidate) -> bytes:
    bound, seeded = candidate.bound, request.spec.parameters.seed is not None
    if candidate.parts or not request.plan.remembers or not repeatable(bound, seeded=seeded):
        return b""
    tenant, version = request.identity.tenant, candidate.route.model_version
    return answer_key(tenant, version, candidate.prompt, bound, candidate.check.policies)


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
