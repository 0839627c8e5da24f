"""`weir operators` and `weir whoami`, against a registry in this process."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from libs.authority.identity import Operator as Person
from libs.pki import issue
from services.cli.app import UsageError, as_operator
from services.cli.mesh.site import locate, login
from services.cli.mesh.topology import TopologyError
from tests.support.operator import NAME, Operator


@pytest.fixture(autouse=True)
def nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--as` sets a variable of this process."""
    monkeypatch.setenv("WEIR_OPERATOR", "")


@pytest.fixture
async def mesh(weir: Operator) -> Operator:
    """With an owner that is bound, and a tenant."""
    assert (await weir("operators", "add", NAME, "--role", "owner")).code == 0
    assert (await weir("set", "tenant", "acme", "plan=PLAN_PAID", "--create")).code == 0
    return weir


async def test_a_person_is_added_seen_and_revoked(mesh: Operator) -> None:
    added = await mesh("operators", "add", "jane", "--role", "operator", "--tenant", "acme", "--reason", "acme's")
    assert added.code == 0, added.err
    cert, key = map(Path, added.out.split())
    assert (cert.name, key.stat().st_mode & 0o777) == ("operator.jane.pem", 0o600)

    whoami = (await mesh("whoami", "--as", "jane", "--json")).json()
    assert (whoami["principal"], whoami["roles"], whoami["tenants"]) == ("operator:jane", ["operator"], ["acme"])
    assert whoami["may_change"] == ["tenants", "keys", "limits", "budgets"]
    assert {"change roles", "change plans", "call audit.Tail", "call Rollback"} <= set(whoami["may_not"])
    assert "until" in (await mesh("whoami")).out

    found = {each["principal"]: each for each in (await mesh("operators", "list", "--json")).json()["operators"]}
    assert set(found) == {"operator:jane", f"operator:{NAME}"}
    assert found["operator:jane"]["changed_by"] == f"operator:{NAME}"
    assert found["operator:jane"]["certificate_until"] == whoami["certificate_until"]
    ends = datetime.fromisoformat(whoami["certificate_until"])
    assert timedelta(days=6) < ends - datetime.now(UTC) < timedelta(days=8)

    held = cert.read_bytes(), key.read_bytes()
    assert (await mesh("operators", "revoke", "jane", "--reason", "gone", "--json")).json()["revoked"]
    assert not cert.exists()
    # Whoever kept the files is somebody, and may nothing.
    cert.write_bytes(held[0])
    key.write_bytes(held[1])
    refused = await mesh("get", "tenants", "--as", "jane")
    assert (refused.code, "needs a role; operator:jane has none" in refused.err) == (1, True)
    told = await mesh("whoami", "--as", "jane")
    assert told.code == 1
    assert "operator:jane" in told.err
    assert "may nothing" in told.err


async def test_the_last_owner_cannot_leave(mesh: Operator) -> None:
    refused = await mesh("operators", "revoke", NAME)
    assert (refused.code, "the last owner stays" in refused.err) == (1, True)
    assert (await mesh("operators", "add", "jane", "--role", "owner")).code == 0
    assert (await mesh("operators", "revoke", NAME)).code == 0
    assert (await mesh("operators", "list")).code == 1


async def test_a_dry_run_makes_nothing(mesh: Operator) -> None:
    for words in (("add", "jane", "--role", "viewer", "--dry-run"), ("revoke", "jane", "--dry-run")):
        await mesh("operators", *words)
    assert not (mesh.state / "pki" / "operator.jane.pem").exists()
    assert "jane" not in (await mesh("operators", "list")).out


async def test_a_certificate_is_made_anew_for_whom_it_is_for(mesh: Operator) -> None:
    assert (await mesh("operators", "add", "jane")).code == 2, "nobody yet, and no role"
    added = await mesh("operators", "add", "jane", "--role", "viewer")
    cert = mesh.state / "pki" / "operator.jane.pem"
    assert str(cert) in added.out
    first = cert.read_bytes()
    assert (await mesh("operators", "add", "jane")).code == 0
    assert cert.read_bytes() == first, "it is good for days"
    cert.unlink()
    again = await mesh("operators", "add", "jane")
    assert (again.code, cert.read_bytes() != first) == (0, True)
    assert (await mesh("whoami", "--as", "jane", "--json")).json()["roles"] == ["viewer"]


