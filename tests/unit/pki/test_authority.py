"""The development CA: identities, idempotence, renewal, damage, and a real mTLS handshake."""

import asyncio
import ssl
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from libs.authority.identity import Identity, Operator
from libs.pki import (
    EDGE,
    CertificateFiles,
    adopt_next_ca,
    distrust_former_ca,
    ensure_ca,
    holder,
    holders,
    issue,
    issue_all,
    reissue,
    trust_next_ca,
)

START = datetime(2030, 1, 1, tzinfo=UTC).timestamp()
DAY = 86400.0


def read(path: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(Path(path).read_bytes())


def test_leaf_carries_one_spiffe_uri_and_its_services_name(tmp_path: Path) -> None:
    files = issue(tmp_path, Identity("worker", "worker-a", "demo", "zone-a"))
    certificate = read(files.cert)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [
        "spiffe://weir.internal/sa/worker/instance/worker-a/pool/demo/zone/zone-a"
    ]
    assert names.get_values_for_type(x509.DNSName) == ["worker.weir.internal"]
    assert names.get_values_for_type(x509.IPAddress) == []
    assert certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == "worker-a"
    read(files.cert).verify_directly_issued_by(read(files.ca))


def test_every_service_gets_its_own_key_with_mode_0600(tmp_path: Path) -> None:
    names = ("router", "audit", "edge")
    files = issue_all(tmp_path, names)
    assert set(files) == set(names)
    keys = {Path(f.key).read_bytes() for f in files.values()}
    assert len(keys) == len(names)
    for path in [*(Path(f.key) for f in files.values()), tmp_path / "ca.key"]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_edge_certificate_is_for_servers_only_and_has_no_identity(tmp_path: Path) -> None:
    certificate = read(issue(tmp_path, EDGE).cert)
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == []


def test_a_persons_certificate_is_no_servers(tmp_path: Path) -> None:
    certificate = read(issue(tmp_path, Operator("alice")).cert)
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert holder(certificate) == Operator("alice")


def test_another_pool_means_another_certificate(tmp_path: Path) -> None:
    first = read(issue(tmp_path, Identity("worker", "w", "shared")).cert)
    again = read(issue(tmp_path, Identity("worker", "w", "dedicated")).cert)
    assert first.serial_number != again.serial_number
    assert holder(again) == Identity("worker", "w", "dedicated")


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
    with pytest.raises(ValueError, match="not a name for a certificate"):
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


def trusted(root: Path) -> list[int]:
    return [each.serial_number for each in x509.load_pem_x509_certificates((root / "ca.pem").read_bytes())]


def test_everybody_gets_a_new_certificate_and_stays_who_they_are(tmp_path: Path) -> None:
    who = (Identity("worker", "w", "p", "z"), Identity(EDGE), Operator("alice"), Identity("demo-client"))
    before = {name: Path(files.key).read_bytes() for name, files in issue_all(tmp_path, who).items()}
    assert sorted(reissue(tmp_path)) == sorted(before)
    assert set(holders(tmp_path).values()) == set(who)
    for name, key in before.items():
        assert (tmp_path / f"{name}.key").read_bytes() != key


def test_a_ca_is_replaced_in_three_steps_each_of_which_may_be_repeated(tmp_path: Path) -> None:
    issue(tmp_path, "router")
    [former] = trusted(tmp_path)
    for _ in range(2):
        trust_next_ca(tmp_path)
        assert trusted(tmp_path)[0] == former
        assert len(trusted(tmp_path)) == 2
    bundle = x509.load_pem_x509_certificates((tmp_path / "ca.pem").read_bytes())
    # The former one signs until everybody trusts the next.
    read(issue(tmp_path, "audit").cert).verify_directly_issued_by(bundle[0])
    for _ in range(2):
        adopt_next_ca(tmp_path)
        reissue(tmp_path)
        assert len(trusted(tmp_path)) == 2
    for name in ("router", "audit"):
        read(str(tmp_path / f"{name}.pem")).verify_directly_issued_by(bundle[1])
    for _ in range(2):
        distrust_former_ca(tmp_path)
        assert trusted(tmp_path) == [bundle[1].serial_number]
    serial = read(str(tmp_path / "router.pem")).serial_number
    assert read(issue(tmp_path, "router").cert).serial_number == serial


def test_without_a_ca_there_is_nothing_to_replace(tmp_path: Path) -> None:
    for step in (trust_next_ca, distrust_former_ca, reissue):
        with pytest.raises(FileNotFoundError, match="no CA"):
            step(tmp_path)
