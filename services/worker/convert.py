"""Protobuf to the engine port and back."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

from weir.worker.v1 import worker_pb2

from libs.deadlines import to_duration, to_seconds
from libs.errors import WeirError
from services.worker.engines.port import SamplingParams, SequenceRequest, Structure
from services.worker.policy.checks import Asked
from services.worker.policy.outbox import Batch


def sampling_of(sampling: worker_pb2.Sampling) -> SamplingParams:
    """The engine's sampling parameters; 0 means 1 where the proto says so."""
    return SamplingParams(
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p or 1.0,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty or 1.0,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logit_bias=dict(sampling.logit_bias) if sampling.logit_bias else {},
        seed=sampling.seed if sampling.HasField("seed") else None,
        stop_token_ids=tuple(sampling.stop_token_ids),
        min_tokens=sampling.min_tokens,
        bad_words=tuple([tuple(word.ids) for word in sampling.bad_words]) if sampling.bad_words else (),
        ignore_eos=sampling.ignore_eos,
        logprobs=sampling.logprobs if sampling.HasField("logprobs") else None,
        structure=_structure(sampling),
    )


def asked_of(submit: worker_pb2.Submit) -> Asked:
    """What the checks need to know of a submission."""
    return Asked(
        number=submit.handle,
        request_id=submit.request_id,
        model=submit.model_version,
        choice=submit.choice,
        prompt_tokens=len(submit.prompt),
        resumed=submit.resumed_tokens,
        remaining=to_seconds(submit.remaining),
        params=sampling_of(submit.sampling),
    )


def request_of(
    submit: worker_pb2.Submit, asked: Asked, *, handle: int, group: int, now: float, salt: bytes, kv_share: float
) -> SequenceRequest:
    """The engine's request; `now` is monotonic, `salt` keeps tenants' prefix caches apart, `group` is the same for the
    choices of one request, `kv_share` is the grant's."""
    return SequenceRequest(
        handle=handle,
        model=asked.model,
        prompt=list(submit.prompt),
        params=asked.params,
        deadline=now + asked.remaining,
        priority=submit.priority,
        resumed=asked.resumed,
        cache_salt=salt,
        kv_share=kv_share,
        group=group,
    )


def step_frame(batch: Batch) -> worker_pb2.SessionResponse:
    """A frame of everything in the batch."""
    response = worker_pb2.SessionResponse()
    frame = response.step
    frame.step = max(0, batch.step)  # -1: the engine ended sequences outside any step
    frame.handles.extend(batch.tokens)
    frame.counts.extend(map(len, batch.tokens.values()))
    frame.tokens.extend(chain.from_iterable(batch.tokens.values()))
    for number, cached, after, numerics in batch.first:
        frame.first.add(handle=number, cached_prompt_tokens=cached, after=to_duration(after), numerics=numerics)
    for number, reason, message in batch.finished:
        # The port's numbers are the proto's (tests/unit/worker compares them).
        frame.finished.add(handle=number, reason=reason, message=message)  # type: ignore[arg-type]
    for number, entries in batch.logprobs.items():
        sequence: Any = frame.logprobs.add(handle=number)
        for entry in entries:
            sequence.tokens.add(
                logprob=entry.logprob,
                top_ids=[token for token, _ in entry.top],
                top_logprobs=[logprob for _, logprob in entry.top],
            )
    return response


def refusals_frame(refusals: Iterable[tuple[int, WeirError]]) -> worker_pb2.SessionResponse:
    """A frame of sequences that did not start."""
    response = worker_pb2.SessionResponse()
    items = response.refusals.items
    for number, error in refusals:
        items.add(handle=number, rejection=error.to_rejection())
    return response


def _structure(sampling: worker_pb2.Sampling) -> Structure | None:
    match sampling.structure.WhichOneof("form"):
        case "json_schema":
            return Structure("json_schema", sampling.structure.json_schema)
        case "regex":
            return Structure("regex", sampling.structure.regex)
        case "grammar":
            return Structure("grammar", sampling.structure.grammar)
    return None
