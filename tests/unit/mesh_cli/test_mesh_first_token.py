"""The first completion, against a small HTTP server that speaks server-sent events."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from services.cli.mesh.first_token import Answer, CompletionError, NotYet, stream_completion


def event(**delta: object) -> bytes:
    choice = {"index": 0, "delta": {k: v for k, v in delta.items() if k != "finish"}, "finish_reason": None}
    choice["finish_reason"] = delta.get("finish")
    return b"data: " + json.dumps({"model": "weir-fast", "choices": [choice]}).encode() + b"\n\n"


@contextmanager
def serving(status: int, body: bytes, **headers: str) -> Iterator[tuple[int, list[dict]]]:
    requests: list[dict] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["content-length"]))
            requests.append({"body": json.loads(content), "key": self.headers["authorization"], "path": self.path})
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        yield server.server_port, requests
        thread.join()


def ask(port: int, pieces: list[str]) -> Answer:
    return stream_completion(
        "127.0.0.1", port, key="wk_a", model="weir-fast", prompt="Hello", max_tokens=9, on_text=pieces.append
    )


def test_pieces_arrive_one_by_one_and_the_answer_says_what_served_it() -> None:
    body = b": heartbeat\n\n" + event(role="assistant") + event(content="A ") + event(content="weir.")
    body += event(finish="stop") + b"data: [DONE]\n\n"
    pieces: list[str] = []
    headers = {"x_weir_model_version": "weir-fast@1", "x_weir_simulated": "true", "x_request_id": "r1"}
    with serving(200, body, **headers) as (port, requests):
        answer = ask(port, pieces)
    assert pieces == ["A ", "weir."]
    assert (answer.text, answer.finish_reason) == ("A weir.", "stop")
    assert (answer.model, answer.simulated, answer.request_id) == ("weir-fast@1", True, "r1")
    assert requests[0]["key"] == "Bearer wk_a"
    assert requests[0]["path"] == "/v1/chat/completions"
    assert requests[0]["body"]["stream"] is True


@pytest.mark.parametrize(
    ("status", "kind", "text"),
    [(503, NotYet, "HTTP 503: not ready"), (401, CompletionError, "HTTP 401: not ready")],
)
def test_errors_carry_status_and_text(status: int, kind: type[Exception], text: str) -> None:
    with (
        serving(status, json.dumps({"error": {"message": "not ready"}}).encode()) as (port, _),
        pytest.raises(kind, match=text),
    ):
        ask(port, [])


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (event(content="A"), r"without \[DONE\]"),
        (event(finish="stop") + b"data: [DONE]\n\n", "no text came"),
        (event(content="A", finish="content_filter") + b"data: [DONE]\n\n", "content_filter"),
        (b'data: {"error": {"message": "worker lost"}}\n\n', "worker lost"),
    ],
)
def test_a_stream_that_is_not_a_whole_answer_is_an_error(body: bytes, text: str) -> None:
    with serving(200, body) as (port, _), pytest.raises(CompletionError, match=text):
        ask(port, [])


def test_nobody_listening_is_an_error() -> None:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        port = server.server_port
    with pytest.raises(CompletionError, match="ConnectionRefusedError"):
        ask(port, [])