async def test_an_old_certificate_is_looked_at_before_it_ends(mesh: Operator) -> None:
    cert = mesh.state / "pki" / f"operator.{NAME}.pem"
    old = cert.stat().st_mtime - 6 * 86_400
    os.utime(cert, (old, old))
    first = cert.read_bytes()
    assert (await mesh("whoami")).code == 0
    assert cert.read_bytes() == first, "it was good for days"
    # One whose time is nearly over is another one afterwards.
    issue(mesh.state / "pki", Person(NAME), now=lambda: time.time() - 6 * 86_400)
    os.utime(cert, (old, old))
    assert (await mesh("whoami")).code == 0
    assert datetime.fromisoformat((await mesh("whoami", "--json")).json()["certificate_until"]) > datetime.now(UTC)


def request(curve: ec.EllipticCurve, name: str = "root") -> tuple[bytes, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(curve)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    extra = x509.SubjectAlternativeName([x509.UniformResourceIdentifier("spiffe://weir.internal/operator/root")])
    made = x509.CertificateSigningRequestBuilder().subject_name(subject).add_extension(extra, critical=False)
    return made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM), key


async def test_of_a_request_nothing_but_the_key_counts(mesh: Operator, tmp_path: Path) -> None:
    csr = tmp_path / "jane.csr"
    content, key = request(ec.SECP256R1())
    csr.write_bytes(content)
    added = await mesh("operators", "add", "jane", "--role", "viewer", "--csr", csr)
    assert added.code == 0, added.err
    made = x509.load_pem_x509_certificate(added.out.encode())
    assert made.public_key() == key.public_key()
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [each.value for each in names] == ["spiffe://weir.internal/operator/jane"]
    usage = made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]
    assert not (mesh.state / "pki" / "operator.jane.key").exists()
    for bad in (b"", b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----", _forged(content)):
        csr.write_bytes(bad)
        refused = await mesh("operators", "add", "jane", "--role", "viewer", "--csr", csr)
        assert (refused.code, "nothing is signed" in refused.err) == (1, True)
    csr.write_bytes(request(ec.SECP384R1())[0])
    assert "P-256" in (await mesh("operators", "add", "jane", "--role", "viewer", "--csr", csr)).err


def _forged(content: bytes) -> bytes:
    """A request with another signature than its key's."""
    lines = content.splitlines()
    last = lines[-2]
    lines[-2] = last[:8] + (b"B" if last[8:9] != b"B" else b"C") + last[9:]
    return b"\n".join(lines) + b"\n"


async def test_people_with_tokens_have_no_certificate(mesh: Operator, tmp_path: Path) -> None:
    who = "oidc:corp/jane@example.org"
    added = await mesh("operators", "add", who, "--role", "auditor", "--json")
    assert added.json() == {"principal": who, "roles": ["auditor"]}
    assert who in (await mesh("operators", "list")).out
    assert (await mesh("operators", "add", who, "--role", "auditor", "--csr", tmp_path)).code == 2
    assert (await mesh("operators", "revoke", who)).code == 0
    for name in ("Jane", "../jane", "a b", ""):
        assert (await mesh("operators", "add", name, "--role", "viewer")).code == 2, name


def test_who_calls_may_be_said_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert as_operator(["get", "tenants"]) == ["get", "tenants"]
    assert as_operator(["get", "--as", "jane", "tenants"]) == ["get", "tenants"]
    assert os.environ["WEIR_OPERATOR"] == "jane"
    assert as_operator(["complete", "--", "--as", "x"]) == ["complete", "--", "--as", "x"]
    with pytest.raises(UsageError, match="name"):
        as_operator(["whoami", "--as"])


@pytest.mark.parametrize(
    ("user", "name"),
    [
        ("jane", "jane"),
        ("Jane.Doe", "jane-doe"),
        ("-x-", "x"),
        ("j" * 80, "j" * 63),
        ("", "operator"),
        ("ÿ", "operator"),
    ],
)
def test_the_first_owner_is_whoever_starts_the_mesh(user: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: user)
    assert login() == name
    assert locate({}).operator == name
    assert locate({"WEIR_OPERATOR": "joe"}).operator_tls.cert.endswith("/operator.joe.pem")
    with pytest.raises(TopologyError, match="WEIR_OPERATOR"):
        locate({"WEIR_OPERATOR": "Joe"})
