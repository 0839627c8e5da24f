"""The rows of the table of kinds fit the protos, one another and the access rules."""

from __future__ import annotations

from dataclasses import fields

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from weir.registry.v1 import registry_pb2 as pb

from libs.resources.codec import status_part
from libs.resources.kind import Kind, Role
from libs.resources.kinds import ATTRIBUTE, BY_NAME, BY_PLURAL, KINDS, UNREADY
from libs.resources.snapshot import RegistrySnapshot
from tests.support.world import applied, observed

BY_KIND = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
SERVICES = frozenset(
    {
        *("gateway", "predictor", "router", "edge-auth", "ratelimit", "admission", "safety", "worker", "audit"),
        *("controlplane", "records", "rollout"),
    }
)


def field_at(message: Descriptor, path: str) -> FieldDescriptor:
    """The field that a path leads to; of a map, the map."""
    first, _, rest = path.partition(".")
    field = message.fields_by_name[first]
    return field_at(field.message_type, rest) if rest else field


def test_every_collection_of_a_snapshot_is_of_one_kind() -> None:
    assert set(ATTRIBUTE.values()) == {each.name for each in fields(RegistrySnapshot)} - {"revision", "faults", UNREADY}


def test_every_part_of_a_resource_is_of_one_kind() -> None:
    oneofs = pb.Resource.DESCRIPTOR.oneofs_by_name
    parts = [kind.part for kind in KINDS]
    assert len(set(parts)) == len(parts)
    states = {status_part(kind) for kind in KINDS if kind.status}
    assert {each.name for each in oneofs["spec"].fields} == {kind.part for kind in KINDS if kind.change}
    assert {each.name for each in oneofs["status"].fields} == {k.part for k in KINDS if not k.change} | states


@BY_KIND
def test_a_row_fits_its_message(kind: Kind) -> None:
    message = kind.message.DESCRIPTOR
    assert pb.Resource.DESCRIPTOR.fields_by_name[kind.part].message_type is message
    for name in (*kind.key, *kind.secret, *kind.bulk, *kind.computed, *filter(None, (kind.namespace, kind.status))):
        assert name in message.fields_by_name, name
    for name in kind.key:
        assert message.fields_by_name[name].type == FieldDescriptor.TYPE_STRING
    assert bool(kind.key) != bool(kind.fixed)
    assert set(kind.trusted) <= set(kind.followers) <= SERVICES
    assert set(kind.readers) <= SERVICES - set(kind.followers)
    assert bool(kind.secret) == bool(kind.trusted)
    assert not (kind.secret and kind.readers)
    assert kind.applied <= bool(kind.change)
    assert not (kind.leased and (kind.change or kind.restored))
    assert kind.applied or not kind.restored
    assert Role.OWNER in (kind.change | {Role.OWNER})
    assert Role.VIEWER not in kind.change


@BY_KIND
def test_references_are_to_names_of_kinds_that_come_before(kind: Kind) -> None:
    for ref in kind.refs:
        field = field_at(kind.message.DESCRIPTOR, ref.path)
        entry = field.message_type
        texts = [entry.fields_by_name[part] for part in ("key", "value")] if entry is not None else [field]
        assert all(each.type == FieldDescriptor.TYPE_STRING for each in texts), ref.path
        for plural in ref.to:
            assert KINDS.index(BY_PLURAL[plural]) < KINDS.index(kind), (ref.path, plural)


@BY_KIND
def test_columns_are_fields(kind: Kind) -> None:
    for column in kind.columns:
        message, path = kind.message.DESCRIPTOR, column.path
        if path.startswith("status."):
            held = pb.Resource.DESCRIPTOR.fields_by_name[status_part(kind)]
            message, path = held.message_type, path.removeprefix("status.")
        assert field_at(message, path), column.path
        assert column.heading.isupper()


def test_names_of_kinds_are_their_own() -> None:
    words = [word for kind in KINDS for word in (kind.plural, *kind.short)]
    assert len(set(words)) == len(words)
    assert len(BY_NAME) == len(KINDS) == len(ATTRIBUTE)
    collections = set(RegistrySnapshot.__slots__) - {"revision", "faults", UNREADY}
    assert set(ATTRIBUTE.values()) == collections
    # A prefix that another one begins with would hold that one's keys, too.
    prefixes = [kind.prefix for kind in KINDS]
    assert not [(a, b) for a in prefixes for b in prefixes if a != b and a.startswith(b)]


def test_the_world_of_the_tests_has_every_kind() -> None:
    """Those that are parametrised over it would otherwise forget new kinds in silence."""
    there = {type(each).DESCRIPTOR.name for each in (*applied(), *observed())}
    assert there == set(BY_NAME) - {"ApiKey", "TrustPolicy"}
