"""NVIDIA's unmodified clients and a demo model: gRPC, HTTP and their asynchronous kinds, through the edge with a key
and, over gRPC, inside the mesh with a certificate."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import numpy as np
import pytest
from weir.client import Client, Tls

from tests.support.mesh import Mesh, eventually

CLIENTS = Path(__file__).with_name("triton_clients.py")
HTTP = ("http", "http_aio")
MESH = ("mesh", "mesh_aio")
GRPC = ("grpc", "grpc_aio", "tls", "tls_aio", *MESH)


@pytest.fixture(scope="module")
def found(mesh: Mesh) -> Any:
    """What they were answered."""
    env = mesh.env
    asked = {
        "http": urlsplit(env["WEIR_EDGE_URL"]).netloc,
        "grpc": urlsplit(env["WEIR_EDGE_TLS_URL"]).netloc,
        "ca": env["WEIR_CA"],
        "key": env["WEIR_KEY_ACME"],
        "cert": env["WEIR_CLIENT_CERT"],
        "cert_key": env["WEIR_CLIENT_KEY"],
    }
    headers = {"authorization": f"Bearer {env['WEIR_KEY_ACME']}"}

    def ready(model: str) -> bool:
        return httpx2.get(f"{env['WEIR_EDGE_URL']}/v2/models/{model}/ready", headers=headers).is_success

    # Versions by their names are nobody's unless granted.
    mesh.weir("models", "grant", "tenant:acme", "--model", "cancer-gbdt@1", "--reason", "a test")
    for model in ("cancer-gbdt", "cancer-gbdt/versions/1", "topics"):
        eventually(lambda model=model: ready(model), seconds=60, what=f"{model} is ready")
    command = [sys.executable, "-P", str(CLIENTS), json.dumps(asked)]
    done = subprocess.run(
        command,
        env={**os.environ, "GRPC_XDS_BOOTSTRAP": env["GRPC_XDS_BOOTSTRAP"]},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_all_of_them_are_given_the_same_numbers(found: Any) -> None:
    numbers = found["http"]["binary"]
    assert len(numbers) == 2
    assert all(0 <= each <= 1 for each in numbers)
    assert found["submitted"] == numbers
    for kind in HTTP:
        assert found[kind]["binary"] == found[kind]["json"] == numbers, kind
        assert found[kind]["compressed"] == [numbers, numbers]
        assert found[kind]["texts"] == 2
    for kind in GRPC:
        assert [found[kind][way] for way in ("plain", "pinned", "compressed", "named")] == [numbers] * 4, kind
    assert found["many"] == [numbers] * 16


def test_they_learn_what_there_is(found: Any) -> None:
    for kind in HTTP:
        http = found[kind]
        assert http["server"]["name"] == "weir"
        assert http["live"] is http["running"] is True
        assert http["ready"] == [True, True, False]
        assert http["metadata"]["inputs"] == [{"name": "features", "datatype": "FP32", "shape": [-1, 30]}]
        assert http["config"] == "cancer-gbdt"
        assert http["statistics"] == 1
    for kind in GRPC:
        grpc = found[kind]
        assert grpc["server"] == "weir"
        assert grpc["live"] is grpc["running"] is True
        assert grpc["ready"] == [True, True]
        assert grpc["metadata"] == [{"name": "features", "datatype": "FP32", "shape": ["-1", "30"]}]
        assert (grpc["config"], grpc["statistics"]) == ("cancer-gbdt", 1)
    assert {tuple(found[kind]["index"]) for kind in (*HTTP, *GRPC)} == {tuple(found["http"]["index"])}
    assert {"cancer-gbdt", "digits-torch", "topics"} <= set(found["http"]["index"])


def test_their_errors_say_what_is_wrong(found: Any) -> None:
    for kind in HTTP:
        nothing, shape, sequence, key, memory = found[kind]["refused"]
        assert nothing[0] == "404"
        assert shape[0] == "400"
        assert "features" in shape[1]
        assert (sequence[0], "sequence_id" in sequence[1]) == ("501", True)
        assert (key[0], "API key" in key[1]) == ("401", True)
        assert (memory[0], "systemsharedmemory" in memory[1]) == ("501", True)
    for kind in GRPC:
        mismatch, missing, *unsupported, stranger = found[kind]["refused"]
        if kind not in MESH:  # who comes with a certificate is asked for no key, and routed by nobody
            assert (mismatch[0], "digits-torch" in mismatch[1]) == ("StatusCode.INVALID_ARGUMENT", True)
            assert stranger[0] == "StatusCode.UNAUTHENTICATED"
        assert missing[0] == "StatusCode.NOT_FOUND"
        names = ("RepositoryModelLoad", "sequence_id", "CudaSharedMemoryStatus", "ModelStreamInfer")
        for (status, words), name in zip(unsupported, names, strict=True):
            assert (status, name in words) == ("StatusCode.UNIMPLEMENTED", True), (kind, words)


def test_the_lines_that_up_prints_ask_for_a_prediction(mesh: Mesh, found: Any) -> None:
    printed = mesh.up_output.partition("tritonclient (predictions")[2].splitlines()[1:]
    lines = itertools.takewhile(lambda line: not line.startswith("  (or"), printed)
    command = [sys.executable, "-P", "-c", textwrap.dedent("\n".join(lines))]
    done = subprocess.run(
        command, env={**os.environ, **mesh.env}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert 0 < float(done.stdout.strip().strip("[]")) < 1


async def test_the_meshs_own_client_asks_predictors_inside_the_mesh(mesh: Mesh, found: Any) -> None:
    """Over `xds:///predictor.weir.internal`, with a workload's certificate."""
    tls = Tls(ca=mesh.env["WEIR_CA"], cert=mesh.env["WEIR_CLIENT_CERT"], key=mesh.env["WEIR_CLIENT_KEY"])
    rows = np.linspace(0, 30, 60, dtype=np.float32).reshape(2, 30)
    async with Client("xds:///gateway.weir.internal", tls=tls) as client:
        answer = await client.predict("cancer-gbdt", {"features": rows}, timeout=30)
    assert answer["probability"].ravel().tolist() == found["http"]["binary"]
    assert answer.version == "cancer-gbdt@1"
