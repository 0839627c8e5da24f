"""Settings come from one file and the environment; a fault names its source and its key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from libs.config import ConfigError, ServiceSettings, TlsFiles, load


class Inner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A nested part."""

    depth: int = 1


class Settings(ServiceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A service's own."""

    batch: int = 8
    ratio: float = 0.5
    strict: bool = False
    inner: Inner = Inner()


BASE: dict[str, Any] = {"service": "router", "instance": "router-0"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "router.json"


def read(file: Path, environ: dict[str, str] | None = None, **values: Any) -> Settings:
    file.write_text(json.dumps({**BASE, **values}))
    return load(Settings, ["--config", str(file)], environ or {})


def fault(file: Path, environ: dict[str, str] | None = None, **values: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        read(file, environ, **values)
    return str(caught.value)


def test_a_file_fills_the_fields(file: Path) -> None:
    settings = read(file, port=7, etcd=["a:1", "b:2"], inner={"depth": 3}, tls={"ca": "c", "cert": "d", "key": "e"})
    assert (settings.service, settings.port, settings.etcd, settings.batch) == ("router", 7, ("a:1", "b:2"), 8)
    assert settings.inner.depth == 3
    assert settings.tls == TlsFiles("c", "d", "e")


@pytest.mark.parametrize("told", [{"host": "0.0.0.0"}, {"host": "::"}, {"host": "gateway-0"}, {"advertise": "here"}])
def test_f1_who_registers_says_an_ip(file: Path, told: dict[str, str]) -> None:
    assert "advertise" in fault(file, etcd=["a:1"], **told)
    assert read(file, {"WEIR_ADVERTISE": "10.1.2.3"}, etcd=["a:1"], **told).advertised == "10.1.2.3"


def test_what_is_listened_on_is_registered_unless_told_otherwise(file: Path) -> None:
    assert read(file, etcd=["a:1"], host="10.0.0.1").advertised == "10.0.0.1"


def test_settings_do_not_change(file: Path) -> None:
    with pytest.raises(AttributeError):
        read(file).port = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"bacth": 1}, "`bacth`"),
        ({"batch": "eight"}, "$.batch"),
        ({"inner": {"depth": None}}, "$.inner.depth"),
        ({"inner": {"dpeth": 1}}, "`dpeth`"),
        ({"etcd": ["a:1", 2]}, "$.etcd[1]"),
        ({"tls": {"ca": "x"}}, "$.tls"),
        ({"log_level": "loud"}, "log_level"),
        ({"port": 70_000}, "port"),
        ({"port": -1}, "port"),
        ({"metrics_port": 65_536}, "port"),
        ({"trace_sample_ratio": 1.5}, "trace_sample_ratio"),
        ({"drain_seconds": -1}, "drain_seconds"),
    ],
)
def test_a_fault_names_the_file_and_the_key(file: Path, values: dict[str, Any], named: str) -> None:
    message = fault(file, **values)
    assert str(file) in message
    assert named in message


def test_a_missing_field_is_named(file: Path) -> None:
    file.write_text("{}")
    with pytest.raises(ConfigError, match="`service`"):
        load(Settings, ["--config", str(file)], {})


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"service": "\xff"}', b"\xff\xfe"])
def test_a_file_that_is_no_object_is_named(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"router\.json"):
        load(Settings, ["--config", str(file)], {})


def test_a_missing_file_is_named(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"router\.json"):
        load(Settings, ["--config", str(file)], {})


def test_the_environment_wins_over_the_file(file: Path) -> None:
    environ = {"WEIR_PORT": "9", "WEIR_RATIO": "0.25", "WEIR_STRICT": "true", "WEIR_HOST": "::1", "OTHER": "x"}
    settings = read(file, environ, port=1, host="a")
    assert (settings.port, settings.ratio, settings.strict, settings.host) == (9, 0.25, True, "::1")


def test_the_environment_may_stand_alone() -> None:
    settings = load(Settings, [], {"WEIR_SERVICE": "router", "WEIR_INSTANCE": "router-1"})
    assert settings.instance == "router-1"


def test_a_bad_variable_is_named(file: Path) -> None:
    assert "WEIR_PORT" in fault(file, {"WEIR_PORT": "http"})
    assert "WEIR_STRICT" in fault(file, {"WEIR_STRICT": "perhaps"})
    assert "port" in fault(file, {"WEIR_PORT": "99999"})


def test_the_meshs_own_variables_are_left_alone(file: Path) -> None:
    """WEIR_STATE_DIR moves a whole mesh; the service's folder is what its file says. Structures come from files."""
    environ = {"WEIR_STATE_DIR": "/elsewhere", "WEIR_ETCD": "x:1", "WEIR_TLS": "x", "WEIR_INNER": "x"}
    settings = read(file, environ, state_dir="/here")
    assert (settings.state_dir, settings.etcd, settings.tls) == ("/here", (), None)


def test_a_flag_that_does_not_exist_ends_the_process(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load(Settings, ["--confg", "x"], {})
    assert caught.value.code == 2
    assert "--confg" in capsys.readouterr().err
