"""What an operator relies on: audit, traces, status, and figures that tell the truth about vanished clients."""

from __future__ import annotations

import json
import shutil
import socket
import urllib.request
from pathlib import Path
from typing import Any

from openai import AuthenticationError, OpenAI

from tests.e2e.conftest import client_for
from tests.support.mesh import Mesh, eventually

ASK = [{"role": "user", "content": "What is a weir?"}]


def gauge(mesh: Mesh, service: str, name: str) -> float:
    """The sum of a metric over its labels."""
    address = mesh.file()["services"][service]["metrics"]
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((name + " ", name + "{")))


def record_of(mesh: Mesh, request_id: str) -> dict[str, Any] | None:
    for entry in mesh.weir_json("audit", "tail", "--limit", "200")["records"]:
        request = entry["record"].get("request", {})
        if request.get("request_id") == request_id:
            return request
    return None


def test_usage_in_the_audit_log_equals_what_was_delivered(mesh: Mesh, acme: OpenAI) -> None:
    raw = acme.chat.completions.with_raw_response.create(model="weir-fast", messages=ASK, max_tokens=12)
    usage = raw.parse().usage
    assert usage is not None
    record = eventually(lambda: record_of(mesh, raw.headers["x-request-id"]), what="the audit record")
    assert (record["prompt_tokens"], record["completion_tokens"]) == (usage.prompt_tokens, usage.completion_tokens)
    assert record["tenant"] == "acme"
    assert record["outcome"] in ("stop", "length")


def test_the_audit_log_holds_no_words(mesh: Mesh, acme: OpenAI) -> None:
    marker = "xylophone quixotic zephyr"
    raw = acme.chat.completions.with_raw_response.create(
        model="weir-fast", messages=[{"role": "user", "content": marker}], max_tokens=8
    )
    reply = raw.parse().choices[0].message.content or ""
    eventually(lambda: record_of(mesh, raw.headers["x-request-id"]), what="the audit record")
    secret = mesh.env["WEIR_KEY_ACME"].rsplit("_", 1)[1]
    for path in [*(mesh.state / "data" / "audit").rglob("*.log"), *mesh.state.rglob("logs/*")]:
        content = path.read_text(errors="replace")
        assert marker not in content, path
        assert secret not in content, path
        assert len(reply) < 12 or reply not in content, path


def test_verification_passes(mesh: Mesh) -> None:
    verdict = mesh.weir_json("audit", "verify")
    assert verdict["ok"], verdict
    assert verdict["records"] > 0


def test_tampering_is_found(mesh: Mesh, tmp_path: Path) -> None:
    source = mesh.state / "data" / "audit"

    def verdict_after(name: str, change: Any) -> bool:
        copy = tmp_path / name
        shutil.copytree(source, copy)
        change(max((copy / "log").glob("*.log"), key=lambda path: path.stat().st_size))
        done = mesh.weir("audit", "verify", "--directory", str(copy), "--json", check=False)
        return bool(json.loads(done.stdout)["ok"]) and done.returncode == 0

    def flip(log: Path) -> None:
        data = bytearray(log.read_bytes())
        data[len(data) // 2] ^= 1
        log.write_bytes(bytes(data))

    def drop_tail(log: Path) -> None:
        log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-1]))

    def swap(log: Path) -> None:
        lines = log.read_bytes().splitlines(keepends=True)
        lines[0], lines[1] = lines[1], lines[0]
        log.write_bytes(b"".join(lines))

    assert verdict_after("untouched", lambda log: None)
    assert not verdict_after("flipped", flip)
    assert not verdict_after("dropped", drop_tail)
    assert not verdict_after("swapped", swap)


