"""What people see: log lines, tables, the environment file."""

import json
import shlex
import threading
from pathlib import Path

import msgspec
import pytest

from libs.supervisor.reading import follow, last_lines
from libs.traces import Span
from services.cli.mesh import report, traces
from services.cli.mesh.logview import readable
from services.cli.mesh.plan import build
from services.cli.mesh.site import ROOT, load_topology
from services.cli.mesh.sites import Laptop
from services.cli.mesh.units import Plan

LINE = json.dumps(
    {
        "time": "2026-01-02T03:04:05.678Z",
        "level": "warning",
        "service": "router",
        "instance": "router",
        "logger": "x",
        "event": "breaker_open",
        "zone": "zone-a",
        "failures": 7,
    }
)


def test_json_lines_become_readable_and_others_stay() -> None:
    assert readable(LINE, coloured=False) == "03:04:05.678 warning breaker_open zone=zone-a failures=7"
    assert readable(f"router       | {LINE}", coloured=False).startswith("router       | 03:04:05.678 warning")
    assert readable("plain text", coloured=False) == "plain text"
    assert readable('{"broken": ', coloured=False) == '{"broken": '
    assert readable("router | Traceback (most recent call last):", coloured=False).endswith("last):")
    assert "\x1b[33m" in readable(LINE, coloured=True)


def test_an_exception_follows_its_line() -> None:
    line = json.dumps({"event": "failed", "level": "error", "exception": "Traceback\nboom"})
    assert readable(line, coloured=False).splitlines()[1:] == ["Traceback", "boom"]


def test_the_list_of_traces_says_when_who_what_and_how_long(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    about = {"weir.tenant": "acme", "gen_ai.response.model": "weir-fast@1"}
    for number, error in enumerate(("", "QUOTA_TOKENS")):
        span = Span(
            trace_id=f"{number:032x}",
            span_id="a",
            name="chat weir-fast",
            start_ns=3_600 * 10**9,
            end_ns=3_600 * 10**9 + 12_300_000,
            error=error,
            attributes=about,
        )
        (tmp_path / f"{number:032x}.jsonl").write_bytes(msgspec.json.encode(span) + b"\n")
    traces.listed(tmp_path, traces.Wanted(), output="table")
    shown = capsys.readouterr().out
    for said in ("01:00:00", "acme", "weir-fast@1", "12.3 ms", "QUOTA_TOKENS", "ok", f"{1:032x}", "`trace_id`"):
        assert said in shown, said
    assert max(map(len, shown.splitlines())) <= 100
    traces.listed(tmp_path, traces.Wanted(count=1), output="json")
    [row] = json.loads(capsys.readouterr().out)
    assert (row["tenant"], row["model"]) == ("acme", "weir-fast@1")


def test_last_lines_and_following_over_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("one\ntwo\nthree\n")
    assert last_lines(path, 2) == ["two", "three"]
    lines = follow(path, interval=0.001)
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.extend(next(lines) for _ in range(3)))
    first = next_after(path, lines, "four\n")
    reader.start()
    with open(path, "a") as file:
        file.write("five\n")
    path.replace(tmp_path / "a.log.1")
    path.write_text("six\nseven\n")
    reader.join(20)
    assert (first, got) == ("four", ["five", "six", "seven"])
    lines.close()


def next_after(path: Path, lines: object, text: str) -> str:
    """The next followed line when `text` is appended once the follower has opened the file."""
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(next(lines)))  # type: ignore[call-overload]
    reader.start()
    # The follower reads from the end that it finds; lines are appended until it has found one.
    while reader.is_alive():
        with open(path, "a") as file:
            file.write(text)
        reader.join(0.01)
    return got[0]


def plan(site: Laptop) -> Plan:
    return build(load_topology(ROOT), site, lambda **_: "")


def test_the_environment_file_can_be_sourced_and_names_everything() -> None:
    site = Laptop(
        root=ROOT, state=Path("/state dir"), port_base=19000, interpreter="python", etcd="etcd", envoy="envoy"
    )
    keys = {"acme": "wk_a", "globex": "wk_g", "tiny": "wk_t", "admin": "wk_m"}
    variables = report.environment(site, plan(site), keys)
    assert variables["WEIR_EDGE_URL"] == "http://127.0.0.1:19000"
    assert variables["WEIR_EDGE_TLS_URL"] == "https://localhost:19001"
    assert variables["WEIR_ADMIN_URL"] == "https://localhost:19003"
    assert variables["WEIR_CA"] == "/state dir/pki/ca.pem"
    assert variables["GRPC_XDS_BOOTSTRAP"] == "/state dir/config/demo-client.xds.json"
    assert (variables["WEIR_KEY_TINY"], variables["WEIR_ADMIN_KEY"]) == ("wk_t", "wk_m")
    words = shlex.split(report.shell(variables))
    assert "WEIR_CA=/state dir/pki/ca.pem" in words
    text = report.summary(site, variables, model="weir-fast", profile="demo")
    assert all(word in text for word in ("curl -N", "openai.OpenAI", "xds:///gateway", "make down", "wk_a"))


def test_the_mesh_file_has_an_address_and_a_pid_for_every_process() -> None:
    site = Laptop(root=ROOT, state=Path("/state"), port_base=19000, interpreter="python", etcd="etcd", envoy="envoy")
    made = plan(site)
    status = {"pid": 7, "processes": [{"name": name, "pid": 100} for name in made.addresses]}
    content = json.loads(report.mesh_file(site, made, status, "demo"))
    assert {entry["pid"] for entry in content["services"].values()} == {100}
    assert content["services"]["gateway"]["address"] == "127.0.0.1:19030"
    assert content["edge_url"] == "https://localhost:19001"
    assert set(content["tls"]) == {"ca", "cert", "key"}


def test_the_table_is_aligned_and_durations_are_short() -> None:
    row = {"name": "gateway", "state": "ready", "pid": 12, "restarts": 0, "uptime_s": 3725.0, "address": "h:1"}
    lines = report.table([row, {**row, "name": "a", "pid": None}]).splitlines()
    assert len({line.index(word) for line, word in zip(lines, ("STATE", "ready", "ready"), strict=True)}) == 1
    assert "1h02m" in lines[1]
    assert [report.duration(seconds) for seconds in (5.9, 65, 3599)] == ["5s", "1m05s", "59m59s"]
