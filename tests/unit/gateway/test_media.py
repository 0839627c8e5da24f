"""What a body may come in: content types, charsets, codings, and JSON that is odd."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import Any

import pytest
from google.api.httpbody_pb2 import HttpBody

from libs.errors import Reason, WeirError, http_status
from services.gateway.openai.media import json_text
from services.gateway.openai.requests import parse_chat, parse_completion, parse_embedding

TEXT = b'{"model": "tiny", "messages": [{"role": "user", "content": "h\xc3\xa4?"}]}'
MIB = 1 << 20


def read(data: bytes, content_type: str = "application/json", coding: str = "", most: int = MIB) -> bytes:
    return json_text(HttpBody(content_type=content_type, data=data), coding, most)


@pytest.mark.parametrize(
    "content_type",
    [
        "",
        "application/json",
        "Application/JSON",
        "application/json; charset=utf-8",
        'application/json;charset="UTF-8"',
        "application/json ; charset=us-ascii; v=1",
        "application/vnd.api+json",
        "application/json;",
    ],
)
def test_json_in_utf_8_is_read_whatever_it_is_called(content_type: str) -> None:
    assert read(TEXT, content_type) == TEXT


@pytest.mark.parametrize(
    ("content_type", "word"),
    [
        ("text/plain", "application/json"),
        ("application/x-www-form-urlencoded", "application/json"),
        ("multipart/form-data; boundary=x", "application/json"),
        ("application/jsonl", "application/json"),
        ("application/json; charset=utf-16", "utf-8"),
        ('application/json; charset="iso-8859-1"', "utf-8"),
        ("application/json; Charset = latin1", "utf-8"),
    ],
)
def test_another_content_type_or_charset_is_415_as_with_openai(content_type: str, word: str) -> None:
    with pytest.raises(WeirError) as caught:
        read(TEXT, content_type)
    error = caught.value
    assert (error.reason, http_status(error.reason), error.limit) == (
        Reason.UNSUPPORTED_MEDIA_TYPE,
        415,
        "content-type",
    )
    assert word in error.message


def test_a_byte_order_mark_of_utf_8_is_ignored_compressed_or_not() -> None:
    marked = b"\xef\xbb\xbf" + TEXT
    assert read(marked) == read(gzip.compress(marked), coding="gzip") == TEXT


def test_a_compressed_body_is_bounded_unpacked() -> None:
    assert read(gzip.compress(TEXT), coding="gzip", most=len(TEXT)) == TEXT
    with pytest.raises(WeirError) as caught:
        read(gzip.compress(TEXT), coding="gzip", most=len(TEXT) - 1)
    assert http_status(caught.value.reason) == 413


Parse = Callable[[bytes], Any]
parsers = pytest.mark.parametrize("parse", [parse_chat, parse_completion, parse_embedding])


@parsers
@pytest.mark.parametrize("codec", ["utf-16", "utf-16-le", "utf-32", "latin-1"])
def test_another_charset_without_a_word_is_no_json(parse: Parse, codec: str) -> None:
    text = '{"model": "tïny", "messages": [], "prompt": "ä", "input": "ä"}'
    with pytest.raises(WeirError, match="not valid JSON") as caught:
        parse(read(text.encode(codec)))
    assert (caught.value.reason, caught.value.limit) == (Reason.INVALID_REQUEST, "body")


def test_of_keys_that_occur_twice_the_last_one_counts_as_pythons_json_has_it() -> None:
    text = (
        b'{"model": "a", "max_tokens": 1, "messages": [{"role": "user", "content": "x", "content": "y"}], "model": "b"}'
    )
    spec = parse_chat(read(text)).spec
    assert (spec.model, spec.messages[0].content) == ("b", "y") == (json.loads(text)["model"], "y")


@parsers
@pytest.mark.parametrize("field", ["messages", "metadata", "unknown", "prompt", "input", "logit_bias"])
@pytest.mark.parametrize(("opened", "closed"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_ten_thousand_levels_are_refused_in_words(parse: Parse, field: str, opened: bytes, closed: bytes) -> None:
    deep = opened * 10_000 + (b"1" if opened != b"[" else b"") + closed * 10_000
    with pytest.raises(WeirError) as caught:
        parse(read(b'{"model": "tiny", "%s": %s}' % (field.encode(), deep)))
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert caught.value.limit in ("body", field, f"{field}[0]")
