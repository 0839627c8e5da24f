"""KServe's unmodified clients and the demo models, through the edge with a key. `make kserve-env` installs them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.support.mesh import ROOT, Mesh, eventually

CLIENTS = Path(__file__).with_name("kserve_clients.py")
PYTHON = ROOT / "build" / "kserve-env" / "bin" / "python"
KINDS = ("http", "plain", "tls")
pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="KServe's clients are not installed: make kserve-env")


@pytest.fixture(scope="module")
def found(mesh: Mesh) -> Any:
    """What they were answered."""
    env = mesh.env
    asked = {
        "http": env["WEIR_EDGE_URL"],
        "plain": urlsplit(env["WEIR_EDGE_URL"]).netloc,
        "tls": urlsplit(env["WEIR_EDGE_TLS_URL"]).netloc,
        "ca": env["WEIR_CA"],
        "key": env["WEIR_KEY_ACME"],
    }
    headers = {"authorization": f"Bearer {env['WEIR_KEY_ACME']}"}

    def ready(model: str) -> bool:
        return httpx2.get(f"{env['WEIR_EDGE_URL']}/v2/models/{model}/ready", headers=headers).is_success

    for model in ("cancer-gbdt", "topics"):
        eventually(lambda model=model: ready(model), seconds=60, what=f"{model} is ready")
    command = [str(PYTHON), "-P", str(CLIENTS), json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_both_are_given_the_same_numbers_however_they_ask(found: Any) -> None:
    numbers = found["http"]["binary"]
    assert len(numbers) == 2
    assert all(0 <= each <= 1 for each in numbers)
    for kind in KINDS:
        assert [found[kind][way] for way in ("binary", "json", "raw", "all raw")] == [numbers] * 4, kind
        assert found[kind]["texts"] == 2


def test_they_learn_what_there_is(found: Any) -> None:
    for kind in KINDS:
        assert found[kind]["live"] is found[kind]["ready"] is found[kind]["models"][0] is True
    assert found["http"]["models"] == [True, False]


def test_their_errors_say_what_is_wrong(found: Any) -> None:
    nothing, shape, key = found["http"]["refused"]
    assert (nothing[0], shape[0], key[0]) == ("404", "400", "401")
    assert "features" in shape[1]
    for kind in ("plain", "tls"):
        nothing, shape, key = found[kind]["refused"]
        assert (nothing[0], shape[0], key[0]) == ("NOT_FOUND", "INVALID_ARGUMENT", "UNAUTHENTICATED")
        assert "features" in shape[1]
