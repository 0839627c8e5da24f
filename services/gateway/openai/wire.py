"""`google.api.HttpBody` by hand: one is written per streamed token, and a message object costs more than its bytes."""

from __future__ import annotations

import grpc
from google.protobuf.message_factory import GetMessageClass
from weir.openai.v1 import openai_pb2

SERVICE = openai_pb2.DESCRIPTOR.services_by_name["OpenAIService"]


def content_prefix(content_type: str) -> bytes:
    """Everything of an HttpBody before the length of its data: field 1 (content_type) and the tag of field 2 (data)."""
    encoded = content_type.encode()
    return b"\x0a" + _varint(len(encoded)) + encoded + b"\x12"


def http_body(prefix: bytes, data: bytes) -> bytes:
    """A serialised HttpBody; `prefix` is from `content_prefix`."""
    return b"%b%b%b" % (prefix, _varint(len(data)), data)


def register(servicer: object, server: grpc.aio.Server) -> None:
    """Add the servicer; its methods write serialised bodies (every method of this service streams HttpBody)."""
    handlers = {
        method.name: grpc.unary_stream_rpc_method_handler(
            getattr(servicer, method.name),
            request_deserializer=GetMessageClass(method.input_type).FromString,
            response_serializer=None,
        )
        for method in SERVICE.methods
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE.full_name, handlers),))


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
