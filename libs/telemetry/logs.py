"""Structured logs: one JSON object per line on standard error.

Field names that could hold a secret or a user's words are refused at the door: their values are replaced, whatever the
caller meant to log. All other texts, exceptions' included, are scanned for the shapes of secrets and personal data.
"""

from __future__ import annotations

import logging
import sys
import time
import traceback
from typing import Any

import msgspec

from libs.telemetry.scrub import scrub, scrub_value

_REDACTED = "[redacted]"
_FORBIDDEN = frozenset(
    {"authorization", "api_key", "content", "delta", "key", "messages", "output", "password", "pepper", "prompt"}
    | {"secret", "text", "texts", "token", "tokens_text"}
)
_encoder = msgspec.json.Encoder(enc_hook=str)


class _JsonFormatter(logging.Formatter):
    def __init__(self, service: str, instance: str) -> None:
        super().__init__()
        self._base = {"service": service, "instance": instance}

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            **self._base,
            "logger": record.name,
            "event": scrub(record.getMessage()),
        }
        for name, value in getattr(record, "fields", {}).items():
            # The line's own members cannot be forged by a field of the same name.
            line[f"{name}_" if name in line else name] = _shown(name, value)
        if record.exc_info:
            line["exception"] = scrub(self.formatException(record.exc_info))
        try:
            return _encoder.encode(line).decode()
        except (TypeError, UnicodeEncodeError):  # a value that JSON cannot hold
            return _encoder.encode({name: _as_text(value) for name, value in line.items()}).decode()


def _shown(name: object, value: Any) -> Any:
    """The value with everything forbidden in it replaced."""
    return _REDACTED if name in _FORBIDDEN else scrub_value(_without(value))


def _without(value: Any) -> Any:
    """The value as JSON knows it, without what stands under forbidden names."""
    if isinstance(value, dict):
        return {key: _REDACTED if key in _FORBIDDEN else _without(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without(inner) for inner in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else _as_text(value)


def _as_text(value: object) -> str:
    """Any value as text that is valid UTF-8."""
    return str(value).encode("utf-8", "backslashreplace").decode()


def configure_logging(*, service: str, instance: str, level: str = "info") -> None:
    """Send every log record of this process to standard error as JSON. Call once, at start."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter(service, instance))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


class Logger:
    """Logs events with fields. `trace`, where given, is a traceparent and becomes `trace_id`."""

    __slots__ = ("_logger",)

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, event: str, *, trace: str = "", **fields: object) -> None:
        """Something a developer follows."""
        self._log(logging.DEBUG, event, trace, fields)

    def info(self, event: str, *, trace: str = "", **fields: object) -> None:
        """Something an operator may want to know."""
        self._log(logging.INFO, event, trace, fields)

    def warning(self, event: str, *, trace: str = "", **fields: object) -> None:
        """Something degraded."""
        self._log(logging.WARNING, event, trace, fields)

    def error(self, event: str, *, trace: str = "", exc_info: bool | BaseException = False, **fields: object) -> None:
        """Something broken."""
        self._log(logging.ERROR, event, trace, fields, exc_info)

    def _log(
        self, level: int, event: str, trace: str, fields: dict[str, object], exc_info: bool | BaseException = False
    ) -> None:
        if not self._logger.isEnabledFor(level):
            return
        if trace:
            fields["trace_id"] = trace[3:35]
        self._logger.log(level, event, extra={"fields": fields}, exc_info=exc_info or None)


def get_logger(name: str) -> Logger:
    """The logger of a module."""
    return Logger(name)


def place_of(error: BaseException) -> str:
    """Where a fault happened, line by line; its text may quote a user and stays out of the log."""
    return "".join(traceback.format_tb(error.__traceback__))
