"""The development certificate authority: creates, checks and renews files on disk.

Layout of the folder: `ca.pem`, `ca.key`, `<service>.pem`, `<service>.key`. Keys are mode 0600, the folder 0700. Every
file is written whole and renamed into place; a lock file serialises writers of different processes.
"""

import fcntl
import ipaddress
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from libs.pki.names import EDGE, TRUST_DOMAIN, dns_name, spiffe_id

CA_LIFE = timedelta(days=3650)
LEAF_LIFE = timedelta(days=90)
# A leaf is renewed in the last third of its life, so that a mesh started today still runs weeks later.
LEAF_RENEW_BEFORE = timedelta(days=30)
CA_RENEW_BEFORE = timedelta(days=365)
# Clocks of two machines differ; a certificate that starts "now" would be refused by the slower one.
BACKDATE = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """Paths of one workload's TLS files, all PEM."""

    ca: str
    """The CA bundle that peers are verified against."""
    cert: str
    """The leaf certificate."""
    key: str
    """Its private key (PKCS #8, not encrypted, mode 0600)."""


def ensure_ca(directory: Path | str, *, now: Callable[[], float] = time.time) -> Path:
    """Creates the CA in `directory` if there is none that is sound and valid for another year.

    Returns the path of the CA certificate. `now` gives seconds since the epoch. Raises OSError when the folder cannot
    be written.
    """
    root = Path(directory)
    with _locked(root):
        _load_or_create_ca(root, _moment(now))
    return root / "ca.pem"


def issue(directory: Path | str, service: str, *, now: Callable[[], float] = time.time) -> CertificateFiles:
    """Issues the certificate of one service, or keeps the one on disk while it is sound and not near its end.

    Creates the CA when needed. Raises ValueError for a name that is no DNS label, OSError when files cannot be written.
    """
    return issue_all(directory, (service,), now=now)[service]


def issue_all(
    directory: Path | str, services: Iterable[str], *, now: Callable[[], float] = time.time
) -> dict[str, CertificateFiles]:
    """Issues the certificates of several services under one lock; see `issue`."""
    names = tuple(services)
    for name in names:
        if not name.replace("-", "").isalnum() or name in {"ca", ""} or name.startswith("-") or len(name) > 63:
            raise ValueError(f"not a service name: {name!r}")
    root = Path(directory)
    moment = _moment(now)
    files: dict[str, CertificateFiles] = {}
    with _locked(root):
        ca, ca_key = _load_or_create_ca(root, moment)
        for name in names:
            if not _leaf_is_good(root, name, ca, moment):
                _write_leaf(root, name, ca, ca_key, moment)
            files[name] = CertificateFiles(
                ca=str(root / "ca.pem"), cert=str(root / f"{name}.pem"), key=str(root / f"{name}.key")
            )
    return files


def _moment(now: Callable[[], float]) -> datetime:
    return datetime.fromtimestamp(now(), UTC)


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(root / ".lock", "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _load_or_create_ca(root: Path, moment: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    pair = _load_pair(root, "ca")
    if pair is not None and pair[0].not_valid_after_utc - moment > CA_RENEW_BEFORE:
        return pair
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Weir development CA")])
    certificate = (
        _builder(name, name, key.public_key(), moment, CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(ca=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write_pair(root, "ca", certificate, key)
    return certificate, key


def _load_pair(root: Path, name: str) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None:
    """The certificate and key of `name`; None when missing, unreadable as PEM, or not belonging together."""
    try:
        certificate = x509.load_pem_x509_certificate((root / f"{name}.pem").read_bytes())
        key = serialization.load_pem_private_key((root / f"{name}.key").read_bytes(), password=None)
    except (FileNotFoundError, ValueError):
        return None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or certificate.public_key() != key.public_key():
        return None
    return certificate, key


def _leaf_is_good(root: Path, name: str, ca: x509.Certificate, moment: datetime) -> bool:
    pair = _load_pair(root, name)
    if pair is None or pair[0].not_valid_after_utc - moment < LEAF_RENEW_BEFORE:
        return False
    try:
        pair[0].verify_directly_issued_by(ca)
    except (InvalidSignature, ValueError):
        return False
    return _alternative_names(name) == pair[0].extensions.get_extension_for_class(x509.SubjectAlternativeName).value


def _write_leaf(
    root: Path, name: str, ca: x509.Certificate, ca_key: ec.EllipticCurvePrivateKey, moment: datetime
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    # The edge's certificate is shown to the public and must not open doors inside the mesh: server use only.
    usages = [ExtendedKeyUsageOID.SERVER_AUTH]
    if name != EDGE:
        usages.append(ExtendedKeyUsageOID.CLIENT_AUTH)
    authority = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    certificate = (
        _builder(subject, ca.subject, key.public_key(), moment, LEAF_LIFE)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(ca=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(_alternative_names(name), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(authority), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    _write_pair(root, name, certificate, key)


def _alternative_names(name: str) -> x509.SubjectAlternativeName:
    names: list[x509.GeneralName] = [
        x509.DNSName("localhost"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        x509.DNSName(dns_name(name)),
    ]
    if name == EDGE:
        names.append(x509.IPAddress(ipaddress.ip_address("::1")))
    else:
        names.append(x509.UniformResourceIdentifier(spiffe_id(name)))
    return x509.SubjectAlternativeName(names)


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, moment: datetime, life: timedelta
) -> x509.CertificateBuilder:
    full_subject = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, TRUST_DOMAIN), *subject])
    full_issuer = full_subject if issuer is subject else issuer
    return (
        x509.CertificateBuilder()
        .subject_name(full_subject)
        .issuer_name(full_issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(moment - BACKDATE)
        .not_valid_after(moment + life)
    )


def _key_usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=ca,
        crl_sign=ca,
        encipher_only=False,
        decipher_only=False,
    )


def _write_pair(root: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    """Writes key first: a reader that sees the new certificate also finds its key."""
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    _replace(root / f"{name}.key", pem, mode=0o600)
    _replace(root / f"{name}.pem", certificate.public_bytes(serialization.Encoding.PEM), mode=0o644)


def _replace(path: Path, content: bytes, *, mode: int) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as handle:
            os.fchmod(handle.fileno(), mode)
            handle.write(content)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
