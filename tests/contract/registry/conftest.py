"""Stores and sources under contract."""

from tests.support.fixtures.etcd_fixtures import etcd, etcd_shared

__all__ = ["etcd", "etcd_shared"]
