"""What the edge asks again after a connection broke: questions, and nothing that changes something."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from services.controlplane.policy.config import EdgeConfig
from services.controlplane.policy.routes import admin_routes, edge_routes


def retried(found: Any, policy: str = "") -> Iterator[tuple[str, str]]:
    """The name of every route, and what makes Envoy repeat its requests."""
    if isinstance(found, dict):
        policy = found.get("retry_policy", {}).get("retry_on", policy)
        if "match" in found and "route" in found:
            yield found["name"], found["route"].get("retry_policy", {}).get("retry_on", policy)
        for each in found.values():
            yield from retried(each, policy)
    elif isinstance(found, list | tuple):
        for each in found:
            yield from retried(each, policy)


def test_what_changes_something_is_sent_again_only_if_it_did_not_begin() -> None:
    assert {policy for _, policy in retried(admin_routes(EdgeConfig()))} == {"connect-failure,refused-stream"}
    edge = dict(retried(edge_routes(EdgeConfig())))
    assert "reset" in edge["/v1/chat/completions"]
    assert "reset" in edge["/v1/embeddings"]
    assert edge["prediction"] == "connect-failure,refused-stream,reset,unavailable"
    assert "reset" not in edge["/v1/"]
