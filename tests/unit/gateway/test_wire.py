"""Bodies written by hand are what protobuf would have written."""

import pytest
from google.api import httpbody_pb2
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.openai.responses import content_prefix, http_body
from services.gateway.openai.servicer import SERVICE


@given(st.binary(max_size=300), st.sampled_from(["application/json", "text/event-stream", "x" * 200]))
def test_bytes_equal_protobufs(data: bytes, content_type: str) -> None:
    expected = httpbody_pb2.HttpBody(content_type=content_type, data=data)
    parsed = httpbody_pb2.HttpBody.FromString(http_body(content_prefix(content_type), data))
    assert parsed == expected


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152])
def test_lengths_at_the_edges(size: int) -> None:
    expected = httpbody_pb2.HttpBody(content_type="t", data=b"d" * size)
    assert httpbody_pb2.HttpBody.FromString(http_body(content_prefix("t"), b"d" * size)) == expected


def test_every_method_streams_bodies() -> None:
    assert {method.output_type.full_name for method in SERVICE.methods} == {"google.api.HttpBody"}
    assert all(method.server_streaming and not method.client_streaming for method in SERVICE.methods)
