"""Stores under contract."""

from tests.support.fixtures.etcd_fixtures import etcd_shared

__all__ = ["etcd_shared"]
