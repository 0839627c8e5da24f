"""What admission and workers are asked: every message of theirs that a request becomes is made here."""

from __future__ import annotations

from collections.abc import Sequence

from weir.admission.v1 import admission_pb2
from weir.worker.v1 import worker_pb2

from libs.clock import Clock
from libs.deadlines import to_duration
from libs.routing import Route
from services.gateway.policy.prefix import BLOCK, prefix_hashes
from services.gateway.policy.spec import BoundParameters
from services.gateway.request import Candidate, Request, tokens_in
from services.gateway.sequence import OutputSequence

_GROUP = 16
"""Tokens per delivery of a request that is not streamed: each spares the mesh that many wake-ups, and an output that
the safety filter stops wastes at most this many on the worker."""
_PRIORITIES: dict[int, int] = {
    admission_pb2.QUEUE_CLASS_PAID: 0,
    admission_pb2.QUEUE_CLASS_FREE: 1,
    admission_pb2.QUEUE_CLASS_OVER_QUOTA: 5,
    admission_pb2.QUEUE_CLASS_BATCH: 10,
    admission_pb2.QUEUE_CLASS_SHADOW: 20,
}
"""By class. Engines serve smaller numbers first, and preempt larger ones for them."""


def admit_message(
    request: Request,
    candidate: Candidate,
    *,
    request_id: str,
    queue_class: admission_pb2.QueueClass,
    version_share: float,
    ttft: float | None,
) -> admission_pb2.Admit:
    """The first question; of an embedding about its first part. `ttft` is the seconds left for the first token, None
    without an objective."""
    route, bound, plan = candidate.route, candidate.bound, request.plan
    return admission_pb2.Admit(
        request_id=request_id,
        tenant=request.identity.tenant,
        weight=(request.tenant.weight or 1.0) * plan.weight,
        queue_class=queue_class,
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
    candidate: Candidate,
    bound: BoundParameters,
    admit: admission_pb2.Admit,
    granted: admission_pb2.Granted,
    sequence: OutputSequence,
    clock: Clock,
) -> worker_pb2.Submit:
    """What the worker is asked for one sequence: after a migration, to go on after the tokens already delivered."""
    return worker_pb2.Submit(
        grant=granted.grant,
        request_id=admit.request_id,
        model_version=admit.model_version,
        prompt=[*candidate.prompt, *sequence.tokens] if sequence.tokens else candidate.prompt,
        sampling=_sampling(bound, sequence),
        remaining=to_duration(request.deadline.timeout(clock)),
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
    sampling = worker_pb2.Sampling(
        max_tokens=bound.max_tokens - len(sequence.tokens),
        temperature=bound.temperature,
        top_p=bound.top_p,
        top_k=bound.top_k,
        min_p=bound.min_p,
        repetition_penalty=bound.repetition_penalty,
        presence_penalty=bound.presence_penalty,
        frequency_penalty=bound.frequency_penalty,
        ignore_eos=bound.ignore_eos,
    )
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
