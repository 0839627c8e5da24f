"""Who Prometheus is told to scrape."""

from __future__ import annotations

import json

from weir.registry.v1 import registry_pb2 as pb

from libs.registry import RegistrySnapshot
from libs.registry.ports import KeyValue
from libs.registry.snapshot import snapshot_of
from libs.resources.codec import encode, key_of
from services.controlplane.targets import targets_of


def told(*endpoints: pb.Endpoint) -> object:
    snapshot = snapshot_of([KeyValue(key_of(each), encode(each), 1) for each in endpoints], 1)
    return json.loads(targets_of(snapshot))


def test_each_process_with_a_page_is_a_target_of_its_service_under_its_name() -> None:
    assert told(
        pb.Endpoint(service="worker", instance="worker-b", address="h:1", metrics_address="h:101", zone="zone-b"),
        pb.Endpoint(service="gateway", instance="gateway", address="h:2", zone="zone-a", metrics_address="[::1]:102"),
        pb.Endpoint(service="audit", instance="audit", address="h:3"),
    ) == [
        {
            "targets": ["[::1]:102"],
            "labels": {"job": "gateway", "instance": "gateway", "weir_internal_zone": "zone-a"},
        },
        {"targets": ["h:101"], "labels": {"job": "worker", "instance": "worker-b", "weir_internal_zone": "zone-b"}},
    ]


def test_a_process_that_is_not_ready_is_scraped_too() -> None:
    process = pb.Endpoint(service="audit", instance="audit", address="h:3", metrics_address="h:103", leaving=True)
    assert told(process) == [
        {"targets": ["h:103"], "labels": {"job": "audit", "instance": "audit", "weir_internal_zone": ""}}
    ]


def test_nobody_is_an_empty_list() -> None:
    assert targets_of(RegistrySnapshot()) == b"[]"
