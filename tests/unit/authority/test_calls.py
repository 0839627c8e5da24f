"""The table of calls."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor import ServiceDescriptor
from weir.registry.v1 import registry_pb2

from libs.authority.calls import ANY, CALLS, callers_of, may_call
from libs.authority.identity import PERSON
from libs.authority.stores import ROWS


def services_of_ours() -> Iterator[ServiceDescriptor]:
    generated = Path(registry_pb2.__file__).parents[3]
    for file in generated.glob("weir/*/v1/*_pb2.py"):
        module = ".".join(file.relative_to(generated).with_suffix("").parts)
        yield from importlib.import_module(module).DESCRIPTOR.services_by_name.values()


def test_every_method_of_ours_is_in_the_table_and_no_other() -> None:
    ours = {each.full_name: {method.name for method in each.methods} for each in services_of_ours()}
    assert len(ours) >= 10
    assert {name: set(methods) for name, methods in CALLS.items() if name.startswith("weir.")} == ours


def test_callers_are_services_that_there_are() -> None:
    known = {*ROWS, ANY, PERSON, "envoy", "cli"}
    assert {caller for methods in CALLS.values() for callers in methods.values() for caller in callers} <= known


@pytest.mark.parametrize(
    ("method", "caller", "may"),
    [
        ("/weir.audit.v1.AuditService/Tail", PERSON, True),
        ("/weir.audit.v1.AuditService/Tail", "gateway", False),
        ("/weir.audit.v1.AuditService/Session", "gateway", True),
        ("/weir.audit.v1.AuditService/Forget", "gateway", False),
        ("/weir.worker.v1.WorkerService/Session", "demo-client", False),
        ("/weir.inference.v1.InferenceService/Generate", "demo-client", True),
        ("/weir.inference.v1.InferenceService/Generate", "", False),
        ("/grpc.health.v1.Health/Check", "demo-client", True),
        ("/grpc.health.v1.Health/Check", "", False),
        ("", "gateway", False),
        ("weir.audit.v1.AuditService", "gateway", False),
    ],
)
def test_who_may_call_what(method: str, caller: str, *, may: bool) -> None:
    assert may_call(method, caller) is may


def test_tenants_workloads_reach_what_is_for_all_alone() -> None:
    open_to_all = {
        f"{service}/{method}" for service, methods in CALLS.items() for method in methods if ANY in methods[method]
    }
    assert {name.partition("/")[0] for name in open_to_all} == {
        "envoy.service.discovery.v3.AggregatedDiscoveryService",
        "grpc.health.v1.Health",
        "inference.GRPCInferenceService",
        "weir.inference.v1.InferenceService",
        "weir.openai.v1.OpenAIService",
        "weir.registry.v1.RegistryService",
    }
    assert callers_of("/weir.worker.v1.WorkerService/Embed") == {"gateway"}
