"""The typed client's parameters as wire messages."""

import json

import pytest
from weir.client import Parameters
from weir.client._types import to_spec
from weir.inference.v1 import inference_pb2


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


def test_a_batch_request_says_so():
    assert to_spec("m", "hi", Parameters(), batch=True).priority == inference_pb2.PRIORITY_BATCH
    assert to_spec("m", "hi", Parameters()).priority == inference_pb2.PRIORITY_UNSPECIFIED
