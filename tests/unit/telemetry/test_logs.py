"""Logs are JSON lines that hold no secret and no user's words."""

from __future__ import annotations

import contextlib
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from libs.telemetry import configure_logging, get_logger

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
log = get_logger("weir.test")


class Lines:
    """What a process would have written to standard error since the last reading."""

    def __init__(self) -> None:
        self.stream = io.StringIO()

    def read(self) -> list[dict[str, Any]]:
        written = self.stream.getvalue()
        self.stream.seek(0)
        self.stream.truncate()
        return [json.loads(line) for line in written.splitlines()]

    def one(self) -> dict[str, Any]:
        (line,) = self.read()
        return line


@pytest.fixture
def lines() -> Iterator[Lines]:
    made = Lines()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    with contextlib.redirect_stderr(made.stream):
        configure_logging(service="router", instance="router-0", level="info")
    yield made
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_line_says_who_when_and_what(lines: Lines) -> None:
    log.info("served", port=7, zones=["a", "b"], took=0.5)
    line = lines.one()
    assert (line["service"], line["instance"], line["level"], line["event"]) == ("router", "router-0", "info", "served")
    assert (line["logger"], line["port"], line["zones"], line["took"]) == ("weir.test", 7, ["a", "b"], 0.5)
    assert line["time"].endswith("Z")
    assert len(line["time"]) == len("2024-01-01T00:00:00.000Z")


def test_the_trace_is_named_by_its_id(lines: Lines) -> None:
    log.info("served", trace=TRACE)
    assert lines.one()["trace_id"] == TRACE[3:35]
    log.info("served")
    assert "trace_id" not in lines.one()


@pytest.mark.parametrize("field", ["prompt", "messages", "content", "text", "output", "authorization", "key", "token"])
def test_forbidden_fields_lose_their_value(lines: Lines, field: str) -> None:
    log.warning("odd", **{field: "the user's words"})
    assert lines.one()[field] == "[redacted]"


def test_also_inside_other_values(lines: Lines) -> None:
    log.info("odd", request={"model": "m", "messages": [{"role": "user", "content": "words"}]}, parts=[{"text": "x"}])
    line = lines.one()
    assert line["request"] == {"model": "m", "messages": "[redacted]"}
    assert line["parts"] == [{"text": "[redacted]"}]


def test_levels(lines: Lines) -> None:
    log.debug("quiet")
    log.info("a")
    log.warning("b")
    log.error("c")
    assert [line["level"] for line in lines.read()] == ["info", "warning", "error"]


def test_foreign_loggers_are_json_too(lines: Lines) -> None:
    logging.getLogger("grpc").warning("connection %s", "lost")
    line = lines.one()
    assert (line["logger"], line["event"]) == ("grpc", "connection lost")


def test_an_exception_is_one_line(lines: Lines) -> None:
    try:
        raise ValueError("why\nover two lines")
    except ValueError as error:
        log.error("failed", exc_info=error)
    line = lines.one()
    assert "Traceback" in line["exception"]
    assert "test_logs.py" in line["exception"]


def test_fields_cannot_forge_the_lines_own(lines: Lines) -> None:
    log.info("served", service="gateway", level="error", time="never")
    line = lines.one()
    assert (line["service"], line["level"]) == ("router", "info")
    assert line["time"] != "never"


class Odd:
    """No JSON of its own."""

    def __str__(self) -> str:
        return "an odd value"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (Odd(), "an odd value"),
        (float("nan"), None),
        ({1: "x"}, {"1": "x"}),
        ("a\ud800b", "a\\ud800b"),
        (10**30, 10**30),
        ({(1, 2): 3}, {"(1, 2)": 3}),
    ],
)
def test_whatever_is_logged_a_line_comes_out(lines: Lines, value: object, shown: object) -> None:
    log.info("odd", value=value)
    assert lines.one()["value"] == shown
