"""A real etcd that may be stopped."""

from tests.support.fixtures.etcd_fixtures import etcd

__all__ = ["etcd"]
