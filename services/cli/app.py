"""Commands out of functions: the signature is the usage, the docstring the help.

What a command needs is imported when it is called, and its parser is the only one that is made: a whole framework would
cost 30 ms (click) or 65 ms (typer) of CPU for every call.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import sys
import textwrap
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from typing import Annotated, Any, NamedTuple, TypeAlias, Union, get_args, get_origin, get_type_hints

from libs.near import near

Node: TypeAlias = "str | Callable[..., Any] | Mapping[str, Node]"
"""A command, or commands by name; "module:name" is imported when it is needed."""
Groups: TypeAlias = Mapping[str, Mapping[str, Node]]
WIDTH = 100
_HERE = "services.cli."


class UsageError(Exception):
    """What was written on the command line or in a file makes no sense; the message says what to write. Exit code 2."""


class Argument(NamedTuple):
    """A word of the command line that is known by its place."""

    help: str
    metavar: str = ""
    complete: str = ""
    """What it can be completed with: "kind", "name", "file" or words."""


class Option(NamedTuple):
    """One that is known by its name."""

    flags: str = ""
    """ "-o --output"; else the parameter's name. "--on/--off" sets a bool either way."""
    help: str = ""
    metavar: str = ""
    choices: str = ""
    """Words, if only some may be said."""
    least: float = float("-inf")
    most: float = float("inf")
    env: str = ""
    """The environment variable that is taken where it is not given."""
    complete: str = ""


Reason = Annotated[str, Option(help="Why; kept in the history and the audit log.")]
DryRun = Annotated[bool, Option(help="Check it and say what would be, without doing it.")]
Json = Annotated[bool, Option("--json", help="Print JSON.")]
Output = Annotated[str, Option("-o --output", choices="table wide json", help="How to print it; --json is -o json.")]
CsvOutput = Annotated[
    str, Option("-o --output", choices="table wide json csv", help="How to print it; --json is -o json.")
]


@dataclass(frozen=True)
class Change:
    """What every command takes that changes resources."""

    reason: Reason = ""
    dry_run: DryRun = False
    as_json: Json = False

    @property
    def options(self) -> dict[str, Any]:
        """What the registry is told of it: a ChangeOptions."""
        return {"reason": self.reason, "dry_run": self.dry_run}


class Parameter(NamedTuple):
    """One of a command's function."""

    name: str
    kind: Any
    many: bool
    default: Any
    said: Argument | Option

    @property
    def flags(self) -> list[str]:
        """Its names as an option; an argument has none."""
        if isinstance(self.said, Argument):
            return []
        return self.said.flags.replace("/", " ").split() or ["--" + self.name.replace("_", "-")]


def raw(function: Callable[[list[str]], Any]) -> Callable[[list[str]], Any]:
    """A command that takes its words as they are."""
    function.raw = True  # type: ignore[attr-defined]
    return function


def parameters(function: Callable[..., Any]) -> list[Parameter]:
    """What a command takes. A parameter that is a dataclass stands for its fields, which other commands may share."""
    hints = get_type_hints(function, include_extras=True)
    made = []
    for name, each in inspect.signature(function).parameters.items() if not hasattr(function, "raw") else ():
        if is_dataclass(hints[name]):
            made += parameters(hints[name])
            continue
        kind, said = get_args(hints[name])
        if get_origin(kind) in (Union, types.UnionType):
            kind = get_args(kind)[0]
        many = get_origin(kind) in (list, Sequence)
        made.append(Parameter(name, get_args(kind)[0] if many else kind, many, each.default, said))
    return made


def resolve(node: Node) -> Any:
    """A node of the tree, imported."""
    if not isinstance(node, str):
        return node
    module, _, name = node.partition(":")
    return getattr(import_module(_HERE + module), name)


def run(tree: Node, words: list[str], path: str = "weir", groups: Groups | None = None) -> Any:
    """What the command returns that the words lead to. `groups` are the tree's commands by heading.

    :raises UsageError: they lead to none, or it cannot be called so.
    :raises SystemExit: help was asked for.
    """
    node = resolve(tree)
    while isinstance(node, Mapping):
        if not words or words[0] in ("-h", "--help"):
            print(overview(groups if groups and node is tree else {"": node}, path))
            raise SystemExit(0 if words else 2)
        if words[0] not in node:
            raise UsageError(f"no command {path} {words[0]}{near(words[0], node)}; `{path} --help` lists them")
        path = f"{path} {words[0]}"
        node, words = resolve(node[words[0]]), words[1:]
    if hasattr(node, "raw"):
        return node(words)
    return _called(node, vars(_parser(node, path).parse_intermixed_args(words)))


