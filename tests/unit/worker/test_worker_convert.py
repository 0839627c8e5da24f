"""Protobuf ⇄ port, the engine registry and TensorRT-LLM's sampling arguments."""

from __future__ import annotations

import json

import pytest
from weir.worker.v1 import worker_pb2

from libs.clock import SystemClock
from libs.errors import Reason, WeirError
from services.worker.config import Settings, SimulatedOptions
from services.worker.convert import asked_of, refusals_frame, request_of, sampling_of, step_frame
from services.worker.engines.catalogue import create
from services.worker.engines.port import EngineLoadError, FinishReason, SamplingParams, Structure, TokenLogprob
from services.worker.engines.process import ProcessEngine
from services.worker.engines.tensorrt_llm import sampling_arguments
from services.worker.engines.threaded import ThreadedEngine
from services.worker.policy.outbox import Outbox


def test_finish_reasons_have_the_protos_numbers():
    theirs = {name.removeprefix("FINISH_REASON_"): number for name, number in worker_pb2.FinishReason.items()}
    assert theirs.pop("UNSPECIFIED") == 0
    assert theirs == {reason.name: int(reason) for reason in FinishReason}


def test_zero_means_one_where_the_proto_says_so():
    params = sampling_of(worker_pb2.Sampling(max_tokens=3))
    assert params == SamplingParams(max_tokens=3, temperature=0.0, top_p=1.0, repetition_penalty=1.0)
    full = worker_pb2.Sampling(
        max_tokens=3,
        seed=0,
        logprobs=0,
        stop_token_ids=[4, 5],
        logit_bias={7: -100.0},
        ignore_eos=True,
        top_k=9,
        min_tokens=2,
        bad_words=[worker_pb2.Tokens(ids=[4, 5]), worker_pb2.Tokens(ids=[6])],
    )
    params = sampling_of(full)
    assert (params.seed, params.logprobs, params.stop_token_ids, params.logit_bias) == (0, 0, (4, 5), {7: -100.0})
    assert params.ignore_eos
    assert (params.min_tokens, params.bad_words) == (2, ((4, 5), (6,)))
    assert params.top_k == 9


@pytest.mark.parametrize(
    ("given", "structure"),
    [
        ({}, None),
        ({"json_schema": "{}"}, Structure("json_schema", "{}")),
        ({"regex": ""}, Structure("regex", "")),
        ({"grammar": 'start: "a"'}, Structure("grammar", 'start: "a"')),
    ],
)
def test_a_structure_keeps_its_form(given, structure):
    sampling = worker_pb2.Sampling(max_tokens=3, structure=worker_pb2.Structure(**given) if given else None)
    assert sampling_of(sampling).structure == structure


def test_a_moved_sequence_says_what_is_output():
    submit = worker_pb2.Submit(handle=9, model_version="m@1", prompt=[1, 2, 3], resumed_tokens=2)
    assert request_of(submit, asked_of(submit), handle=1, group=1, now=0.0, salt=b"", kv_share=0.0).resumed == 2


def test_a_submission_gets_an_absolute_deadline_and_the_tenants_salt():
    submit = worker_pb2.Submit(handle=9, model_version="m@1", prompt=[1, 2], priority=3)
    submit.remaining.seconds = 5
    submit.sampling.max_tokens = 1
    request = request_of(submit, asked_of(submit), handle=77, group=70, now=100.0, salt=b"acme", kv_share=0.25)
    assert (request.handle, request.deadline, request.priority, request.cache_salt) == (77, 105.0, 3, b"acme")
    assert request.kv_share == 0.25
    assert request.prompt == [1, 2]


