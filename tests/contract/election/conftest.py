"""Stores under contract, and an etcd that may be stopped."""

from tests.support.fixtures.etcd_fixtures import etcd, etcd_shared

__all__ = ["etcd", "etcd_shared"]
