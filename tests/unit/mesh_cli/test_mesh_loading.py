"""When a fresh mesh has the models that it is to answer with."""

from __future__ import annotations

import pytest
from weir.registry.v1 import registry_pb2 as pb

from libs.registry import RegistrySnapshot
from services.cli.mesh import loading
from services.cli.mesh.loading import LoadError

VERSIONS = [pb.ModelVersion(name=name, version="1", pool="p") for name in "mn"]
ALIASES = [pb.Alias(name=name, targets=[pb.AliasTarget(model_version=f"{name}@1", weight=100)]) for name in "mn"]


def missing(aliases: list[str], workers: list[pb.Endpoint]) -> list[str]:
    snapshot = RegistrySnapshot(
        model_versions={f"{each.name}@1": each for each in VERSIONS},
        aliases={each.name: each for each in ALIASES},
        endpoints={(each.service, each.instance): each for each in workers},
    )
    return loading.missing(aliases, snapshot)


def worker(name: str, *ready: str, failed: str = "", pool: str = "p") -> pb.Endpoint:
    states = [pb.ModelState(model_version=each, state=pb.LOAD_STATE_READY) for each in ready]
    if failed:
        states.append(pb.ModelState(model_version=failed, state=pb.LOAD_STATE_FAILED, detail="a bad signature"))
    return pb.Endpoint(service="worker", instance=name, pool=pool, model_versions=ready, model_states=states)


def test_one_worker_is_enough() -> None:
    assert missing(["m", "n"], [worker("a", "m@1"), worker("b", "n@1", failed="m@1")]) == []


def test_what_nobody_has_yet() -> None:
    assert missing(["m", "n"], []) == ["m@1", "n@1"]
    assert missing(["m"], [worker("a")]) == ["m@1"]
    assert missing(["n"], [worker("a", "n@1")]) == []


def test_a_worker_that_failed_is_no_reason_to_give_up_while_another_tries() -> None:
    assert missing(["m"], [worker("a", failed="m@1"), worker("b")]) == ["m@1"]


def test_when_all_of_the_pool_failed_their_reason_is_told() -> None:
    others = [worker("c", pool="q")]
    with pytest.raises(LoadError, match=r"m@1 cannot be loaded: a bad signature \(a\)"):
        missing(["m"], [worker("a", failed="m@1"), worker("b", failed="m@1"), *others])
