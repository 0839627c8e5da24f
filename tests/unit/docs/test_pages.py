"""What pages name is there: commands of `weir` with their flags, targets of `make`, files, headings, decisions."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from services.cli.__main__ import COMMANDS
from services.cli.app import UsageError, parameters, resolve
from services.cli.app import _parser as parser_of
from tests.support.mesh import ROOT
from tests.support.pages import anchors, blocks, commands, lines, links, pages, spans

NAMES = [str(path.relative_to(ROOT)) for path in pages()]
ANYWHERE = {"--help", "-h", "--json", "--as"}
MAKE = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def faults(words: list[str], node: Any = COMMANDS) -> Iterator[str]:
    """What a call names that there is not. `a|b` stands for both, and what is in capitals or ends so for anything."""
    node = resolve(node)
    if not isinstance(node, Mapping):
        if hasattr(node, "raw"):
            return
        known = {flag for each in parameters(node) for flag in each.flags} | ANYWHERE
        flags = {flag for word in words for flag in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", word)}
        yield from (flag for flag in sorted(flags) if flag not in known)
        return
    if words and re.match(r"[a-z|…-]+$", words[0]):
        for name in words[0].rstrip("…").split("|"):
            if name in node:
                yield from faults(words[1:], node[name]) if "|" not in words[0] else ()
            elif name and not name.startswith("-"):
                yield name


@pytest.mark.parametrize("name", NAMES)
def test_commands_and_their_flags_exist(name: str) -> None:
    found = {f"weir {' '.join(words)}": list(faults(words)) for words in commands(read(name), "weir")}
    assert not {call: names for call, names in found.items() if names}


@pytest.mark.parametrize(("name", "least"), [("docs/oncall.md", 60), ("docs/models.md", 10)])
def test_every_command_is_whole(name: str, least: int) -> None:
    """As its parser takes it: with all that it needs, and values that can be. Those on call that only look are run by
    tests/e2e/test_readme.py, too."""
    text = read(name)
    calls = [line for block in blocks(text) for line in lines(block)] + spans(text)
    calls = [call for call in calls if call.startswith("weir ")]
    assert len(calls) > least
    wrong = list[str]()
    for call in calls:
        words, node = shlex.split(call.replace("REVISION", "41"))[1:], resolve(COMMANDS)
        while isinstance(node, Mapping) and words:
            node, words = resolve(node[words[0]]), words[1:]
        try:
            if not isinstance(node, Mapping):
                parser_of(node, call).parse_intermixed_args(words)
        except UsageError as error:
            wrong.append(str(error))
    assert not wrong


@pytest.mark.parametrize("name", NAMES)
def test_targets_of_make_exist(name: str) -> None:
    targets = {words[0].rstrip(",.;:") for words in commands(read(name), "make") if words}
    assert {each for each in targets if re.match(r"[a-z]", each) and "=" not in each} <= MAKE


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    for link in links(read(name)):
        path, _, anchor = link.partition("#")
        target = (ROOT / name).parent / path if path else ROOT / name
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target.read_text(encoding="utf-8")), link


def test_a_command_that_is_gone_is_found() -> None:
    text = (
        "`weir gets all`, `weir get all --flow`, `weir keys create|remake`, `weir get KIND [-o wide]`, `weir rollout …`"
    )
    assert [list(faults(words)) for words in commands(text, "weir")] == [["gets"], ["--flow"], ["remake"], [], []]


def test_the_index_of_decisions_has_each_once_under_its_title() -> None:
    index = re.findall(r"^\| (\d+) \| \[(.+)\]\((.+)\) \|", read("docs/adr/README.md"), re.MULTILINE)
    decisions = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs/adr").glob("0*.md")}
    titles = {name: text.partition("\n")[0].removeprefix("# ") for name, text in decisions.items()}
    assert sorted(file for _, _, file in index) == sorted(titles)
    for number, title, file in index:
        assert f"{number}. {title}" == titles[file]
        assert int(number) == int(Path(file).name[:4])


def test_the_introduction_of_the_registrys_proto_names_each_of_its_messages_once() -> None:
    proto = read("protos/weir/registry/v1/registry.proto")
    messages = re.findall(r"^(?:message|enum) (\w+)", proto, re.MULTILINE)
    text = read("protos/README.md").partition("## registry.proto")[2]
    assert sorted(re.findall(r"`([A-Z]\w+)`", text)) == sorted(messages)


@pytest.mark.parametrize("name", sorted(path.parent.name for path in (ROOT / "protos/weir").glob("*/v1")))
def test_the_page_of_the_contracts_names_each_file_and_what_it_has(name: str) -> None:
    page = read("protos/README.md").splitlines()
    for path in (ROOT / "protos/weir" / name / "v1").glob("*.proto"):
        [row] = [line for line in page if str(path.relative_to(ROOT / "protos")) in line]
        known = set(re.findall(r"(?:message|enum|rpc) (\w+)", path.read_text(encoding="utf-8")))
        known |= set(re.findall(r"rpc (\w+)", read("protos/inference/open_inference.proto")))
        assert set(re.findall(r"`([A-Z]\w+)`", row)) <= known, path


def test_the_glossary_is_short() -> None:
    assert 10 <= len(re.findall(r"^\| \*\*", read("docs/glossary.md"), re.MULTILINE)) <= 20


def test_the_readme_says_first_who_it_is_for_what_there_is_and_what_was_never_run() -> None:
    before = read("README.md").partition("## Two commands")[0]
    for said in ("**For whom.**", "**For whom not.**", "## What it is not yet", "## Beside others"):
        assert said in before, said
    for peer in ("LiteLLM", "Envoy AI Gateway", "KServe", "Triton"):
        assert re.search(rf"^\| {peer} \|", before, re.MULTILINE), peer
    never = before.partition("**Never run:**")[2]
    for named in ("arm64", "GPU", "TensorRT-LLM"):
        assert named in never, named


def test_the_readme_has_every_route_of_the_openai_api_that_there_is() -> None:
    proto = read("protos/weir/openai/v1/openai.proto")
    served = re.findall(r"(?:post|get): \"([^\"]+)\"", proto)
    _, _, section = read("README.md").partition("## What of the OpenAI API")
    routes = re.findall(r"^\| `(?:GET|POST) (/v1/[^`]+)`", section.partition("\n## ")[0], re.MULTILINE)
    assert sorted(routes) == sorted(each.replace("{id=**}", "{id}") for each in served)
