"""Fixtures of the edge's tests."""

from tests.support.fixtures.edge_fixtures import admin, edge, http

__all__ = ["admin", "edge", "http"]
