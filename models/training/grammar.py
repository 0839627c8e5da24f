"""Reads the texts of the corpus and draws sentences from them. Their format: `texts/README.md`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

TEXTS = Path(__file__).parent / "texts"

_ALTERNATIVES = re.compile(r"\{([^{}]*)\}")


@dataclass(slots=True)
class Topic:
    """Something that can be explained. `name` reads inside a sentence: "a weir", "rain", "the sea"."""

    name: str
    group: str
    definitions: list[str] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Exchange:
    """Questions that mean the same and the answers that fit any of them."""

    questions: list[str]
    answers: list[str] = field(default_factory=list)


_PLURALS = {"a salmon": "salmon", "a batch": "batches", "a retry": "retries",
            "a delta": "deltas", "a canary release": "canary releases"}  # fmt: skip


def plural(topic: Topic) -> str | None:
    """The name for many of a kind ("weirs"), None for what cannot be counted ("rain", "the sea")."""
    if topic.name in _PLURALS:
        return _PLURALS[topic.name]
    article, _, noun = topic.name.partition(" ")
    return f"{noun}s" if article in ("a", "an") else None


Story = dict[str, list[str]]
"""The sentences of a story theme by section: open, trouble, turn, end."""


def expand(text: str, random: Random) -> str:
    """One reading of `text`, with every `{a|b}` replaced by one of its parts."""
    drawn = _ALTERNATIVES.sub(lambda match: random.choice(match.group(1).split("|")), text)
    return re.sub(r" +([.,;!?]|$)", r"\1", re.sub(r" {2,}", " ", drawn)).strip()


def capitalise(text: str) -> str:
    """`text` with its first letter large; the rest stays as it is."""
    return text[:1].upper() + text[1:]


def topics() -> list[Topic]:
    """Every topic of the topic files, in file order."""
    found: list[Topic] = []
    for name in ("water.txt", "nature.txt", "systems.txt"):
        for mark, text in _marked_lines(name):
            if mark == "@":
                title, _, group = text.partition(" | ")
                found.append(Topic(name=title, group=group))
            elif mark == "=":
                found[-1].definitions.append(text)
            elif mark == "-":
                found[-1].facts.append(text)
            else:
                found[-1].reasons.append(text)
    return found


def exchanges() -> list[Exchange]:
    """The small talk."""
    found: list[Exchange] = []
    for mark, text in _marked_lines("smalltalk.txt"):
        if mark == "?":
            found.append(Exchange(questions=text.split(" | ")))
        else:
            found[-1].answers.append(text)
    return found


def stories() -> dict[str, Story]:
    """The story themes by name."""
    found: dict[str, Story] = {}
    current: Story = {}
    for line in _lines("stories.txt"):
        if line.startswith("@ "):
            current = found.setdefault(line[2:], {})
        else:
            section, _, text = line.partition(": ")
            current.setdefault(section, []).append(text)
    return found


def poems() -> dict[str, list[str]]:
    """Rhyming pairs of lines by theme, the two lines joined by a line break."""
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in _lines("poems.txt"):
        if line.startswith("@ "):
            current = found.setdefault(line[2:], [])
        else:
            current.append(line.replace(" / ", "\n"))
    return found


def _lines(name: str) -> list[str]:
    text = (TEXTS / name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def _marked_lines(name: str) -> list[tuple[str, str]]:
    return [(line[0], line[2:]) for line in _lines(name)]
