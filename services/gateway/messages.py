"""What the limiter, admission and workers are asked: every message of theirs that a request becomes is made here."""

from __future__ import annotations

from collections.abc import Sequence

from weir.admission.v1 import admission_pb2
from weir.quota.v1 import quota_pb2
from weir.worker.v1 import worker_pb2

from libs.deadlines import to_duration
from libs.limiter import AHEAD
from libs.routing import Route
from services.gateway.policy.prefix import BLOCK, prefix_hashes
from services.gateway.policy.spec import BoundParameters
from services.gateway.request import Candidate, Prepared, Request, tokens_in
from services.gateway.sequence import OutputSequence

LEAST = 64
"""Tokens of one answer that are always reserved for: less would be asked for anew too soon."""
UNKNOWN = 512
"""Tokens of one answer while nothing is known of any."""
_GROUP = 16
"""Tokens per delivery of a request that is not streamed: each spares the mesh that many wake-ups, and an output that
the safety filter stops wastes at most this many on the worker."""
_SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
    "ignore_eos",
)
_PRIORITIES: dict[int, int] = {
    admission_pb2.QUEUE_CLASS_PAID: 0,
    admission_pb2.QUEUE_CLASS_FREE: 1,
    admission_pb2.QUEUE_CLASS_OVER_QUOTA: 5,
    admission_pb2.QUEUE_CLASS_BATCH: 10,
    admission_pb2.QUEUE_CLASS_SHADOW: 20,
}
"""By class. Engines serve smaller numbers first, and preempt larger ones for them."""


def reserve_message(request: Request, candidate: Candidate, likely: float | None) -> quota_pb2.Reserve:
    """What is reserved for it: all that it may come to or, where its caller does not say, what it is `likely` to; None
    while nothing is known of its answers."""
    bound, tokens = candidate.bound, candidate.most_tokens
    if request.spec.parameters.max_tokens is None and not request.plan.serve_over_quota and bound.max_tokens:
        each = AHEAD + (UNKNOWN if likely is None else max(LEAST, likely))
        tokens = int(min(tokens, candidate.prompt_tokens + bound.n * each))
    return quota_pb2.Reserve(
        tokens=tokens,
        # Held to the tenant's context, which is about one input.
        prompt_tokens=max([len(one) for part in candidate.parts for one in part], default=len(candidate.prompt)),
        max_output_tokens=bound.max_tokens,
        choices=bound.n,
        model_version=candidate.route.model_version,
        over_quota_allowed=request.plan.serve_over_quota,
    )


def admit_message(
    request: Request, prepared: Prepared, *, request_id: str, version_share: float, ttft: float | None
) -> admission_pb2.Admit:
    """The first question; of an embedding about its first part. `ttft` is the seconds left for the first token, None
    without an objective."""
    candidate, plan = prepared.candidate, request.plan
    route, bound = candidate.route, candidate.bound
    return admission_pb2.Admit(
        request_id=request_id,
        tenant=request.identity.tenant,
        weight=(request.tenant.weight or 1.0) * plan.weight,
        queue_class=prepared.queue_class,
        pool=route.pool,
        model_version=route.model_version,
        zones=route.zones,
        prompt_tokens=tokens_in(candidate.parts[0]) if candidate.parts else len(candidate.prompt),
        max_output_tokens=bound.max_tokens,
        choices=bound.n,
        ttft_target=None if ttft is None else to_duration(ttft),
        prefix_hashes=prefix_hashes(request.identity.tenant, route.model_version, candidate.prompt),
        prefix_block=BLOCK,
        kv_share=plan.kv_share,
        version_share=version_share,
    )


def divert_message(admit: admission_pb2.Admit, route: Route, version_share: float) -> admission_pb2.Admit:
    """The question for another version, as a message of its own: the old one may still be under way, and is what takes
    that question back."""
    diverted = admission_pb2.Admit()
    diverted.CopyFrom(admit)
    diverted.pool, diverted.model_version, diverted.version_share = route.pool, route.model_version, version_share
    diverted.zones[:] = route.zones
    del diverted.exclude_workers[:]
    return diverted


