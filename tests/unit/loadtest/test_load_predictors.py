"""When predictors no longer load."""

from __future__ import annotations

from weir.registry.v1 import registry_pb2 as pb

from libs.registry import RegistrySnapshot
from loadtest.predictors import unsettled


def predictor(name: str, **states: pb.LoadState) -> pb.Endpoint:
    held = [pb.ModelState(model_version=f"{model}@1", state=state) for model, state in states.items()]
    return pb.Endpoint(service="predictor", instance=name, pool="p", model_states=held)


def left(*predictors: pb.Endpoint) -> list[str]:
    snapshot = RegistrySnapshot(
        model_versions={f"{name}@1": pb.ModelVersion(name=name, version="1", pool="p") for name in "mn"},
        aliases={name: pb.Alias(name=name, targets=[pb.AliasTarget(model_version=f"{name}@1")]) for name in "mn"},
        endpoints={(each.service, each.instance): each for each in predictors},
    )
    return unsettled(snapshot, 2, 0.0)


def test_predictors_have_settled_once_each_has_loaded_or_given_up_all_that_is_wanted() -> None:
    ready, loading, failed = pb.LOAD_STATE_READY, pb.LOAD_STATE_LOADING, pb.LOAD_STATE_FAILED
    assert left(predictor("a", m=ready, n=ready), predictor("b", m=ready, n=failed)) == []
    assert left(predictor("a", m=ready, n=loading), predictor("b", n=ready)) == ["n@1 (a)", "m@1 (b)"]
    assert left(predictor("a", m=ready, n=ready)) == ["1 predictors"]
