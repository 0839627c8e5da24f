"""Resources as stored, as decided by and as people write them: nothing is lost on the way from one to another."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given, settings
from hypothesis import strategies as st
from weir.registry.v1 import registry_pb2 as pb

from libs.registry import KeyValue, snapshot_of
from libs.resources.codec import (
    decode,
    encode,
    key_of,
    kind_of,
    located,
    pack,
    redacted,
    status_part,
    unpack,
)
from libs.resources.forms import FormError, differing, from_plain, to_plain
from libs.resources.kind import Kind
from libs.resources.kinds import ATTRIBUTE, KINDS
from tests.support.messages import messages

BY_KIND = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
PARTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/@"), min_size=1, max_size=8)
METADATA = st.builds(
    lambda labels, owner: pb.Metadata(labels=labels, owner=owner),
    st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
    st.text(max_size=3),
)


def named(kind: Kind, data: st.DataObject) -> Message:
    """Any message of the kind that has a name."""
    message = data.draw(messages(kind.message))
    for field in kind.key:
        setattr(message, field, data.draw(PARTS))
    return message


def numbers(message: Message) -> Iterator[float]:
    for field, value in message.ListFields():
        many = value if field.is_repeated and not hasattr(value, "items") else [value]
        if hasattr(value, "items"):
            many = [each for pair in value.items() for each in pair]
        for each in many:
            if isinstance(each, Message):
                yield from numbers(each)
            elif isinstance(each, float):
                yield each


@BY_KIND
@settings(max_examples=15)
@given(st.data())
def test_a_message_comes_back_from_its_resource_and_from_the_store(kind: Kind, data: st.DataObject) -> None:
    message = named(kind, data)
    packed = pack(message)
    packed.metadata.MergeFrom(data.draw(METADATA))
    assert kind_of(packed) is kind
    assert key_of(packed) == key_of(message) == kind.prefix + packed.metadata.name
    assert located(key_of(message)) == (kind, packed.metadata.name)
    value = encode(packed)
    assert value == encode(decode(value, 9)) == encode(decode(encode(packed), 1))
    back = decode(value, 7)
    assert back.metadata.revision == 7
    assert back.metadata.labels == packed.metadata.labels
    # Compared as bytes: NaN is no other NaN.
    known = unpack(packed)
    assert known.SerializeToString(deterministic=True) == message.SerializeToString(deterministic=True)
    snapshot = snapshot_of([KeyValue(key_of(message), value, 7)], 7)
    if getattr(message, "leaving", False):  # an endpoint that nobody is to be sent to any more
        assert not getattr(snapshot, ATTRIBUTE[kind.plural])
        return
    held = getattr(snapshot, ATTRIBUTE[kind.plural])[kind.entry(packed.metadata.name)]
    assert held.SerializeToString(deterministic=True) == unpack(back).SerializeToString(deterministic=True)
    assert not snapshot.faults


@BY_KIND
@settings(max_examples=15)
@given(st.data())
def test_names_stand_in_the_metadata_alone(kind: Kind, data: st.DataObject) -> None:
    spec = getattr(pack(named(kind, data)), kind.part)
    assert not [name for name in (*kind.key, kind.namespace, kind.status) if name and _has(spec, name)]
    assert not getattr(spec, "revision", 0)


def _has(message: Message, name: str) -> bool:
    return name in {field.name for field, _ in message.ListFields()}


def in_range(message: Message) -> bool:
    """Whether JSON can say it: times within the years that it knows, and no number that is none."""
    try:
        json.dumps(to_plain(pack(message)))
    except ValueError:
        return False
    return all(math.isfinite(each) for each in numbers(message))


@BY_KIND
@settings(max_examples=15)
@given(st.data())
def test_what_people_write_is_what_is_stored(kind: Kind, data: st.DataObject) -> None:
    message = named(kind, data)
    if not in_range(message):
        return
    packed = pack(message)
    packed.metadata.MergeFrom(data.draw(METADATA))
    packed.metadata.revision = data.draw(st.integers(0, 9))
    plain = to_plain(packed)
    assert from_plain(plain) == packed
    # Also over text, as files and the history are.
    told = json.loads(json.dumps(plain))
    assert from_plain(told) == packed
    assert not list(differing(plain, to_plain(from_plain(told))))
    brief = from_plain(to_plain(packed, full=False)) if kind.part != packed.WhichOneof("status") else packed
    assert encode(brief) == encode(from_plain(to_plain(brief)))
    assert not [name for name in kind.computed if _has(getattr(brief, kind.part), name)]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (7, "has the fields"),
        ({"kind": "Nothing"}, "no kind 'Nothing'"),
        ({"kind": "Tenant", "spek": {}}, "^spek: no such field"),
        ({"kind": "Tenant", "spec": []}, "spec: must hold fields"),
        ({"kind": "Tenant", "spec": {"plann": "PLAN_PAID"}}, "plann"),
        ({"kind": "Tenant", "spec": {"plan": "PLAN_GOLD"}}, "PLAN_GOLD"),
        ({"kind": "Tenant", "metadata": {"revision": "x"}}, "^metadata.revision: must be a whole number, not 'x'"),
        ({"kind": "Limits", "spec": {"concurrency": 2**80}}, "^spec.concurrency: must be"),
        ({"kind": "Tenant", "spec": {"max_deadline": "soon"}}, "^spec.max_deadline: must be"),
        ({"kind": ["Tenant"]}, "no kind"),
        ({"kind": "Tenant", "status": {}}, "status: a Tenant has none"),
        ({"kind": "Endpoint", "spec": {}}, "spec: a Endpoint has none"),
    ],
)
def test_what_is_no_resource_is_refused_by_its_field(data: object, message: str) -> None:
    with pytest.raises(FormError, match=message.replace("[", r"\[")):
        from_plain(data)


def test_numbers_are_as_they_were_written() -> None:
    version = pb.ModelVersion(name="m", version="1", sampling_defaults=pb.SamplingDefaults(temperature=0.7))
    assert to_plain(pack(version))["spec"]["sampling_defaults"] == {"temperature": 0.7}


@pytest.mark.parametrize("value", [b"\xff", b"\x0a", b"not protobuf"])
def test_garbage_is_no_resource(value: bytes) -> None:
    with pytest.raises(DecodeError):
        decode(value, 1)


@pytest.mark.parametrize(
    "given",
    [
        pb.Resource(metadata=pb.Metadata(name="acme")),
        pb.Resource(metadata=pb.Metadata(name="acme"), limits=pb.Limits()),
        pb.Resource(metadata=pb.Metadata(name="/"), limits=pb.Limits()),
        pb.Resource(metadata=pb.Metadata(name=""), tenant=pb.Tenant()),
        pb.Resource(metadata=pb.Metadata(name="m"), model=pb.ModelVersion()),
    ],
)
def test_a_name_that_does_not_fit_is_refused(given: pb.Resource) -> None:
    with pytest.raises(ValueError, match=r"no known kind|is no name of"):
        unpack(given)


@pytest.mark.parametrize("key", ["/weir/v2/fence", "/weir/v2/tenants/", "/weir/v2/", "/weir/v1/tenants/a", "tenants/a"])
def test_other_keys_hold_no_resources(key: str) -> None:
    assert located(key) is None


@BY_KIND
def test_secrets_and_bulk_are_left_out_of_copies(kind: Kind) -> None:
    message = kind.message()
    for field in (*kind.secret, *kind.bulk):
        raw = message.DESCRIPTOR.fields_by_name[field].type == 12
        setattr(message, field, b"x" if raw else "x")
    resource = pb.Resource()
    getattr(resource, kind.part).CopyFrom(message)
    getattr(resource, kind.part).SetInParent()
    shown, brief = redacted(resource), redacted(resource, bulk=True)
    for field in kind.secret:
        assert not getattr(getattr(shown, kind.part), field)
    for field in kind.bulk:
        assert getattr(getattr(shown, kind.part), field)
        assert not getattr(getattr(brief, kind.part), field)
    assert getattr(resource, kind.part) == message


def test_status_parts() -> None:
    assert {kind.name: status_part(kind) for kind in KINDS if status_part(kind)} == {
        "Rollout": "rollout_state",
        "Slo": "error_budget",
        "Budget": "spend",
    }