def readmit_message(
    admit: admission_pb2.Admit,
    prompt: Sequence[int],
    sequences: Sequence[OutputSequence],
    *,
    request_id: str,
    max_tokens: int,
    lost: str,
    diverted: bool,
) -> None:
    """Turn the last question into the next one, in place: the prompt grows by what was delivered of the `max_tokens`
    of each sequence; a `lost` worker is out (empty: none is); `diverted`: it is for another version than the prefixes
    were named for.

    The output cap becomes what the sequence that has delivered least still needs: with the whole of it, a request that
    fills a context would fit nowhere any more. There is no target for the first token: it was accepted with one, and
    refusing it now would waste what was done.
    """
    admit.request_id = request_id
    longest = max((sequence.tokens for sequence in sequences), key=len, default=())
    shortest = min((len(sequence.tokens) for sequence in sequences), default=0)
    admit.prompt_tokens = len(prompt) + len(longest)
    admit.max_output_tokens = max_tokens - shortest
    admit.resumed_tokens = len(longest)
    admit.choices = max(1, len(sequences))
    admit.ClearField("ttft_target")
    if longest or diverted:
        admit.prefix_hashes[:] = prefix_hashes(admit.tenant, admit.model_version, [*prompt, *longest])
    if lost:
        admit.exclude_workers.append(lost)


def submit_message(
    request: Request,
    prompt: Sequence[int],
    bound: BoundParameters,
    admit: admission_pb2.Admit,
    granted: admission_pb2.Granted,
    sequence: OutputSequence,
    remaining: float,
) -> worker_pb2.Submit:
    """What the worker is asked for one sequence, with `remaining` seconds: after a migration, to go on after the tokens
    already delivered."""
    return worker_pb2.Submit(
        grant=granted.grant,
        request_id=admit.request_id,
        model_version=admit.model_version,
        prompt=[*prompt, *sequence.tokens] if sequence.tokens else prompt,
        sampling=_sampling(bound, sequence),
        remaining=to_duration(remaining),
        traceparent=request.traceparent,
        choice=sequence.index,
        resumed_tokens=len(sequence.tokens),
        priority=_PRIORITIES[admit.queue_class],
        # Text that could end it early (a stop string) is worth looking at after every step.
        group_tokens=_GROUP if request.spec.whole and not bound.stop else 0,
    )


def embed_message(
    admit: admission_pb2.Admit, granted: admission_pb2.Granted, inputs: Sequence[Sequence[int]]
) -> worker_pb2.EmbedRequest:
    """What the worker is asked to embed."""
    return worker_pb2.EmbedRequest(
        grant=granted.grant,
        request_id=admit.request_id,
        model_version=admit.model_version,
        inputs=[worker_pb2.Tokens(ids=ids) for ids in inputs],
    )


def _sampling(bound: BoundParameters, sequence: OutputSequence) -> worker_pb2.Sampling:
    sampling = worker_pb2.Sampling(**{name: getattr(bound, name) for name in _SAMPLING})
    sampling.max_tokens = bound.max_tokens - len(sequence.tokens)
    if bound.min_tokens:
        # A lesser answer may have been made of it since, which is capped.
        sampling.min_tokens = max(0, min(bound.min_tokens, bound.max_tokens) - len(sequence.tokens))
    if bound.stop_token_ids:
        sampling.stop_token_ids.extend(bound.stop_token_ids)
    for word in bound.bad_words:
        sampling.bad_words.add(ids=word)
    if bound.logit_bias:
        sampling.logit_bias.update(bound.logit_bias)
    if bound.seed is not None:
        # Sequences of one seeded request must differ from each other and stay reproducible.
        sampling.seed = (bound.seed + sequence.index) % 2**64
    if bound.logprobs is not None:
        sampling.logprobs = bound.logprobs
    elif sequence.scores is not None:
        sampling.logprobs = 0  # the chosen tokens' own, which the caller is not shown
    if bound.structure is not None:
        setattr(sampling.structure, bound.structure.kind, bound.structure.text)
    return sampling
