"""The JSON text in the body of an HTTP request, whatever it comes in."""

from __future__ import annotations

import re

from google.api import httpbody_pb2

from libs.codings import decompressed
from libs.errors import Reason, WeirError

_BOM = b"\xef\xbb\xbf"
_CHARSET = re.compile(r'; *charset *= *"?([^";, ]*)', re.IGNORECASE)
_UTF8 = ("utf-8", "utf8", "us-ascii")


def json_text(body: httpbody_pb2.HttpBody, coding: str, most: int) -> bytes:
    """The body as JSON in UTF-8 without a byte-order mark, which RFC 8259 lets a reader ignore and PowerShell writes.

    As OpenAI does, another content type than JSON's is refused; without one it is taken for JSON.

    :param coding: the request's `content-encoding`.
    :param most: bytes that a compressed body may have.
    :raises WeirError: UNSUPPORTED_MEDIA_TYPE: another content type, charset or coding; INVALID_REQUEST: not in its
        coding; PAYLOAD_TOO_LARGE.
    """
    if body.content_type != "application/json":
        _check_type(body.content_type)
    return decompressed(body.data, coding, most).removeprefix(_BOM)


def _check_type(content_type: str) -> None:
    kind = content_type.partition(";")[0].strip().lower()
    if kind and kind != "application/json" and not re.fullmatch(r"application/[\w.-]+\+json", kind):
        raise WeirError(
            Reason.UNSUPPORTED_MEDIA_TYPE, "the content type must be application/json", limit="content-type"
        )
    charset = _CHARSET.search(content_type)
    if charset is not None and charset[1].lower() not in _UTF8:
        raise WeirError(Reason.UNSUPPORTED_MEDIA_TYPE, "the charset must be utf-8", limit="content-type")
