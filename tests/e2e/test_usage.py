"""What a killed gateway had delivered is recorded and billed once; books agree; a tenant's admin is told of it."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.e2e.conftest import client_for
from tests.support.mesh import Mesh, eventually

ASK: list[Any] = [{"role": "user", "content": "Tell me about the river."}]


def usage_of(mesh: Mesh) -> dict[str, int]:
    [row] = mesh.weir_json("usage", "show", "--by", "tenant", "--tenant", "acme")["rows"]
    return row


def lost_of(mesh: Mesh) -> list[dict[str, Any]]:
    records = [each["record"] for each in mesh.weir_json("audit", "tail", "-n", "200", "--tenant", "acme")["records"]]
    return [each["request"] for each in records if each.get("request", {}).get("outcome") == "gateway_lost"]


def cut(mesh: Mesh, client: OpenAI) -> int:
    """Kill the gateway in the middle of a stream; returns how many pieces of text had come by then."""
    pieces = 0
    stream = client.chat.completions.create(
        model="weir-fast", messages=ASK, max_tokens=400, stream=True, extra_body={"ignore_eos": True}
    )
    try:
        for chunk in stream:
            pieces += bool(chunk.choices and chunk.choices[0].delta.content)
            if pieces == 10:
                killed = mesh.kill("gateway")
    except openai.APIError:
        pass
    mesh.wait_back("gateway", killed)
    return pieces


def test_what_a_killed_gateway_had_delivered_is_billed_once(mesh: Mesh) -> None:
    before = len(lost_of(mesh))
    with client_for(mesh, mesh.env["WEIR_KEY_ACME"]) as client:
        pieces = cut(mesh, client)
        eventually(lambda: len(lost_of(mesh)) == before + 1, seconds=30, what="the record of the lost stream")
        lost = lost_of(mesh)[-1]
        # A piece may hold several tokens; what had been taken by the face and not been sent is one flush at most.
        assert pieces <= lost["completion_tokens"] < 400
        assert lost["prompt_tokens"] > 0
        client.chat.completions.create(model="weir-fast", messages=ASK, max_tokens=4)
    [found] = mesh.weir_json("requests", "--id", lost["request_id"])["requests"]
    assert (found["outcome"], found["completion_tokens"]) == ("gateway_lost", lost["completion_tokens"])

    def agree() -> bool:
        return mesh.weir("usage", "reconcile", check=False).returncode == 0

    eventually(agree, seconds=40, what="the books agreeing")  # the limiter writes every few seconds
    assert usage_of(mesh)["completion_tokens"] >= lost["completion_tokens"]


def test_an_admin_of_a_tenant_asks_through_the_edge(mesh: Mesh) -> None:
    made = mesh.weir("keys", "create", "acme", "--scope", "usage.read", "--reason", "usage")
    secret = made.stdout.strip()
    url = f"{mesh.env['WEIR_EDGE_URL']}/v1/organization/{{}}?start_time={int(time.time())}&group_by="

    def page(what: str, key: str, by: str) -> Any:
        request = urllib.request.Request(url.format(what) + by, headers={"Authorization": f"Bearer {key}"})
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)

    with client_for(mesh, mesh.env["WEIR_KEY_ACME"]) as client:
        client.chat.completions.create(model="weir-fast", messages=ASK, max_tokens=4)

    def told() -> Any:  # other tests of this mesh ask other models
        results = page("usage/completions", secret, "model")["data"][0]["results"]
        return [result for result in results if result["model"].startswith("weir-fast@")]

    [result, *_] = eventually(told, seconds=30, what="today's usage")
    assert result["output_tokens"] > 0
    assert page("costs", secret, "line_item")["data"][0]["results"][0]["amount"]["currency"] == "usd"
    assert page("usage/predictions", secret, "model")["object"] == "page"
    for key in (mesh.env["WEIR_KEY_ACME"], "none"):
        with pytest.raises(urllib.error.HTTPError, match=r"40[13]"):
            page("costs", key, "line_item")


def test_an_admin_of_a_tenant_is_told_how_its_models_and_its_budget_stand(mesh: Mesh) -> None:
    for tenant, bound in (("acme", "$20"), ("globex", "$77")):
        mesh.weir("set", "budgets", tenant, f"monthly_microusd={bound}", "--create", "--reason", "status")
    made = mesh.weir("keys", "create", "acme", "--scope", "usage.read", "--reason", "status")

    def status(key: str) -> Any:
        url = f"{mesh.env['WEIR_EDGE_URL']}/v1/status"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"})
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)

    with client_for(mesh, mesh.env["WEIR_KEY_ACME"]) as client:
        client.chat.completions.create(model="weir-fast", messages=ASK, max_tokens=4)

    def known() -> Any:
        told = status(made.stdout.strip())
        assert not told["unknown"]
        [fast] = [each for each in told["models"] if each["id"] == "weir-fast"]
        [availability] = [each for each in fast["objectives"] if each["objective"] == "availability"]
        assert availability["attainment"]  # somebody was answered
        [budget] = told["budgets"]
        assert budget["spent"]["value"] > 0  # the limiter writes every few seconds
        return told

    told = eventually(known, seconds=40, what="the status")
    assert told["budgets"][0]["limit"] == {"value": 20.0, "currency": "usd"}
    assert "globex" not in json.dumps(told)
    with pytest.raises(urllib.error.HTTPError, match="403"):
        status(mesh.env["WEIR_KEY_ACME"])
