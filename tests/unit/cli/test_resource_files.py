"""Resources as text: whatever a resource holds is read back as it was written, and what is unclear is refused."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from libs.resources import documents
from libs.resources.codec import pack
from libs.resources.forms import from_plain, to_plain
from libs.resources.kind import Kind
from libs.resources.kinds import KINDS
from services.cli import files
from services.cli.app import UsageError
from tests.support.messages import messages

WORDS = """= << yes no on Off y ~ null NULL true False 1e3 1.5 .5 +1 -0 010 0o17 0x1f 0b1 1_000 1:30 190:20:30 .inf
    -.INF .nan 2026-01-01 2026-01-01T00:00:00Z - ? : # & * ! | > ' " % @ ` [ ] { } , --- ... \\ é 😀"""
ODD = ("", " ", "\t", "\n", "a: b", "- x", "a #b", " a", "a ", "a\n", "\na", "a\n\nb\n", "a\n b", "\r\n", "\0", "\x1b")
HOSTILE = st.sampled_from([*WORDS.split(), *ODD, "\ufeff", "\x85", "\u2028", "\ud7ff"])
TEXT = st.text(st.characters(exclude_categories=["Cs"])) | HOSTILE | st.lists(HOSTILE).map("".join)
LINES = st.lists(TEXT | st.text("ab: -#", max_size=9)).map("\n".join)
SCALARS = TEXT | LINES | st.integers() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=8)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(TEXT, VALUES, min_size=1))
def test_whatever_is_written_is_read_back(value: dict[str, Any]) -> None:
    text = documents.dump(value)
    [(_, read)] = documents.load_all(text, "f")
    assert read == value
    assert documents.dump(read) == text


@settings(max_examples=80, deadline=None)
@given(st.lists(st.dictionaries(TEXT, TEXT, min_size=1)))
def test_documents_stay_apart(values: list[dict[str, str]]) -> None:
    assert [value for _, value in documents.load_all(documents.dump_all(values), "f")] == values


@given(TEXT)
def test_nobody_else_reads_anything_but_text(text: str) -> None:
    """What YAML 1.1 makes of it too: half of all tools still do."""
    assert yaml.safe_load(documents.dump({"a": text})) == {"a": text}


@pytest.mark.parametrize("kind", [each for each in KINDS if each.applied], ids=lambda kind: kind.name)
@settings(max_examples=30, deadline=None)
@given(st.data())
def test_every_kind_comes_back_as_it_was(kind: Kind, data: st.DataObject) -> None:
    resource = pack(data.draw(messages(kind.message)))
    try:
        form = to_plain(resource, full=False)
    except ValueError:  # a time that there is not
        reject()
    assume(_finite(form))
    [(_, read)] = documents.load_all(documents.dump(form), "f")
    assert read == form
    assert to_plain(from_plain(json.loads(json.dumps(read))), full=False) == form


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("kind: Tenant\nkind: Slo", 2, "'kind' is there twice"),
        ("a:\n  b: 1\n  b: 2", 3, "'b' is there twice"),
        ("a: &x [1]\nb: *x", 1, "alias"),
        ("- &a [x, x]\n- [*a, *a]", 1, "alias"),
        ("a:\n- !!python/object/apply:os.system [ls]", 2, "tag"),
        ("a: !secret x", 1, "tag"),
        ("? [a, b]\n: 1", 1, "must be a word"),
        ("a: [1, 2", 2, "expected"),
        ("a: 1\n\tb: 2", 2, "tab"),
        ("[" * 100_000, 1, "too deeply"),
        ("a: \x01", 0, "unacceptable"),
    ],
)
def test_what_is_unclear_is_refused_with_its_place(text: str, line: int, words: str) -> None:
    with pytest.raises(documents.DocumentError, match=words) as refused:
        list(documents.load_all(text, "t.yaml"))
    assert str(refused.value).startswith(f"t.yaml:{line}: " if line else "t.yaml: ")


def test_a_scalar_is_what_yaml_1_2_says() -> None:
    [(_, read)] = documents.load_all(
        "a: on\nb: 010\nc: 1:30\nd: 2026-01-01\ne: 1e3\nf: ~\ng: '1'\nh: true\ni: 1_0", "f"
    )
    assert read == {
        "a": "on",
        "b": 10,
        "c": "1:30",
        "d": "2026-01-01",
        "e": 1000.0,
        "f": None,
        "g": "1",
        "h": True,
        "i": "1_0",
    }


def test_folders_are_read_whole_and_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "2.yml").write_text("---\na: 2\n---\n# nothing\n---\na: 3\n")
    (tmp_path / "a.json").write_text('{"resources": [{"a": 0}, {"a": 1}], "revision": 7}')
    (tmp_path / "notes.txt").write_text("a: 9")
    found = list(files.read([str(tmp_path)]))
    assert [document for _, document in found] == [{"a": n} for n in range(4)]
    assert [place.rpartition("/")[2] for place, _ in found] == ["a.json:1", "a.json:1", "2.yml:2", "2.yml:6"]
    for name, text in (("x.json", '{"a": 1, "a": 2}'), ("x.json", "{"), ("x.yaml", "\xff")):
        (tmp_path / name).write_text(text, encoding="latin-1")
        with pytest.raises(UsageError, match=name):
            list(files.read([str(tmp_path / name)]))
    with pytest.raises(UsageError, match="No such file"):
        list(files.read([str(tmp_path / "nowhere.yaml")]))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"no \.yaml"):
        list(files.read([str(tmp_path / "empty")]))


def test_folders_may_be_called_like_files(tmp_path: Path) -> None:
    (tmp_path / "all" / "x.yaml").mkdir(parents=True)
    (tmp_path / "all" / "x.yaml" / "y.yaml").write_text("a: 1")
    assert [document for _, document in files.read([str(tmp_path / "all")])] == [{"a": 1}]


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_standard_input_must_be_text(monkeypatch: pytest.MonkeyPatch, errors: str) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a: \xff"), "utf-8", errors))
    with pytest.raises(UsageError, match="standard input: not UTF-8"):
        list(files.read(["-"]))


def _finite(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_finite, value.values()))
    if isinstance(value, list):
        return all(map(_finite, value))
    return not isinstance(value, float) or math.isfinite(value)
