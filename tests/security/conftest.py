"""A gateway among scripted leaves."""

from __future__ import annotations

from tests.integration.gateway.conftest import mesh

__all__ = ["mesh"]
