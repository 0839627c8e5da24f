"""NVIDIA's unmodified clients and a demo model, through the edge with a key: gRPC, HTTP, their asynchronous kinds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.support.mesh import Mesh, eventually

CLIENTS = Path(__file__).with_name("triton_clients.py")


@pytest.fixture(scope="module")
def found(mesh: Mesh) -> Any:
    """What they were answered."""
    env = mesh.env
    asked = {
        "http": urlsplit(env["WEIR_EDGE_URL"]).netloc,
        "grpc": urlsplit(env["WEIR_EDGE_TLS_URL"]).netloc,
        "ca": env["WEIR_CA"],
        "key": env["WEIR_KEY_ACME"],
    }
    headers = {"authorization": f"Bearer {env['WEIR_KEY_ACME']}"}

    def ready(model: str) -> bool:
        return httpx2.get(f"{env['WEIR_EDGE_URL']}/v2/models/{model}/ready", headers=headers).is_success

    # Versions by their names are nobody's unless granted.
    mesh.weir("models", "grant", "tenant:acme", "--model", "cancer-gbdt@1", "--reason", "a test")
    for model in ("cancer-gbdt", "cancer-gbdt/versions/1", "topics"):
        eventually(lambda model=model: ready(model), seconds=60, what=f"{model} is ready")
    command = [sys.executable, "-P", str(CLIENTS), json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_all_of_them_are_given_the_same_numbers(found: Any) -> None:
    numbers = found["http"]["binary"]
    assert len(numbers) == 2
    assert all(0 <= each <= 1 for each in numbers)
    assert found["http"]["asynchronous"] == numbers
    assert found["http"]["json"] == numbers
    assert found["http"]["compressed"] == [numbers, numbers]
    for kind in ("grpc", "tls"):
        assert [found[kind][way] for way in ("plain", "pinned", "compressed", "named")] == [numbers] * 4
    assert found["aio"]["all"] == [numbers] * 16
    assert found["http"]["texts"] == 2


def test_they_learn_what_there_is(found: Any) -> None:
    http = found["http"]
    assert http["server"]["name"] == "weir"
    assert http["live"]
    assert http["ready"] == [True, True, False]
    assert http["metadata"]["inputs"] == [{"name": "features", "datatype": "FP32", "shape": [-1, 30]}]
    assert http["config"] == "cancer-gbdt"
    assert http["statistics"] == 1
    for kind in ("grpc", "tls"):
        assert found[kind]["live"]
        assert found[kind]["ready"] == [True, True]
        assert found[kind]["metadata"] == [{"name": "features", "datatype": "FP32", "shape": ["-1", "30"]}]
        assert found[kind]["index"] == http["index"]
    assert {"cancer-gbdt", "digits-torch", "topics"} <= set(http["index"])


def test_their_errors_say_what_is_wrong(found: Any) -> None:
    nothing, shape, sequence, key, memory = found["http"]["refused"]
    assert nothing[0] == "404"
    assert shape[0] == "400"
    assert "features" in shape[1]
    assert (sequence[0], "sequence_id" in sequence[1]) == ("501", True)
    assert (key[0], "API key" in key[1]) == ("401", True)
    assert (memory[0], "systemsharedmemory" in memory[1]) == ("501", True)
    for kind in ("grpc", "tls"):
        mismatch, missing, load, stranger = found[kind]["refused"]
        assert mismatch[0] == "StatusCode.INVALID_ARGUMENT"
        assert "digits-torch" in mismatch[1]
        assert missing[0] == "StatusCode.NOT_FOUND"
        assert load[0] == "StatusCode.UNIMPLEMENTED"
        assert stranger[0] == "StatusCode.UNAUTHENTICATED"
