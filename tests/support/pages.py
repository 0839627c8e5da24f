"""What Markdown pages say: their commands, links and headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.mesh import ROOT

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(`+)(.+?)\1(?!`)", re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def pages() -> list[Path]:
    """Every page of the repository. The changelog speaks of commands that are gone."""
    apart = {".venv", ".git", ".weir", "build", "node_modules"}
    found = [path for path in ROOT.rglob("*.md") if not apart & set(path.relative_to(ROOT).parts)]
    return sorted(path for path in found if path != ROOT / "CHANGELOG.md")


def blocks(text: str, language: str = "") -> list[str]:
    """Its fenced blocks of a language."""
    return [body for found, body in _BLOCK.findall(text) if found == language]


def lines(block: str) -> list[str]:
    """Commands of a block, continued lines joined, without comments and what only sets the shell up."""
    made = [line.partition("  # ")[0].strip() for line in block.replace("\\\n", " ").splitlines()]
    return [line for line in made if line and not line.startswith(("source ", "#"))]


def spans(text: str) -> list[str]:
    """Its inline code."""
    return [" ".join(code.replace("\\|", "|").split()) for _, code in _SPAN.findall(_BLOCK.sub("", text))]


def commands(text: str, program: str) -> Iterator[list[str]]:
    """Every call of `program` in a page, in words: in its blocks, and in inline code."""
    for line in [each for block in blocks(text) for each in lines(block)] + spans(text):
        for part in re.split(r"; |&& | \| |\$\(|<\(", line):
            words = part.replace(".venv/bin/", "").strip().rstrip(")`").split()
            if words[:1] == [program]:
                yield words[1:]


def links(text: str) -> list[str]:
    """Where its links to files and headings go, without those to the web."""
    found = _LINK.findall(_SPAN.sub("", _BLOCK.sub("", text)))
    return [each for each in found if not re.match(r"[a-z]+:", each)]


def anchors(text: str) -> set[str]:
    """What its headings are called in links, as GitHub has it."""
    headings = re.findall(r"^#+ (.+)$", _BLOCK.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}