def test_one_request_is_one_tree_over_every_hop(mesh: Mesh) -> None:
    """The first of a tenant: of those that follow, nobody asks what has just been answered."""
    mesh.weir("set", "tenants", "newcomer", "plan=paid", "--create")
    key = mesh.weir_json("keys", "create", "newcomer", "--scope", "inference")["secret"]

    def first() -> Any:
        try:
            return client.chat.completions.with_raw_response.create(model="weir-fast", messages=ASK, max_tokens=4)
        except AuthenticationError:
            return None  # the key has not arrived everywhere

    with client_for(mesh, key) as client:
        raw = eventually(first, what="the new key")
    record = eventually(lambda: record_of(mesh, raw.headers["x-request-id"]), what="the audit record")
    trace_id = record["trace_id"]
    hops = {"gateway", "ratelimit", "admission", "safety", "worker", "edge-auth", "audit"}

    def tree() -> Any:
        done = mesh.weir("trace", trace_id, "--json", check=False)
        if done.returncode != 0:
            return None
        found = json.loads(done.stdout)
        return found if hops <= {span["service"] for span in found["spans"]} else None

    found = eventually(tree, what="every hop's span")
    spans = {span["span_id"]: span for span in found["spans"]}
    gateway = next(s for s in spans.values() if s["service"] == "gateway" and s["name"].startswith("chat "))

    def ancestors(span: dict[str, Any]) -> set[str]:
        seen: set[str] = set()
        while span["parent_id"] in spans:
            span = spans[span["parent_id"]]
            seen.add(span["span_id"])
        return seen

    for service in ("ratelimit", "admission", "safety", "worker", "audit"):
        inside = [s for s in spans.values() if s["service"] == service and gateway["span_id"] in ancestors(s)]
        assert inside, f"no span of {service} below the gateway's"
    assert all(span["trace_id"] == trace_id for span in spans.values())


def test_a_vanished_client_frees_its_slot_and_is_billed_for_what_it_got(mesh: Mesh) -> None:
    host, port = mesh.env["WEIR_EDGE_URL"].removeprefix("http://").split(":")
    body = json.dumps(
        {"model": "weir-quality", "messages": ASK, "max_tokens": 900, "stream": True, "ignore_eos": True}
    ).encode()
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            + f"authorization: Bearer {mesh.env['WEIR_KEY_ACME']}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        received = b""
        while received.count(b"data: {") < 3:
            received += connection.recv(4096)
    request_id = next(
        line.split(b": ")[1].decode() for line in received.split(b"\r\n") if line.lower().startswith(b"x-request-id")
    )
    record = eventually(lambda: record_of(mesh, request_id), what="the audit record of the vanished request")
    assert record["outcome"] == "cancelled"
    assert 3 <= record["completion_tokens"] < 900
    for worker in ("worker-a", "worker-b"):
        eventually(lambda w=worker: gauge(mesh, w, "weir_worker_num_requests_running") == 0, what=f"{worker} idle")


def test_a_slow_reader_costs_bounded_memory_and_gets_everything(mesh: Mesh) -> None:
    host, port = mesh.env["WEIR_EDGE_URL"].removeprefix("http://").split(":")
    body = json.dumps(
        {"model": "weir-fast", "messages": ASK, "max_tokens": 600, "stream": True, "ignore_eos": True}
    ).encode()
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    connection.settimeout(60)
    connection.connect((host, int(port)))
    with connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            + f"authorization: Bearer {mesh.env['WEIR_KEY_ACME']}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        eventually(
            lambda: (
                gauge(mesh, "gateway", "weir_gateway_active_generations") == 0
                or gauge(mesh, "worker-a", "weir_worker_num_requests_running")
                + gauge(mesh, "worker-b", "weir_worker_num_requests_running")
                == 0
            ),
            what="the engine finishing without its reader",
        )
        received = b""
        while b"[DONE]" not in received:
            received += connection.recv(1024)
    assert b'"finish_reason":"length"' in received


def test_status_lists_every_process(mesh: Mesh) -> None:
    rows = mesh.weir_json("status")["processes"]
    assert {row["state"] for row in rows} == {"ready"}
    assert {"etcd", "envoy", "gateway", "worker-a", "worker-b", "audit"} <= {row["name"] for row in rows}


def test_xds_is_acknowledged(mesh: Mesh) -> None:
    clients = mesh.weir_json("xds", "status")
    assert json.dumps(clients).count("envoy") >= 1
    assert "NACK" not in json.dumps(clients)


def test_the_command_line_shows_the_mesh(mesh: Mesh) -> None:
    assert "weir-fast@1" in mesh.weir("get", "models").stdout
    assert {each["metadata"]["name"] for each in mesh.weir_json("get", "tenants")["resources"]} >= {
        "acme",
        "globex",
        "tiny",
    }
    assert len(mesh.weir_json("workers")["workers"]) == 2
    assert mesh.weir("complete", "What is a weir?").stdout.strip()
    changed = mesh.weir("set", "limits", "globex/*", "requests_per_minute=50000", check=False)
    assert changed.returncode == 0, changed.stderr
    missing = mesh.weir("keys", "revoke", "no-such-key", check=False)
    assert missing.returncode != 0
    assert missing.stderr.strip()
