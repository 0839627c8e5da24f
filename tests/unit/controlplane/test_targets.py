"""Who Prometheus is told to scrape."""

from __future__ import annotations

import json

from weir.registry.v1 import registry_pb2 as pb

from services.controlplane.targets import targets_of


def test_each_process_with_a_page_is_a_target_of_its_service_under_its_name() -> None:
    endpoints = [
        pb.Endpoint(service="worker", instance="worker-b", address="h:1", metrics_address="h:101", zone="zone-b"),
        pb.Endpoint(service="gateway", instance="gateway", address="h:2", zone="zone-a", metrics_address="[::1]:102"),
        pb.Endpoint(service="audit", instance="audit", address="h:3"),
    ]
    assert json.loads(targets_of(endpoints)) == [
        {
            "targets": ["[::1]:102"],
            "labels": {"job": "gateway", "instance": "gateway", "weir_internal_zone": "zone-a"},
        },
        {"targets": ["h:101"], "labels": {"job": "worker", "instance": "worker-b", "weir_internal_zone": "zone-b"}},
    ]


def test_nobody_is_an_empty_list() -> None:
    assert targets_of([]) == b"[]"
