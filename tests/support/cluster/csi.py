"""What cert-manager's CSI driver puts into a pod: a key and a certificate by the attributes of the volume. Pure but for
the key's randomness."""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DRIVER = "csi.cert-manager.io"
_KNOWN = {
    *("issuer-name", "issuer-kind", "common-name", "dns-names", "ip-sans", "uri-sans", "duration", "renew-before"),
    *("key-usages", "fs-group", "ca-file", "certificate-file", "privatekey-file"),
}
_EXTENDED = {"server auth": ExtendedKeyUsageOID.SERVER_AUTH, "client auth": ExtendedKeyUsageOID.CLIENT_AUTH}


@dataclass(frozen=True)
class Authority:
    """The CA behind an issuer."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def new(cls) -> Authority:
        """A CA of its own."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cluster CA")])
        made = _builder(name, name, key, datetime.timedelta(days=1))
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        made = made.add_extension(_usage({"cert sign"}), critical=True)
        made = made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        return cls(made.sign(key, hashes.SHA256()), key)

    @property
    def pem(self) -> bytes:
        """Its certificate."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)


def files(authority: Authority, attributes: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, bytes]:
    """The files of a volume, by name.

    :raises ValueError: an attribute that the driver does not know, or a variable that is none.
    """
    said = {key.removeprefix(f"{DRIVER}/"): _expand(value, variables) for key, value in attributes.items()}
    if unknown := set(said) - _KNOWN:
        raise ValueError(f"no attributes of {DRIVER}: {', '.join(sorted(unknown))}")
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, said["common-name"])] if "common-name" in said else [])
    names: list[x509.GeneralName] = [x509.DNSName(each) for each in _list(said, "dns-names")]
    names += [x509.IPAddress(ipaddress.ip_address(each)) for each in _list(said, "ip-sans")]
    names += [x509.UniformResourceIdentifier(each) for each in _list(said, "uri-sans")]
    usages = set(_list(said, "key-usages"))
    issuer = authority.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    made = (
        _builder(subject, authority.certificate.subject, key, datetime.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(usages), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([oid for word, oid in _EXTENDED.items() if word in usages]), critical=False
        )
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {
        said.get("ca-file", "ca.crt"): authority.pem,
        said.get("certificate-file", "tls.crt"): made.public_bytes(serialization.Encoding.PEM),
        said.get("privatekey-file", "tls.key"): private,
    }


def _expand(text: str, variables: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        if found[1] not in variables:
            raise ValueError(f"no variable of {DRIVER}: {found[1]}")
        return variables[found[1]]

    return re.sub(r"\$\{(\w+)\}", value, text)


def _list(said: Mapping[str, str], name: str) -> list[str]:
    return [each.strip() for each in said.get(name, "").split(",") if each.strip()]


def _usage(words: set[str]) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature="digital signature" in words,
        content_commitment=False,
        key_encipherment="key encipherment" in words,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign="cert sign" in words,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, life: datetime.timedelta
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=1))
        .not_valid_after(now + life)
    )
