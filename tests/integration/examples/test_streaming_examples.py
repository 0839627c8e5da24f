"""examples/streaming, in Python and in JavaScript, against a scripted server: streams that break are gone on with."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.mesh import ROOT

FOLDER = ROOT / "examples" / "streaming"
NODE = shutil.which("node")
READERS = {"python": [sys.executable, str(FOLDER / "weir_sse.py")], "node": [str(NODE), str(FOLDER / "weir-sse.mjs")]}
HEAD = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"
Answer = Callable[[Any], None]


def event(text: str, event_id: str | None = None, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    told = b"" if event_id is None else f"id: {event_id}\n".encode()
    return told + b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def error(code: str) -> bytes:
    return b"data: " + json.dumps({"error": {"code": code, "message": "so it is"}}).encode() + b"\n\n" + DONE


def breaks(*parts: bytes) -> Answer:
    """A stream that is cut behind these parts, in the middle of a chunk."""

    def answer(file: Any) -> None:
        file.write(HEAD)
        for part in parts:
            file.write(b"%x\r\n%b\r\n" % (len(part), part))
        file.write(b"40\r\ndata: {")

    return answer


def ends(*parts: bytes) -> Answer:
    def answer(file: Any) -> None:
        file.write(HEAD)
        for part in (*parts, b""):
            file.write(b"%x\r\n%b\r\n" % (len(part), part))

    return answer


def refuses(status: int, code: str) -> Answer:
    body = json.dumps({"error": {"code": code, "message": "no"}}).encode()
    return lambda file: file.write(
        b"HTTP/1.1 %d No\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)
    )


class Scripted(socketserver.ThreadingTCPServer):
    """Answers each request with the next script, the last one again and again; keeps what was asked."""

    daemon_threads = True

    def __init__(self, *scripts: Answer) -> None:
        self.scripts = list(scripts)
        self.asked: list[tuple[dict[str, str], bytes]] = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1/chat/completions"


class Handler(socketserver.StreamRequestHandler):
    server: Scripted

    def handle(self) -> None:
        self.rfile.readline()
        headers = {}
        while (line := self.rfile.readline().decode().strip()) != "":
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        self.server.asked.append((headers, self.rfile.read(int(headers["content-length"]))))
        scripts = self.server.scripts
        (scripts.pop(0) if len(scripts) > 1 else scripts[0])(self.wfile)


@contextlib.contextmanager
def serving(*scripts: Answer) -> Iterator[Scripted]:
    with Scripted(*scripts) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(params=list(READERS))
def reader(request: pytest.FixtureRequest) -> list[str]:
    if request.param == "node" and NODE is None:
        pytest.skip("there is no node here")
    return READERS[request.param]


def run(reader: list[str], server: Scripted) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*reader, server.url],
        input=json.dumps({"model": "weir-fast", "messages": []}),
        env=os.environ | {"WEIR_KEY": "wk_test"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_stream_that_breaks_twice_is_read_once(reader: list[str]) -> None:
    scripts = [
        breaks(event("The", "1"), b": heartbeat\n\n", event(" wei", "2")),
        refuses(503, "dependency_unavailable"),
        breaks(event("r", "3")),
        ends(event(" ⟶ holds.", "4"), DONE),
    ]
    with serving(*scripts) as server:
        done = run(reader, server)
    assert (done.stdout, done.returncode) == ("The weir ⟶ holds.", 0), done.stderr
    assert [headers.get("last-event-id") for headers, _ in server.asked] == [None, "2", "2", "3"]
    assert len({content for _, content in server.asked}) == 1
    assert len({headers["idempotency-key"] for headers, _ in server.asked}) == 1
    assert json.loads(server.asked[0][1])["stream"] is True


def test_an_error_that_another_gateway_mends_is_no_end(reader: list[str]) -> None:
    with serving(
        ends(event("a", "1"), event("", "1", "error"), error("worker_lost")), ends(event("b", "2"), DONE)
    ) as server:
        done = run(reader, server)
    assert (done.stdout, done.returncode) == ("ab", 0), done.stderr
    assert [headers.get("last-event-id") for headers, _ in server.asked] == [None, "1"]


@pytest.mark.parametrize("code", ["cursor_gone", "content_filter", "quota_tokens"])
def test_an_error_that_is_the_end_is_told(reader: list[str], code: str) -> None:
    with serving(ends(event("a", "1"), error(code))) as server:
        done = run(reader, server)
    assert (done.stdout, done.returncode, len(server.asked)) == ("a", 1, 1)
    assert done.stderr.startswith(f"{code}: so it is")


@pytest.mark.parametrize("last", ["", None])
def test_what_cannot_be_gone_on_with_exactly_is_not_begun_anew(reader: list[str], last: str | None) -> None:
    first = event("a", "1" if last == "" else None)
    with serving(breaks(first, event("b", last)), ends(event("ab", "1"), DONE)) as server:
        done = run(reader, server)
    assert (done.stdout, done.returncode, len(server.asked)) == ("ab", 1, 1)


def test_before_its_first_event_it_is_sent_again_under_the_same_key(reader: list[str]) -> None:
    with serving(breaks(), ends(event("ab", "1"), DONE)) as server:
        done = run(reader, server)
    assert (done.stdout, done.returncode) == ("ab", 0), done.stderr
    assert len({headers["idempotency-key"] for headers, _ in server.asked}) == 1


def test_a_refusal_is_told_at_once(reader: list[str]) -> None:
    with serving(refuses(400, "invalid_request")) as server:
        done = run(reader, server)
    assert (done.returncode, len(server.asked)) == (1, 1)
    assert "invalid_request" in done.stderr


def test_nobody_is_asked_for_ever(reader: list[str]) -> None:
    with serving(refuses(503, "dependency_unavailable")) as server:
        done = run(reader, server)
    assert (done.returncode, len(server.asked)) == (1, 10)
