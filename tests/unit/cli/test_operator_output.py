"""What the operators' commands print, and where they find the mesh."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from weir.audit.v1 import audit_pb2
from weir.registry.v1 import registry_pb2 as pb

from services.cli.__main__ import build, json_last
from services.cli.config import NoMeshError, locate
from services.cli.output import plain, print_fields, print_table

MESH = {
    "profile": "demo",
    "services": {
        "registry": {"service": "registry", "zone": "zone-a", "address": "127.0.0.1:7", "pid": 1},
        "worker-b": {"service": "worker", "address": "127.0.0.1:9"},
        "worker-a": {"service": "worker", "address": "127.0.0.1:8"},
    },
    "edge_url": "http://127.0.0.1:18000",
    "tls": {"ca": "ca.pem", "cli_cert": "cli.pem", "cli_key": "cli.key"},
}


def test_plain_keeps_numbers_names_and_zeros() -> None:
    limits = plain(pb.Limits(tenant="acme", requests_per_minute=2**40, revision=7))
    assert limits["requests_per_minute"] == 2**40
    assert limits["revision"] == 7
    assert limits["concurrency"] == 0
    assert set(limits) == {field.name for field in pb.Limits.DESCRIPTOR.fields}
    tenant = plain(pb.Tenant(plan=pb.PLAN_PAID, max_deadline=Duration(seconds=1, nanos=500_000_000)))
    assert tenant["plan"] == "PLAN_PAID"
    assert tenant["max_deadline"] == 1.5
    assert plain(pb.Tenant())["max_deadline"] is None
    key = plain(pb.ApiKey(hash=b"\x01\xff", created_at=Timestamp(seconds=0, nanos=5_000_000), scopes=["a", "b"]))
    assert key["hash"] == "01ff"
    assert key["created_at"] == "1970-01-01T00:00:00.005Z"
    assert key["scopes"] == ["a", "b"]
    model = plain(pb.ModelVersion(sampling_defaults=pb.SamplingDefaults(temperature=0.7)))
    assert model["sampling_defaults"]["temperature"] == 0.7
    json.dumps(plain(audit_pb2.StoredRecord(record=audit_pb2.Record(id="x"))))
    assert plain(pb.SmallerModel(models={"b": "a", "a": "c"})) == {"models": {"a": "c", "b": "a"}}


def test_table_is_whole_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("A", "B"), [("x" * 300, ["y", "z"]), ("[bold]", "")], empty="nothing")
    out = capsys.readouterr().out
    assert "x" * 300 in out
    assert "y, z" in out
    assert "[bold]" in out
    print_table(("A",), [], empty="nothing")
    assert capsys.readouterr().out == "nothing\n"
    print_fields([("a", True), ("long name", None)])
    assert capsys.readouterr().out == "a          yes\nlong name  -\n"


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
    assert mesh.address("registry") == "127.0.0.1:7"
    assert mesh.address("worker") == "127.0.0.1:8"
    assert mesh.tls.cert == "cli.pem"
    assert mesh.key_of("acme") == "wk_a_b"
    assert mesh.key_of("admin") == "wk_c_d"
    with pytest.raises(NoMeshError, match="no key of 'globex'"):
        mesh.key_of("globex")
    with pytest.raises(NoMeshError, match="no audit"):
        mesh.address("audit")


def test_says_where_no_mesh_is(tmp_path: Path) -> None:
    with pytest.raises(NoMeshError, match="weir up"):
        locate({"WEIR_STATE_DIR": str(tmp_path)})
    (tmp_path / "mesh.json").write_text("{")
    with pytest.raises(NoMeshError, match=r"mesh\.json"):
        locate({"WEIR_STATE_DIR": str(tmp_path)})


def test_whatever_changes_the_registry_takes_a_reason_and_can_be_tried() -> None:
    changing = {"set", "create", "revoke", "alias", "register", "sign", "pin", "unpin", "grant", "import", "rollback"}
    found = set()
    due = [("weir", typer.main.get_command(build(with_mesh=False)))]
    while due:
        name, command = due.pop()
        due += [(f"{name} {each}", below) for each, below in getattr(command, "commands", {}).items()]
        if name.split()[-1] in changing:
            options = {option for parameter in command.params for option in parameter.opts}
            assert {"--reason", "--dry-run"} <= options, name
            found.add(name)
    assert {"weir tenants set", "weir keys revoke", "weir registry import", "weir models pin"} <= found
