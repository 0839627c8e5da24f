"""`weir certs` in a mesh with Prometheus, which has no certificate."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from services.cli.commands import certs
from services.cli.mesh.monitoring import SERVICES


def test_only_those_who_have_a_certificate_are_asked_to_show_it() -> None:
    processes = [(name, name, "127.0.0.1:1") for name in ("gateway", "etcd", "envoy", *SERVICES)]
    mesh: Any = SimpleNamespace(processes=processes, edge_url="https://localhost:2")
    assert certs._answering(mesh) == {"gateway": "127.0.0.1:1", "edge": "localhost:2"}
