"""Route configurations as protobuf, put together from parts: of a thousand routes one has changed, and the others are
neither parsed nor serialised again.

In protobuf's wire form a message is its fields one after the other, in any order
(https://protobuf.dev/programming-guides/encoding/#order), so what is known of a part can be joined with the rest.
"""

from __future__ import annotations

from envoy.config.route.v3 import route_components_pb2, route_pb2
from google.protobuf import json_format
from google.protobuf.message import Message
from xds.core.v3 import extension_pb2
from xds.type.matcher.v3 import matcher_pb2

from services.controlplane.policy.names import Piece, Resource, remembered

_MAPS = ("exact_match_map", "prefix_match_map")


def route_configuration(resource: Resource) -> bytes:
    """A RouteConfiguration; the matchers of its virtual hosts consist of trees.

    :raises json_format.ParseError: a part does not fit its message.
    """
    parts = [_without(route_pb2.RouteConfiguration(), resource, "virtual_hosts")]
    for host in resource["virtual_hosts"]:
        content = _without(route_components_pb2.VirtualHost(), host, "matcher")
        if "matcher" in host:
            content += _field(route_components_pb2.VirtualHost, "matcher", _matcher(host["matcher"]))
        parts.append(_field(route_pb2.RouteConfiguration, "virtual_hosts", content))
    return b"".join(parts)


def _matcher(matcher: Resource) -> bytes:
    tree = matcher["matcher_tree"]
    kind = next(name for name in _MAPS if name in tree)
    entries = [_entry(name, _on_match(found)) for name, found in tree[kind]["map"].items()]
    asked = json_format.ParseDict(tree["input"], extension_pb2.TypedExtensionConfig())
    content = _field(matcher_pb2.Matcher.MatcherTree, "input", asked.SerializeToString(deterministic=True))
    content += _field(matcher_pb2.Matcher.MatcherTree, kind, b"".join(entries))
    return _field(matcher_pb2.Matcher, "matcher_tree", content) + _field(
        matcher_pb2.Matcher, "on_no_match", _on_match(matcher["on_no_match"])
    )


def _on_match(found: Resource) -> bytes:
    if isinstance(found, Piece):
        return _parsed(found)
    return _field(matcher_pb2.Matcher.OnMatch, "matcher", _matcher(found["matcher"]))


@remembered
def _parsed(piece: Piece) -> bytes:
    return json_format.ParseDict(dict(piece), matcher_pb2.Matcher.OnMatch()).SerializeToString(deterministic=True)


def _entry(key: str, value: bytes) -> bytes:
    """An entry of a map, which is a message of two fields."""
    name = key.encode()
    entry = b"\x0a" + varint(len(name)) + name + b"\x12" + varint(len(value)) + value
    return _field(matcher_pb2.Matcher.MatcherTree.MatchMap, "map", entry)


def _without(message: Message, content: Resource, *names: str) -> bytes:
    bare = {key: value for key, value in content.items() if key not in names}
    return json_format.ParseDict(bare, message).SerializeToString(deterministic=True)


def _field(message: type[Message], field: str, content: bytes) -> bytes:
    """The content as a field of a message."""
    return varint(message.DESCRIPTOR.fields_by_name[field].number << 3 | 2) + varint(len(content)) + content


def varint(number: int) -> bytes:
    """A non-negative number as protobuf writes it (https://protobuf.dev/programming-guides/encoding/#varints)."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
