"""README's picture, and the program that draws it."""

from __future__ import annotations

import re
import shlex
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.support.mesh import ROOT
from tests.unit.docs.test_pages import faults

README = (ROOT / "README.md").read_text(encoding="utf-8")
MOST_BYTES = 100_000
KEY = r"wk_[a-z0-9]+_"
PLACE = r"(?<![\w.])/(?:home|root|tmp|work|Users|var|opt)/"


@pytest.fixture(scope="module")
def program() -> ModuleType:
    loader = SourceFileLoader("picture", str(ROOT / "bin" / "picture"))
    module = module_from_spec(spec_from_loader("picture", loader) or pytest.fail("bin/picture is no program"))
    loader.exec_module(module)
    return module


def said(svg: str) -> list[str]:
    """The lines of a picture."""
    found: dict[float, list[Any]] = {}
    for each in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text"):  # noqa: S314 - our own
        if "textLength" in each.attrib:
            found.setdefault(float(each.attrib["y"]), []).append(each)
    rows = [sorted(row, key=lambda each: float(each.attrib["x"])) for _, row in sorted(found.items())]
    return ["".join(each.text or "" for each in row).replace("\u00a0", " ").rstrip() for row in rows]


def test_what_a_terminal_shows_is_drawn_with_its_colours_and_fetches_nothing(program: ModuleType) -> None:
    svg = program.drawn([("weir workers", "\x1b[1mWORKER    POOL\x1b[0m\nworker-a  <fast>\n"), ("weir version", "0\n")])
    assert said(svg) == ["$ weir workers", "WORKER    POOL", "worker-a  <fast>", "", "$ weir version", "0", ""]
    [bold] = re.findall(r"\.(weir-r\d) \{ fill: #c5c8c6;font-weight: bold \}", svg)
    assert f'class="{bold}" x="0" y="44.4"' in svg, "the heading"
    assert "url(http" not in svg


def test_a_command_is_run_on_a_terminal_and_one_that_fails_is_not_drawn(program: ModuleType) -> None:
    environment = {"PATH": "/usr/bin:/bin"}
    assert program.seen("test -t 1 && echo shown; echo told >&2", environment) == "shown\ntold\n"
    with pytest.raises(RuntimeError, match="no such thing"):
        program.seen("echo no such thing; false", environment)


def test_what_is_drawn_is_of_readmes_ten_minutes(program: ModuleType) -> None:
    found = list(program.commands())
    assert [re.match(f"weir ({'|'.join(program.SHOWN)})", each) is not None for each in found] == [True] * len(found)
    assert len(found) >= len(program.SHOWN)


def test_readmes_picture_is_there_shows_these_commands_and_tells_nothing_of_its_machine(program: ModuleType) -> None:
    head = README.partition("\n## ")[0]
    [name] = re.findall(r"!\[[^\]]+\]\(([^)\s]+\.svg)\)", head)
    assert ROOT / name == program.PICTURE
    svg = program.PICTURE.read_text(encoding="utf-8")
    assert len(svg) < MOST_BYTES
    shown = said(svg)
    calls = [line.removeprefix("$ ") for line in shown if line.startswith("$ ")]
    assert calls == list(program.commands())
    for call in calls:
        assert not list(faults(shlex.split(call)[1:])), call
    told = "\n".join(shown)
    assert not re.search(KEY, told)
    assert not re.search(PLACE, told)
    assert ".weir" in told
