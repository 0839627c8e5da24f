"""Settings come from one file and the environment; a fault names its source and its key."""

from __future__ import annotations

import errno
import json
import re
import socket
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

from libs.config import ConfigError, ServiceSettings, TlsFiles, load
from libs.config.addresses import own_host


class Inner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A nested part."""

    depth: int = 1


class Settings(ServiceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A service's own."""

    batch: int = 8
    ratio: float = 0.5
    strict: bool = False
    inner: Inner = Inner()
    limit: Annotated[int, msgspec.Meta(ge=0)] | None = None
    names: dict[str, str] = msgspec.field(default_factory=dict)
    numbers: list[int] = msgspec.field(default_factory=list)


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


@pytest.mark.parametrize(
    ("name", "raw", "path", "value"),
    [
        ("etcd", "etcd-0:2379, etcd-1:2379", "etcd", ("etcd-0:2379", "etcd-1:2379")),
        ("etcd", '["a:1"]', "etcd", ("a:1",)),
        ("etcd", "", "etcd", ()),
        ("state_dir", "/there", "state_dir", "/there"),
        ("inner.depth", "7", "inner.depth", 7),
        ("inner", '{"depth": 8}', "inner.depth", 8),
        ("tls", '{"ca": "x", "cert": "y", "key": "z"}', "tls.cert", "y"),
        ("tls.ca", "/run/ca", "tls.ca", "/run/ca"),
        ("limit", "5", "limit", 5),
        ("limit", "null", "limit", None),
        ("names", '{"a": "b"}', "names", {"a": "b"}),
        ("numbers", "1,2", "numbers", [1, 2]),
        ("strict", "true", "strict", True),
        ("log_level", "debug", "log_level", "debug"),
    ],
)
def test_every_field_is_said_alike_by_variables_and_by_flags(
    file: Path, name: str, raw: str, path: str, value: object
) -> None:
    tls = {"ca": "c", "cert": "d", "key": "e"}
    variable = f"WEIR_{name.replace('.', '__').upper()}"
    for environ, flags in (({variable: raw}, []), ({}, [f"--{name}", raw]), ({}, [f"--{name}={raw}"])):
        file.write_text(json.dumps({**BASE, "tls": tls, "host": "10.0.0.1", "limit": 9}))
        found: Any = load(Settings, ["--config", str(file), *flags], environ)
        for part in path.split("."):
            found = getattr(found, part)
        assert found == value


def test_a_flag_wins_over_a_variable_and_a_part_over_its_whole(file: Path) -> None:
    environ = {"WEIR_PORT": "2", "WEIR_INNER": '{"depth": 2}', "WEIR_INNER__DEPTH": "3"}
    file.write_text(json.dumps({**BASE, "port": 1}))
    settings = load(Settings, ["--config", str(file), "--port", "4"], environ)
    assert (settings.port, settings.inner.depth) == (4, 3)


def test_a_structure_may_be_said_in_parts_alone() -> None:
    environ = {f"WEIR_{name}": f"/{name}" for name in ("SERVICE", "INSTANCE", "TLS__CA", "TLS__CERT", "TLS__KEY")}
    assert load(Settings, [], environ).tls == TlsFiles("/TLS__CA", "/TLS__CERT", "/TLS__KEY")


def test_a_structure_in_parts_that_lacks_one_is_refused(file: Path) -> None:
    assert "`cert`" in fault(file, {"WEIR_TLS__CA": "x"})


@pytest.mark.parametrize(
    ("environ", "flags", "named"),
    [
        ({"WEIR_INNER__DPETH": "1"}, [], "WEIR_INNER__DPETH"),
        ({"WEIR_INNER__DEPTH": "deep"}, [], "WEIR_INNER__DEPTH"),
        ({"WEIR_TLS": "x"}, [], "WEIR_TLS"),
        ({"WEIR_NUMBERS": "1,two"}, [], "WEIR_NUMBERS"),
        ({}, ["--port", "http"], "--port"),
        ({}, ["--confg", "x"], "--confg"),
        ({}, ["--por", "1"], "--por"),
        ({}, ["--port"], "--port"),
    ],
)
def test_what_is_said_wrongly_is_named(file: Path, environ: dict[str, str], flags: list[str], named: str) -> None:
    file.write_text(json.dumps(BASE))
    with pytest.raises(ConfigError, match=re.escape(named)):
        load(Settings, ["--config", str(file), *flags], environ)


def test_variables_of_no_field_are_other_peoples(file: Path) -> None:
    assert read(file, {"WEIR_PORT_BASE": "x", "WEIR_GATEWAY_SERVICE_HOST": "10.0.0.1"}).port == 0


def test_the_address_to_advertise_is_that_of_the_way_to_etcd(file: Path) -> None:
    settings = read(file, {"WEIR_ADVERTISE": "auto"}, host="0.0.0.0", etcd=["localhost:2379"])
    assert settings.advertised in ("127.0.0.1", "::1")
    nowhere = read(file, advertise="auto", host="0.0.0.0", etcd=["nowhere.invalid:1", "127.0.0.1:2379"])
    assert nowhere.advertised == "127.0.0.1"


def test_help_names_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load(Settings, ["--help"], {})
    assert caught.value.code == 0
    out = capsys.readouterr().out
    for name in ("--config", "--port", "--tls.ca", "--inner.depth", "--trace_sample_ratio"):
        assert name in out


def test_no_way_anywhere_is_an_error_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object) -> None:
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setattr(socket.socket, "connect", unreachable)
    with pytest.raises(OSError, match=re.escape("no interface leads to 127.0.0.1:1")):
        own_host(["127.0.0.1:1"])