def test_a_frame_holds_parallel_arrays():
    outbox = Outbox()
    outbox.add_first(4, 16, 0.25, "cafe")
    outbox.add(4, [10, 11])
    outbox.add(9, [12])
    outbox.add_logprobs(9, [TokenLogprob(-0.5, [(12, -0.5), (3, -2.0)])])
    outbox.finish(9, FinishReason.LENGTH, "")
    outbox.batch.step = 5
    frame = step_frame(outbox.take()).step
    assert (frame.step, list(frame.handles), list(frame.counts), list(frame.tokens)) == (
        5,
        [4, 9],
        [2, 1],
        [10, 11, 12],
    )
    [first] = frame.first
    assert (first.handle, first.cached_prompt_tokens, first.numerics) == (4, 16, "cafe")
    assert first.after.ToTimedelta().total_seconds() == 0.25
    assert [(each.handle, each.reason) for each in frame.finished] == [(9, worker_pb2.FINISH_REASON_LENGTH)]
    assert list(frame.logprobs[0].tokens[0].top_ids) == [12, 3]


def test_refusals_carry_the_reason():
    frame = refusals_frame([(3, WeirError(Reason.GRANT_REPLAYED, "again"))]).refusals
    assert (frame.items[0].handle, frame.items[0].rejection.reason) == (3, Reason.GRANT_REPLAYED)


def settings(**changes) -> Settings:
    return Settings(**({"service": "worker", "instance": "w", "models": {"m@1": ""}, "engine": "simulated"} | changes))


def test_the_registry_of_engines_is_explicit(tmp_path):
    clock = SystemClock()
    assert create(settings(), clock=clock).info.simulated
    with pytest.raises(EngineLoadError, match="simulated, tensorrt_llm, torch"):
        create(settings(engine="abacus"), clock=clock)
    assert create(settings(models={}), clock=clock).info.models == ()
    with pytest.raises(EngineLoadError, match="exactly one"):
        create(settings(engine="tensorrt_llm", models={}), clock=clock)
    with pytest.raises(EngineLoadError, match="exactly one"):
        create(settings(engine="tensorrt_llm", models={"a@1": "x", "b@1": "y"}), clock=clock)
    with pytest.raises(EngineLoadError, match=r"config\.json"):
        create(settings(models={"m@1": str(tmp_path)}), clock=clock)
    with pytest.raises(EngineLoadError, match="must be positive"):
        create(settings(simulated=SimulatedOptions(max_running=-1)), clock=clock)
    torch = {"engine": "torch", "models": {"m@1": str(tmp_path)}}
    assert isinstance(create(settings(**torch), clock=clock), ProcessEngine)
    assert isinstance(create(settings(engine_isolation="thread", **torch), clock=clock), ThreadedEngine)


def test_the_simulated_engine_takes_its_sizes_from_the_model_folder(tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps({"vocab_size": 700, "max_position_embeddings": 96, "eos_token_id": [1, 5]})
    )
    engine = create(settings(models={"m@1": str(tmp_path)}), clock=SystemClock())
    assert engine.info.max_context == 96


def test_tensorrt_sampling_arguments_leave_out_what_is_off():
    greedy = sampling_arguments(SamplingParams(max_tokens=50, temperature=0.0, seed=3), room=20, eos=(2, 9))
    assert greedy == {
        "max_tokens": 20,
        "ignore_eos": False,
        "detokenize": False,
        "add_special_tokens": False,
        "end_id": 2,
        "stop_token_ids": [9],
        "top_k": 1,
        "seed": 3,
    }
    sampled = sampling_arguments(
        SamplingParams(
            max_tokens=5,
            temperature=0.7,
            top_p=0.9,
            top_k=4,
            min_p=0.1,
            presence_penalty=1.0,
            logprobs=2,
            ignore_eos=True,
        ),
        room=20,
    )
    assert {name: sampled[name] for name in ("temperature", "top_p", "top_k", "min_p", "presence_penalty")} == {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 4,
        "min_p": 0.1,
        "presence_penalty": 1.0,
    }
    assert (sampled["end_id"], sampled["logprobs"], "stop_token_ids" in sampled) == (-1, 2, False)
