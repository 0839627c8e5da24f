"""What processes tell one another to connect to."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.config.addresses import host_of, join, split


@given(st.ip_addresses(), st.integers(1, 65_535))
def test_what_is_joined_is_split_again(ip: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> None:
    if ip.is_unspecified or ip.is_multicast:
        return
    assert split(join(str(ip), port)) == (str(ip), port)


@pytest.mark.parametrize("address", ["[0:0::1]:80", "0:0:0:0:0:0:0:1:80"])
def test_an_address_has_one_spelling(address: str) -> None:
    """Two spellings in one assignment would be two endpoints."""
    assert split(address) == ("::1", 80)


@pytest.mark.parametrize(
    "address",
    [
        *("localhost:80", "gateway-0:80", "h:1", "0.0.0.0:80", "[::]:80", "224.0.0.1:80", "[ff02::1]:80"),
        *("[fe80::1%eth0]:80", "127.0.0.01:80", "127.1:80", "2130706433:80", " 127.0.0.1:80", "127.0.0.1\n:80"),
        *("127.0.0.1", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:http", "127.0.0.1:+1", "", ":80"),
        "127.0.0.1:\u0663",
    ],
)
def test_f1_no_address_of_an_ip(address: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of several parsers
        split(address)


def test_a_host_may_stand_in_brackets() -> None:
    assert host_of("[::1]") == "::1"
    assert join("[::1]", 1) == join("::1", 1) == "[::1]:1"
    assert join("0.0.0.0", 1) == "0.0.0.0:1"
