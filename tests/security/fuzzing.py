"""Hostile input for everything that reads what strangers send, and what it may answer with.

`python -m tests.security.fuzzing 20000` tries that many inputs of each kind and tells the longest time of one.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from llguidance import LLTokenizer
from weir.inference.v1 import inference_pb2

from libs import apikeys
from libs.artifacts.signing import read_envelope
from libs.chat_template import ChatTemplate, TemplateError
from libs.clock import ManualClock
from libs.errors import WeirError
from libs.safety_filter import PackError, compile_pack
from libs.safety_filter.pack import rules_from_json
from libs.structured_output import grammar
from libs.versions.manifest import parse_manifest
from services.edge_auth.config import Issuer
from services.edge_auth.jwks import KeySets
from services.edge_auth.tokens import TokenVerifier
from services.gateway import convert
from services.gateway.openai.requests import parse_chat, parse_completion, parse_embedding
from services.worker.engines.port import EngineLoadError

MESSAGES = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "{{ 1 }}"}]
FIELDS = [
    "model", "messages", "role", "content", "prompt", "input", "max_tokens", "temperature", "top_p", "n", "stop",
    "seed", "logprobs", "top_logprobs", "stream", "user", "response_format", "json_schema", "schema", "type",
    "properties", "items", "enum", "pattern", "minLength", "maxItems", "anyOf", "$ref", "$defs", "logit_bias",
    "stream_options", "metadata", "tools", "name", "files", "path", "sha256", "bytes", "version", "rules", "action",
    "stage", "replacement", "id", "category", "payload", "payloadType", "signatures", "keyid", "sig", "object",
    "string", "array", "required", "additionalProperties", "structured_outputs", "guided_json", "guided_choice",
    "guided_regex", "guided_grammar", "min_tokens", "stop_token_ids", "bad_words", "verbosity", "modalities", "refusal",
    "tool_calls",
]  # fmt: skip
LARK = st.lists(
    st.sampled_from(
        [
            "start: ", "a: ", "T: ", "a", "start", "T", "b", " ", "\n", " | ", "*", "+", "?", "{1,9}", "{999999999}",
            "(", ")", "[", "]", '"x"', '""', "/x+/", "/(/", "/((x{1,99}){1,99}){1,99}/", " & ", "~", "<|end|>",
            "<[0-9]>", "<[4]>", '%json {"type": "object"}', "%json {", "%lark {", "%regex {", "}", ".1", "// c\n",
            "%import common.INT\n", "%ignore /\\s/\n", "%llguidance {}\n", '%llguidance {"no_forcing": 7}\n',
            "[max_tokens=3]", "[lazy]", '"\\u0000"',
        ]
    )
    | st.text(max_size=6),
    max_size=40,
).map(lambda parts: "start: " + "".join(parts))  # fmt: skip
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=30), st.sampled_from(["user", "object", "("])
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=8), inner),
    max_leaves=20,
)
DEEP = st.sampled_from(["[", '{"a":', '{"type":"object","properties":{"a":']).flatmap(
    lambda unit: st.integers(1, 20_000).map(lambda times: unit * times)
)
JSON = st.one_of(VALUES.map(json.dumps), DEEP, st.text(max_size=200))
CHAT = st.builds(
    lambda more: json.dumps({"model": "m", "messages": MESSAGES, **more}),
    st.dictionaries(st.sampled_from(FIELDS), VALUES),
)
BYTES = st.one_of(JSON.map(lambda text: text.encode("utf-8", "surrogatepass")), st.binary(max_size=200))
B64 = st.text("ABCDwxyz0189-_=.{}", max_size=60)
TOKENS = st.one_of(
    st.text(max_size=200),
    st.tuples(B64, B64, B64).map(".".join),
    st.tuples(VALUES, VALUES, B64).map(
        lambda parts: ".".join([*(_b64(json.dumps(each)) for each in parts[:2]), parts[2]])
    ),
    st.sampled_from(["none", "HS256", "ES256", "RS256"]).map(
        lambda algorithm: f"{_b64(json.dumps({'alg': algorithm, 'typ': 'at+jwt', 'kid': '../k'}))}.{_b64('{}')}."
    ),
)
SNIPPETS = st.lists(
    st.sampled_from(
        [
            "{% for a in messages %}",
            "{% endfor %}",
            "{{ a }}",
            "{% if a == b %}",
            "{% endif %}",
            "{{ 'a' * 9999 }}",
            "{{ messages[0].content | upper }}",
            "{% set a = a ~ a %}",
            "{{ a.b.c }}",
            "{{ [a, a] | tojson }}",
            "{% raw %}",
            "{% macro a() %}{{ a() }}{% endmacro %}",
            "{{ range(99999) | list }}",
            "{{ a() }}",
            "{{ ''.join(a) }}",
            "{%",
        ]
    )
    | st.text(max_size=12),
    max_size=12,
).map("".join)


def _b64(text: str) -> str:
    import base64

    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _tokens() -> Callable[[str], object]:
    issuer = Issuer(issuer="https://i.example", audience="weir", jwks_file="/dev/null")
    keys = KeySets((issuer,), clock=ManualClock(), min_interval=1, on_change=lambda: None)
    return TokenVerifier((issuer,), keys, leeway=5, pepper=b"p").verify


def _native(content: bytes) -> None:
    convert.to_spec(inference_pb2.GenerationSpec.FromString(content))


def _follow(text: str) -> None:
    """A grammar, and the beginning of an output that always takes the first token allowed."""
    matcher = grammar.compile_matcher("grammar", text, LLTokenizer("byte"))
    for _ in range(40):
        bits = matcher.compute_bitmask()
        if matcher.is_error() or matcher.is_stopped():
            grammar.explain(matcher.get_error())
            return
        matcher.consume_token(next(token for token in range(8 * len(bits)) if bits[token // 8] >> token % 8 & 1))


TARGETS: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any], object], tuple[type[Exception], ...]]] = {
    "keys": (st.text(max_size=200) | st.from_regex(r"wk_\w{0,20}_\S{0,60}"), apikeys.parse, ()),
    "tokens": (TOKENS, _tokens(), ()),
    "chat": (BYTES | CHAT.map(str.encode), parse_chat, (WeirError,)),
    "completions": (BYTES | CHAT.map(str.encode), parse_completion, (WeirError,)),
    "embeddings": (BYTES, parse_embedding, (WeirError,)),
    "native": (st.binary(max_size=300), _native, (DecodeError, WeirError)),
    "manifests": (BYTES, lambda content: parse_manifest(content, Path("manifest.json")), (EngineLoadError,)),
    "signatures": (JSON, read_envelope, (ValueError,)),
    "templates": (SNIPPETS, lambda source: ChatTemplate(source).render(MESSAGES, {}), (TemplateError,)),
    "grammars": (LARK | st.text(max_size=200), _follow, (grammar.StructureError,)),
    "schemas": (JSON, lambda text: grammar.check("json_schema", text), (grammar.StructureError,)),
    "packs": (JSON, lambda text: compile_pack("p", 1, rules_from_json(text)), (PackError,)),
}
"""Name → inputs, what reads them, and the errors that are an answer."""


def fuzz(name: str, examples: int, start: int = 0) -> tuple[int, float]:
    """(inputs tried, seconds of the slowest). Raises whatever a reader should not."""
    inputs, read, answers = TARGETS[name]
    tried, slowest = 0, 0.0

    @seed(start)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=False,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(inputs)
    def attempt(given_: Any) -> None:
        nonlocal tried, slowest
        began = time.perf_counter()
        with suppress(*answers):
            read(given_)
        tried, slowest = tried + 1, max(slowest, time.perf_counter() - began)

    attempt()
    return tried, slowest


if __name__ == "__main__":
    for each in TARGETS:
        tried, slowest = fuzz(each, int(sys.argv[1]))
        sys.stdout.write(f"{each:<12} {tried:>8} inputs, the slowest took {slowest * 1e3:.1f} ms\n")