def _called(function: Callable[..., Any], given: dict[str, Any]) -> Any:
    """What it returns for these arguments, those of a dataclass put together."""
    for name, kind in get_type_hints(function).items():
        if isinstance(kind, type) and is_dataclass(kind):
            given[name] = kind(**{each.name: given.pop(each.name) for each in fields(kind) if each.name in given})
    return function(**given)


def overview(groups: Groups, path: str) -> str:
    """The help of commands by heading."""
    width = max(len(name) for group in groups.values() for name in group) + 2
    lines = [f"usage: {path} COMMAND …"]
    for heading, group in groups.items():
        lines += ["", heading] if heading else [""]
        for name, node in group.items():
            found = resolve(node)
            said = ", ".join(found) if isinstance(found, Mapping) else summary(found)
            lines.append(f"  {name:<{width}}{said}")
    return "\n".join([*lines, "", f"`{path} COMMAND --help` says more."])


def summary(function: Callable[..., Any]) -> str:
    """The first sentence of a command's help."""
    return " ".join((function.__doc__ or "").split()).partition(". ")[0].rstrip(".") + "."


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        unknown = message.partition("unrecognized arguments: ")[2].partition(" ")[0].partition("=")[0]
        raise UsageError(f"{message}{near(unknown, self._option_string_actions)}; see `{self.prog} --help`")


def _parser(function: Callable[..., Any], path: str) -> _Parser:
    parts = (inspect.getdoc(function) or "").split("\n\n")
    made = _Parser(
        prog=path,
        description="\n\n".join(textwrap.fill(" ".join(part.split()), WIDTH) for part in parts),
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, width=WIDTH, max_help_position=28),
    )
    for each in parameters(function):
        _add(made, each)
    return made


def _add(parser: _Parser, each: Parameter) -> None:
    said, needed = each.said, each.default is inspect.Parameter.empty
    more: dict[str, Any] = {"help": said.help.replace("%", "%%")}
    if isinstance(said, Argument):
        if each.many or not needed:
            more["nargs"] = "?" if not each.many else "+" if needed else "*"
        more |= {} if needed else {"default": each.default}
        parser.add_argument(each.name, metavar=said.metavar or each.name.upper(), type=each.kind, **more)
        return
    more |= {"dest": each.name, "required": needed}
    if "/" in said.flags:
        for flag, value in zip(each.flags, (True, False), strict=True):
            parser.add_argument(flag, action="store_const", const=value, **more)
    elif each.kind is bool:
        parser.add_argument(*each.flags, action="store_true", **more)
    else:
        more |= {"default": os.environ[said.env]} if os.environ.get(said.env) else {}
        more["metavar"] = said.metavar or said.choices.replace(" ", "|") or each.name.upper()
        parser.add_argument(
            *each.flags, action="append" if each.many else "store", type=_reader(each.kind, said), **more
        )
    if each.name == "output":
        parser.add_argument("--json", dest="output", action="store_const", const="json", help=argparse.SUPPRESS)


def _reader(kind: type, said: Option) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        value = kind(text)
        if said.choices and value not in said.choices.split():
            raise argparse.ArgumentTypeError(f"{text!r} is none of {said.choices}")
        if kind in (int, float) and not said.least <= value <= said.most:
            raise argparse.ArgumentTypeError(f"{text} is not within {said.least:g} … {said.most:g}")
        return value

    read.__name__ = "number" if kind in (int, float) else "text"
    return read


def json_last(words: list[str]) -> list[str]:
    """The words with `--json` moved behind the command that it is meant for; what follows "--" stays."""
    end = words.index("--") if "--" in words else len(words)
    if "--json" not in words[:end]:
        return words
    return [*(each for each in words[:end] if each != "--json"), "--json", *words[end:]]


def as_operator(words: list[str]) -> list[str]:
    """The words without `--as NAME`, which says whose certificate is shown, as WEIR_OPERATOR does.

    :raises UsageError: there is no name.
    """
    end = words.index("--") if "--" in words else len(words)
    if "--as" not in words[:end]:
        return words
    at = words.index("--as")
    if at + 1 >= end:
        raise UsageError("--as needs a name: --as jane")
    os.environ["WEIR_OPERATOR"] = words[at + 1]
    return words[:at] + words[at + 2 :]


def printable(text: str, keep: str = "\n\t") -> str:
    """A text with which no terminal does anything but show it: what cannot be printed is escaped as in JSON."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in keep else json.dumps(each)[1:-1] for each in text)


def say(line: str, *, flush: bool = False) -> None:
    """Says something in words."""
    print(printable(line), flush=flush)


def warn(line: str) -> None:
    """Says something beside the answer."""
    print(printable(line), file=sys.stderr)
