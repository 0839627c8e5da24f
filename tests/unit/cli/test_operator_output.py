"""What the operators' commands print, and where they find the mesh."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from weir.audit.v1 import audit_pb2
from weir.registry.v1 import registry_pb2 as pb

from libs.errors import Reason, WeirError
from libs.resources.documents import dump, load_all
from libs.resources.forms import plain
from services.cli.__main__ import COMMANDS, GROUPS, call
from services.cli.app import json_last, parameters, printable, resolve, say, summary, warn
from services.cli.commands.show import print_differences
from services.cli.config import NoMeshError, locate
from services.cli.mesh import logview
from services.cli.mesh.commands import up
from services.cli.mesh.site import ROOT
from services.cli.output import failed, paint, print_error, print_fields, print_json, print_table, write

MESH = {
    "profile": "demo",
    "services": {
        "registry": {"service": "registry", "zone": "zone-a", "address": "127.0.0.1:7", "pid": 1},
        "worker-b": {"service": "worker", "address": "127.0.0.1:9"},
        "worker-a": {"service": "worker", "address": "127.0.0.1:8"},
    },
    "edge_url": "http://127.0.0.1:18000",
    "operator": "jane",
    "tls": {"ca": "ca.pem", "cert": "jane.pem", "key": "jane.key"},
}


def test_plain_keeps_numbers_names_and_zeros() -> None:
    limits = plain(pb.Limits(tenant="acme", requests_per_minute=2**40, revision=7), unset=True)
    assert limits["requests_per_minute"] == 2**40
    assert limits["revision"] == 7
    assert limits["concurrency"] == 0
    assert set(limits) == {field.name for field in pb.Limits.DESCRIPTOR.fields}
    tenant = plain(pb.Tenant(plan=pb.PLAN_PAID, max_deadline=Duration(seconds=1, nanos=500_000_000)), unset=True)
    assert tenant["plan"] == "PLAN_PAID"
    assert tenant["max_deadline"] == 1.5
    assert plain(pb.Tenant(), unset=True)["max_deadline"] is None
    key = plain(
        pb.ApiKey(hash=b"\x01\xff", created_at=Timestamp(seconds=0, nanos=5_000_000), scopes=["a", "b"]), unset=True
    )
    assert key["hash"] == "01ff"
    assert key["created_at"] == "1970-01-01T00:00:00.005Z"
    assert key["scopes"] == ["a", "b"]
    model = plain(pb.ModelVersion(sampling_defaults=pb.SamplingDefaults(temperature=0.7)), unset=True)
    assert model["sampling_defaults"]["temperature"] == 0.7
    json.dumps(plain(audit_pb2.StoredRecord(record=audit_pb2.Record(id="x")), unset=True))
    assert plain(pb.SmallerModel(models={"b": "a", "a": "c"}), unset=True) == {"models": {"a": "c", "b": "a"}}


@pytest.mark.parametrize(
    ("given", "moved"),
    [
        (["models"], ["models"]),
        (["--json", "models", "list"], ["models", "list", "--json"]),
        (["models", "--json", "list", "--json"], ["models", "list", "--json"]),
        (["complete", "--json", "--", "--json"], ["complete", "--json", "--", "--json"]),
    ],
)
def test_json_may_stand_anywhere(given: list[str], moved: list[str]) -> None:
    assert json_last(given) == moved


def test_finds_the_mesh(tmp_path: Path) -> None:
    (tmp_path / "mesh.json").write_text(json.dumps(MESH))
    (tmp_path / "env").write_text("export WEIR_KEY_ACME='wk_a_b'\nexport WEIR_ADMIN_KEY=wk_c_d\n# no\nX=1\n")
    mesh = locate({"WEIR_STATE_DIR": str(tmp_path)})
    assert mesh.addresses("registry") == ("127.0.0.1:7",)
    assert mesh.addresses("worker") == ("127.0.0.1:8", "127.0.0.1:9")
    assert mesh.tls.cert == "jane.pem"
    said = {"WEIR_STATE_DIR": str(tmp_path), "WEIR_TLS__CERT": "/run/jane.pem", "WEIR_BLOBS": "s3://models"}
    assert locate(said).tls == mesh.tls._replace(cert="/run/jane.pem")
    assert locate(said).blobs == "s3://models"
    other = locate({"WEIR_STATE_DIR": str(tmp_path), "WEIR_OPERATOR": "joe"})
    assert (other.operator, other.tls.cert) == ("joe", str(tmp_path / "pki" / "operator.joe.pem"))
    with pytest.raises(NoMeshError, match="no name"):
        locate({"WEIR_STATE_DIR": str(tmp_path), "WEIR_OPERATOR": "../joe"})
    assert mesh.key_of("acme") == "wk_a_b"
    assert mesh.key_of("admin") == "wk_c_d"
    with pytest.raises(NoMeshError, match="no key of 'globex'"):
        mesh.key_of("globex")
    with pytest.raises(NoMeshError, match="no audit"):
        mesh.addresses("audit")


def test_says_where_no_mesh_is(tmp_path: Path) -> None:
    with pytest.raises(NoMeshError, match="weir up"):
        locate({"WEIR_STATE_DIR": str(tmp_path)})
    for broken in ("{", "[]", "{}", '{"services": 7}', json.dumps(MESH).replace("cert", "crt")):
        (tmp_path / "mesh.json").write_text(broken)
        with pytest.raises(NoMeshError, match=r"mesh\.json"):
            locate({"WEIR_STATE_DIR": str(tmp_path)})


def commands(tree: Any = COMMANDS, path: str = "weir") -> Iterator[tuple[str, Any]]:
    """Every command with its path."""
    for name, node in tree.items():
        found = resolve(node)
        if isinstance(found, Mapping):
            yield from commands(found, f"{path} {name}")
        else:
            yield f"{path} {name}", found


def test_whatever_changes_the_registry_takes_a_reason_and_can_be_tried() -> None:
    changing = {"apply", "set", "edit", "delete", "rollback", "import", "create", "revoke", "push", "sign", "gc"}
    changing |= {"trust", "expire", "distrust", "start", "promote", "advance", "pause", "resume", "abort", "freeze"}
    found = set()
    for path, command in commands():
        if path.split()[-1] in changing:
            flags = {flag for each in parameters(command) for flag in each.flags}
            assert {"--reason", "--dry-run"} <= flags, path
            found.add(path.split()[-1])
    assert found == changing


def test_every_command_says_what_it_is_for_and_can_print_json() -> None:
    texts = {"weir schema", "weir completion", "weir edit", "weir slo rules", "weir up", "weir logs", "weir render"}
    texts |= {"weir init files", "weir init seed"}
    texts |= {"weir certs rotate", "weir restart", "weir kill", "weir simulate", "weir calibrate"}
    for path, command in commands():
        assert 10 < len(summary(command)) <= 90, path
        flags = {flag for each in parameters(command) for flag in each.flags}
        assert flags & {"--json", "--output"} or path in texts, path


@pytest.mark.parametrize("path", [path for path, _ in commands()])
def test_every_help_fits(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    if path in ("weir simulate", "weir calibrate"):
        return
    assert call([*path.split()[1:], "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: {path}")
    assert max(map(len, out.splitlines())) <= 100


def test_the_help_has_every_command_under_a_heading(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line in GROUPS] == list(GROUPS)
    assert sum(map(len, GROUPS.values())) == len(COMMANDS), "a command has one place"
    assert [line.split()[0] for line in lines if line.startswith("  ")] == list(COMMANDS)


def test_the_profiles_that_there_are_are_named() -> None:
    [profile] = [each for each in parameters(up) if each.name == "profile"]
    readme = (ROOT / "deploy/README.md").read_text(encoding="utf-8")
    for path in (ROOT / "deploy/profiles").glob("*.toml"):
        assert path.stem in re.split(r"[ ,.:]+", profile.said.help), path.stem
        assert f"`{path.stem}`" in readme, path.stem


def test_groups_and_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    assert call([]) == 2
    assert call(["rollout", "--help"]) == 0
    assert "usage: weir rollout COMMAND" in capsys.readouterr().out
    assert call(["rollout", "strat"]) == 2
    assert capsys.readouterr().err == (
        "error: no command weir rollout strat; did you mean start?; `weir rollout --help` lists them\n"
    )
    assert call(["get", "--nonsense"]) == 2
    assert "see `weir get --help`" in capsys.readouterr().err


def test_tables_fit_and_wide_ones_are_whole(capsys: pytest.CaptureFixture[str]) -> None:
    columns, rows = ("NAME", "A", "B", "EXTRA"), [("n" * 30, "x" * 300, "y", "z"), ("short", [1, 2], None, "")]
    print_table(columns, rows, empty="nothing", extra=("EXTRA",))
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) == 100
    assert "n" * 30 in out, "names are what is typed again"
    assert out.count("x") == 300, "nothing is lost"
    assert "EXTRA" not in out
    print_table(columns, rows, empty="nothing", extra=("EXTRA",), wide=True)
    out = capsys.readouterr().out
    assert "x" * 300 in out
    assert "1, 2" in out
    assert "\x1b" not in out
    print_table(columns, [], empty="nothing")
    assert capsys.readouterr().out == "nothing\n"
    print_fields([("a", True), ("long name", None), ("b", "two\nlines")])
    assert capsys.readouterr().out == "a          yes\nlong name  -\nb          two lines\n"


def test_colours_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert paint("x", "created") == "\x1b[32mx\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert paint("x", "created") == "x"


EVIL = "a\x1b[2Jb\x9b1mc\u202ed\x7f\re"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def no_terminal_obeys(text: str) -> bool:
    return all(each.isprintable() or each in "\n\t" for each in text)


def test_a_terminal_is_told_and_not_commanded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printable("né\n\t😀") == "né\n\t😀"
    assert printable(EVIL) == "a\\u001b[2Jb\\u009b1mc\\u202ed\\u007f\\re"
    print_table(("NAME",), [(EVIL,), ([EVIL],)], empty="")
    print_fields([("name", EVIL)])
    print_differences([("spec.note", EVIL, [EVIL])])
    say(EVIL)
    warn(EVIL)
    raise_to = WeirError(Reason.NOT_FOUND, EVIL)
    raise_to.faults = [(EVIL, EVIL), (EVIL, EVIL)]  # type: ignore[attr-defined]
    print_error(raise_to)
    print_error(WeirError(Reason.NOT_FOUND, EVIL))
    assert failed(EVIL).code == 1
    sys.stdout.write(logview.readable(EVIL, coloured=False) + logview.readable(f"{EVIL} | {EVIL}", coloured=False))
    fields = dict.fromkeys(("event", "time", "level", "x", "exception"), EVIL)
    sys.stdout.write(logview.readable(f"worker | {json.dumps(fields, ensure_ascii=False)}", coloured=False))
    out, err = capsys.readouterr()
    assert no_terminal_obeys(out), out
    assert no_terminal_obeys(err), err
    assert out.count("\\u009b") == 13
    assert err.count("\\u009b") == 7
    written = dump({"a": EVIL})
    for stream, safe in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stdout", stream)
        print_json({"a": EVIL})
        write(written)
        assert no_terminal_obeys(stream.getvalue()) is safe
        read = stream.getvalue()
        assert json.loads(read[: read.index("}") + 1]) == {"a": EVIL}, "and can be read back from either"
        assert [value for _, value in load_all(read[read.index("}") + 1 :], "t")] == [{"a": EVIL}]
