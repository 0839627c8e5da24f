"""Where operators' commands call: several processes of a service, of which some may not run."""

from __future__ import annotations

from services.cli.calls import target


def test_one_process_is_called_as_it_is_written() -> None:
    assert target(["registry:18021"]) == "registry:18021"


def test_several_are_called_by_their_ips_without_those_that_do_not_run() -> None:
    assert target(["localhost:1", "nobody.invalid:2", "127.0.0.2:3"]) == "ipv4:127.0.0.1:1,127.0.0.2:3"


def test_where_nobody_runs_the_first_one_is_named() -> None:
    assert target(["nobody.invalid:1", "noone.invalid:2"]) == "nobody.invalid:1"
