"""When a fresh mesh has the models that it is to answer with."""

from __future__ import annotations

import pytest
from weir.registry.v1 import registry_pb2 as pb

from services.cli.mesh.loading import LoadError, missing

MODELS = pb.ListModelsResponse(
    model_versions=[pb.ModelVersion(name="m", version="1", pool="p"), pb.ModelVersion(name="n", version="1", pool="p")],
    aliases=[
        pb.Alias(name="m", targets=[pb.AliasTarget(model_version="m@1", weight=100)]),
        pb.Alias(name="n", targets=[pb.AliasTarget(model_version="n@1", weight=100)]),
    ],
)


def worker(name: str, *ready: str, failed: str = "", pool: str = "p") -> pb.Endpoint:
    states = [pb.ModelState(model_version=each, state=pb.LOAD_STATE_READY) for each in ready]
    if failed:
        states.append(pb.ModelState(model_version=failed, state=pb.LOAD_STATE_FAILED, detail="a bad signature"))
    return pb.Endpoint(service="worker", instance=name, pool=pool, model_versions=ready, model_states=states)


def test_one_worker_is_enough() -> None:
    assert missing(["m", "n"], MODELS, [worker("a", "m@1"), worker("b", "n@1", failed="m@1")]) == []


def test_what_nobody_has_yet() -> None:
    assert missing(["m", "n"], MODELS, []) == ["m@1", "n@1"]
    assert missing(["m"], MODELS, [worker("a")]) == ["m@1"]
    assert missing(["n"], MODELS, [worker("a", "n@1")]) == []


def test_a_worker_that_failed_is_no_reason_to_give_up_while_another_tries() -> None:
    assert missing(["m"], MODELS, [worker("a", failed="m@1"), worker("b")]) == ["m@1"]


def test_when_all_of_the_pool_failed_their_reason_is_told() -> None:
    others = [worker("c", pool="q")]
    with pytest.raises(LoadError, match=r"m@1 cannot be loaded: a bad signature \(a\)"):
        missing(["m"], MODELS, [worker("a", failed="m@1"), worker("b", failed="m@1"), *others])
