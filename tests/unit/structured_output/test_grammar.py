"""What is said about schemas, regular expressions and grammars that cannot be used."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from libs.structured_output import MAX_BYTES, StructureError, check, compile_matcher, explain, regex_of


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["a"]}',
        '{"$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}, "$ref": "#/$defs/t"}',
        '{"title": "x", "description": "y", "default": 3, "examples": [1], "type": "integer"}',
    ],
)
def test_good_schemas_pass(text):
    check("json_schema", text)


@pytest.mark.parametrize("text", ["[a-z]+", "", "^abc$", r"\d{3}-\d{4}", "(?i)yes|no", "ä{2}", r"a\\"])
def test_good_expressions_pass(text):
    check("regex", text)


@pytest.mark.parametrize(
    "text",
    [
        'start: "yes" | "no"',
        'start: item*\nitem: /[a-z]+/ ","',
        'start: "(" start ")" | ""',
        'start: start "x" | "x"',
        'start: %json {"type": "integer"}',
        "%import common.INT\nstart: INT",
        # What has to follow has no end.
        "start: /x+/ /x+/",
        '%llguidance {"no_forcing": false}\nstart: /x+/ /x+/',
        'start: a\na: "x" a',
        "start: %lark {\nstart: /x+/ /x+/\n}",
    ],
)
def test_good_grammars_pass(text):
    check("grammar", text)


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("json_schema", "[]", "a JSON Schema is a JSON object"),
        ("json_schema", "{", "it is not JSON: .* line 1 column 2"),
        ("json_schema", '{"type": "objekt"}', "Invalid type: objekt"),
        ("json_schema", '{"not": {}}', 'Unimplemented keys: \\["not"\\]'),
        ("json_schema", '{"enum": []}', "Unsatisfiable schema"),
        ("json_schema", '{"$ref": "#/$defs/missing"}', "missing' does not exist"),
        ("json_schema", '{"$ref": "http://localhost/x.json"}', "does not fetch resources"),
        ("json_schema", '{"items":' * 300 + "{}" + "}" * 300, "recursion limit"),
        ("json_schema", '{"items":' * 3000 + "{}" + "}" * 3000, "nested too deeply|recursion limit"),
        ("json_schema", '{"type": "string", "pattern": "("}', "unclosed group"),
        ("json_schema", '{"const": "\ud800"}', "surrogate"),
        ("json_schema", f'{{"const": "{"x" * MAX_BYTES}"}}', f"at most {MAX_BYTES} are allowed"),
        ("regex", "x" * (MAX_BYTES + 1), f"{MAX_BYTES + 1} bytes"),
        ("regex", "(", "unclosed group"),
        ("regex", "a\\", "backslash that escapes nothing"),
        ("regex", "a(?=b)", "look-around"),
        ("regex", "x^", "anchors inside it"),
        ("regex", r"\bfoo", "word boundaries"),
        ("regex", r"[^\s\S]", "nothing can match it"),
        ("regex", "(" * 400 + "a" + ")" * 400, "nested"),
        ("grammar", "", "no start rule"),
        ("grammar", 'a: "x"', "no start rule"),
        ("grammar", "start: b", "b"),
        ("grammar", "start: start", "nothing can match it"),
        ("grammar", "start: a\na: b\nb: a", "nothing can match it"),
        ("grammar", 'start: start "x"', "nothing can match it"),
        ("grammar", "start: T\nT: /a/ & /b/", "nothing can match it"),
        ("grammar", "start: /(/", "unclosed group"),
        ("grammar", "start: " + "(" * 5000 + '"a"' + ")" * 5000, "nested"),
        ("grammar", "start: %json " + '{"items":' * 3000 + "1" + "}" * 3000, "recursion limit"),
        ("grammar", '{"grammars": [{"json_schema": {}}]}', "Lark, not JSON"),
        ("grammar", 'start: "a\ud800"', "surrogate"),
        ("grammar", "start: " + " | ".join('"x"' for _ in range(MAX_BYTES // 5)), f"at most {MAX_BYTES} are allowed"),
    ],
)
def test_bad_ones_are_refused_with_what_is_wrong(kind, text, message):
    with pytest.raises(StructureError, match=message) as caught:
        check(kind, text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) <= 300


def test_what_would_take_too_much_work_is_cut_short():
    """Each of the thirty choices doubles the alternatives: a compilation without bounds would not end."""
    either = '{"anyOf": [{"properties": {"a@": {}}}, {"properties": {"b@": {}}}]}'
    schema = '{"allOf": [' + ",".join(either.replace("@", str(i)) for i in range(30)) + "]}"
    with pytest.raises(StructureError, match="schema too large"):
        check("json_schema", schema)


def test_errors_are_told_without_the_parsers_state():
    told = explain('Parser Error: token "x" doesn\'t satisfy the grammar\n<state>\nTokens: secret')
    assert told == 'token "x" doesn\'t satisfy the grammar'
    assert explain("panic: assertion failed: a.len() < 7\n<backtrace>\n 0: here") == "too complex"
    assert explain("") == "cannot be used"
    assert len(explain("x" * 5000)) == 300


@pytest.mark.parametrize(
    "text",
    [
        "start: a\na: a a a a a | \"x\" | \"\"",
        "start: " + " ".join(f"(a{i} | b)" for i in range(700)) + "\n"
        + "\n".join(f'a{i}: "x" b?' for i in range(700)) + '\nb: "x"?',
        "start: " + " | ".join(f'"x{i}"' for i in range(1500)),
    ],
    ids=["ambiguous without end", "ambiguous everywhere", "a huge alternation"],
)  # fmt: skip
def test_a_grammar_whose_steps_would_take_too_much_work_ends_with_an_error(text):
    """A row of 2,000 items of the first of these took 4 s."""
    matcher = compile_matcher("grammar", text, LLTokenizer("byte"))
    for _ in range(600):
        matcher.compute_bitmask()
        if matcher.is_error():
            break
        matcher.consume_token(ord("x"))
    assert "max is 500" in explain(matcher.get_error())


@given(st.lists(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=8), min_size=1, max_size=5))
def test_choices_are_matched_as_they_are_and_nothing_else(choices):
    pattern = regex_of(choices)
    for choice in choices:
        matcher = LLMatcher(LLTokenizer("byte"), LLMatcher.grammar_from_regex(pattern), log_level=0)
        assert matcher.try_consume_tokens(list(choice.encode())) == len(choice.encode())
        assert matcher.is_accepting()
    assert re.fullmatch(pattern, "".join(choices) + "+") is None or "".join(choices) + "+" in choices


def test_a_choice_may_look_like_an_expression():
    check("regex", regex_of([".*", "a|b", "(", "\\", "[x", "{2}", "^$", "a-b&~#", "\n", ""]))
