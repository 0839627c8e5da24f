"""The typed client's parameters as wire messages."""

import json

import pytest
from weir.client import Parameters


def test_structures_are_text_on_the_wire():
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    sent = Parameters(json_schema=schema).to_proto().structured_output
    assert json.loads(sent.json_schema) == schema
    assert list(json.loads(sent.json_schema)["properties"]) == ["b", "a"]
    assert Parameters(json_schema='{"a":1}').to_proto().structured_output.json_schema == '{"a":1}'
    assert Parameters(regex="[ab]").to_proto().structured_output.regex == "[ab]"
    assert not Parameters(temperature=0).to_proto().HasField("structured_output")


def test_an_output_has_one_structure():
    with pytest.raises(ValueError, match="not both"):
        Parameters(json_schema={}, regex="a").to_proto()
