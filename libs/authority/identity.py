"""Who somebody is: the SPIFFE ids of services, of their instances and of people, and the names that go with them.

A certificate carries exactly one of these ids, as its only URI (SPIFFE X.509-SVID, section 2):

    spiffe://weir.internal/sa/<service>                          a workload without instances
    spiffe://weir.internal/sa/<service>/instance/<instance>[/pool/<pool>][/zone/<zone>][/region/<region>]
                                                                 a process of the mesh
    spiffe://weir.internal/operator/<name>                       a person

Each part is a DNS label (RFC 1123, section 2.1) in lower case, so no id has a second spelling.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

TRUST_DOMAIN = "weir.internal"

PERSON = "operator"
"""What people are called among the services that may call a method."""

_ROOT = f"spiffe://{TRUST_DOMAIN}"
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_PART = re.compile(_LABEL, re.ASCII)
_SERVICE = re.compile(
    rf"{re.escape(_ROOT)}/sa/(?P<service>{_LABEL})"
    rf"(?:/instance/(?P<instance>{_LABEL})(?:/pool/(?P<pool>{_LABEL}))?(?:/zone/(?P<zone>{_LABEL}))?"
    rf"(?:/region/(?P<region>{_LABEL}))?)?",
    re.ASCII,
)
_PERSON = re.compile(rf"{re.escape(_ROOT)}/operator/(?P<name>{_LABEL})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Identity:
    """A workload: a process of the mesh, or, without an instance, any process of that name.

    :raises ValueError: a part is no DNS label, or there is a pool, zone or region without an instance.
    """

    service: str
    instance: str = ""
    """Unique in the mesh; empty for workloads of tenants and for the edge's proxies."""
    pool: str = ""
    """The pool of workers that it may join; empty for what belongs to none."""
    zone: str = ""
    """The failure domain that it runs in."""
    region: str = ""
    """The jurisdiction that its machine stands in; empty where nobody asks."""

    def __post_init__(self) -> None:
        """Refuse what `parse` would not read back."""
        _check("service", self.service)
        for field in ("instance", "pool", "zone", "region"):
            if value := getattr(self, field):
                _check(field, value)
        if (self.pool or self.zone or self.region) and not self.instance:
            raise ValueError(f"{self.service}: a pool, a zone or a region belongs to an instance")

    @property
    def spiffe(self) -> str:
        """The SPIFFE id."""
        parts = tuple((name, getattr(self, name)) for name in ("instance", "pool", "zone", "region"))
        return f"{_ROOT}/sa/{self.service}" + "".join(f"/{name}/{value}" for name, value in parts if value)

    def differs(self, **claimed: str) -> str:
        """The first of `service`, `instance`, `pool`, `zone` and `region` that is claimed otherwise; empty: none is."""
        return next((field for field, value in claimed.items() if getattr(self, field) != value), "")

    @classmethod
    def parse(cls, spiffe: str) -> Identity | None:
        """The workload with this id; None for anything else, a person included."""
        return _parsed(spiffe)


@lru_cache(maxsize=4096)
def _parsed(spiffe: str) -> Identity | None:
    """Every call asks again for one of a few ids, and only what a certificate says is asked about."""
    found = _SERVICE.fullmatch(spiffe)
    return Identity(**found.groupdict(default="")) if found else None


@dataclass(frozen=True, slots=True)
class Operator:
    """A person.

    :raises ValueError: the name is no DNS label.
    """

    name: str

    def __post_init__(self) -> None:
        """Refuse what `parse` would not read back."""
        _check("operator", self.name)

    @property
    def spiffe(self) -> str:
        """The SPIFFE id."""
        return f"{_ROOT}/operator/{self.name}"

    @classmethod
    def parse(cls, spiffe: str) -> Operator | None:
        """The person with this id; None for anything else."""
        found = _PERSON.fullmatch(spiffe)
        return cls(found["name"]) if found else None


def etcd_user(identity: Identity | Operator) -> str:
    """The common name of the certificate, which is the user that etcd takes its bearer for; also its file's name.

    Services and instances share these names, so the issuer calls no workload like a process of the mesh. People's
    carry a dot, which neither may.
    """
    if isinstance(identity, Operator):
        return f"operator.{identity.name}"
    return identity.instance or identity.service


def dns_name(service: str) -> str:
    """The name that a service's callers dial and that its certificates carry."""
    return f"{service}.{TRUST_DOMAIN}"


def _check(field: str, value: str) -> None:
    if not _PART.fullmatch(value):
        raise ValueError(f"not a name for a certificate: {field} {value!r}")
