"""What is said about schemas and regular expressions that cannot be used."""

import pytest

from libs.structured_output import MAX_BYTES, StructureError, check, explain


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
