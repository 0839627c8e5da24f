"""Fixtures of the edge's tests."""

from tests.support.fixtures.edge_fixtures import edge, http

__all__ = ["edge", "http"]
