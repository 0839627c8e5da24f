"""The development CA: identities, idempotence, renewal, damage, and a real mTLS handshake."""

import asyncio
import ssl
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from libs.pki import EDGE, SERVICES, CertificateFiles, ensure_ca, issue, issue_all

START = datetime(2030, 1, 1, tzinfo=UTC).timestamp()
DAY = 86400.0


def read(path: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(Path(path).read_bytes())


def test_leaf_carries_one_spiffe_uri_and_the_local_names(tmp_path: Path) -> None:
    files = issue(tmp_path, "edge-auth")
    names = read(files.cert).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["spiffe://weir.internal/sa/edge-auth"]
    assert set(names.get_values_for_type(x509.DNSName)) == {"edge-auth.weir.internal", "localhost"}
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    read(files.cert).verify_directly_issued_by(read(files.ca))


def test_every_service_gets_its_own_key_with_mode_0600(tmp_path: Path) -> None:
    files = issue_all(tmp_path, SERVICES)
    assert set(files) == set(SERVICES)
    keys = {Path(f.key).read_bytes() for f in files.values()}
    assert len(keys) == len(SERVICES)
    for path in [*(Path(f.key) for f in files.values()), tmp_path / "ca.key"]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_edge_certificate_is_for_servers_only_and_has_no_identity(tmp_path: Path) -> None:
    certificate = read(issue(tmp_path, EDGE).cert)
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == []


def test_issuing_again_keeps_the_files(tmp_path: Path) -> None:
    first = issue(tmp_path, "router", now=lambda: START)
    before = (Path(first.cert).read_bytes(), Path(first.key).read_bytes(), Path(first.ca).read_bytes())
    again = issue(tmp_path, "router", now=lambda: START + 50 * DAY)
    assert (Path(again.cert).read_bytes(), Path(again.key).read_bytes(), Path(again.ca).read_bytes()) == before


def test_leaf_near_its_end_is_renewed_under_the_same_ca(tmp_path: Path) -> None:
    first = issue(tmp_path, "router", now=lambda: START)
    old, ca = read(first.cert), Path(first.ca).read_bytes()
    renewed = read(issue(tmp_path, "router", now=lambda: START + 61 * DAY).cert)
    assert renewed.serial_number != old.serial_number
    assert renewed.not_valid_after_utc > old.not_valid_after_utc
    assert Path(first.ca).read_bytes() == ca


def test_a_renewed_ca_reissues_the_leaves(tmp_path: Path) -> None:
    old = read(issue(tmp_path, "router", now=lambda: START).cert)
    files = issue(tmp_path, "router", now=lambda: START + 9.5 * 365 * DAY)
    assert read(files.cert).serial_number != old.serial_number
    read(files.cert).verify_directly_issued_by(read(files.ca))


@pytest.mark.parametrize("damage", ["missing_key", "foreign_key", "garbage_cert", "foreign_ca"])
def test_damaged_files_are_replaced(tmp_path: Path, damage: str) -> None:
    files = issue(tmp_path, "router")
    other = issue(tmp_path / "other", "router")
    match damage:
        case "missing_key":
            Path(files.key).unlink()
        case "foreign_key":
            Path(files.key).write_bytes(Path(other.key).read_bytes())
        case "garbage_cert":
            Path(files.cert).write_text("nothing")
        case _:
            Path(files.cert).write_bytes(Path(other.cert).read_bytes())
            Path(files.key).write_bytes(Path(other.key).read_bytes())
    again = issue(tmp_path, "router")
    read(again.cert).verify_directly_issued_by(read(again.ca))
    key = serialization.load_pem_private_key(Path(again.key).read_bytes(), password=None)
    assert read(again.cert).public_key() == key.public_key()


@pytest.mark.parametrize("name", ["", "ca", "../x", "a/b", "-a", "a" * 64, "a b"])
def test_names_that_are_no_dns_labels_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="not a service name"):
        issue(tmp_path, name)


def test_ensure_ca_alone_creates_only_the_ca(tmp_path: Path) -> None:
    path = ensure_ca(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir() if not p.name.startswith(".")) == ["ca.key", "ca.pem"]
    assert read(str(path)).extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def context(purpose: ssl.Purpose, files: CertificateFiles) -> ssl.SSLContext:
    made = ssl.create_default_context(purpose, cafile=files.ca)
    made.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_cert_chain(files.cert, files.key)
    return made


async def test_mutual_tls_shows_the_client_identity(tmp_path: Path) -> None:
    files = issue_all(tmp_path, ("audit", "gateway"))
    seen: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        names = dict(writer.get_extra_info("peercert")["subjectAltName"])
        seen.set_result(names["URI"])
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context(ssl.Purpose.CLIENT_AUTH, files["audit"]))
    async with server:
        port = server.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection(
            "127.0.0.1",
            port,
            ssl=context(ssl.Purpose.SERVER_AUTH, files["gateway"]),
            server_hostname="audit.weir.internal",
        )
        assert await seen == "spiffe://weir.internal/sa/gateway"
        writer.close()
