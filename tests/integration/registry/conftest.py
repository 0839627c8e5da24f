"""A real etcd for the faults it can have."""

from tests.support.fixtures.etcd_fixtures import etcd

__all__ = ["etcd"]
