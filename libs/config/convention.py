"""Where a process's settings come from: a file, above it the environment, above that the command line.

One spelling for every field of every service, nested ones included:

    tls.ca     {"tls": {"ca": …}}     WEIR_TLS__CA=…     --tls.ca …
"""

from __future__ import annotations

import argparse
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

PREFIX = "WEIR_"


class ConfigError(Exception):
    """The configuration cannot be used; the message names the source, the key and the fault."""


class CommandLineError(ConfigError):
    """A flag that does not exist, or one that is not written as flags are."""


Field = tuple[str, ...]
"""The names that lead to a field, from the outside in."""


def fields(cls: type[msgspec.Struct], above: Field = ()) -> Iterator[tuple[Field, Any]]:
    """Every field with its type; a structure comes before what is in it."""
    for field in msgspec.structs.fields(cls):
        path = (*above, field.name)
        yield path, field.type
        if (inner := _structure(field.type)) is not None:
            yield from fields(inner, path)


def variable(path: Field) -> str:
    """The environment variable of a field."""
    return PREFIX + "__".join(path).upper()


def from_file(path: Path) -> dict[str, Any]:
    """What a file says.

    :raises ConfigError: it cannot be read or holds no JSON object.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, UnicodeDecodeError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error


def from_environment(cls: type[msgspec.Struct], environ: Mapping[str, str]) -> list[tuple[Field, Any]]:
    """What the environment says. Variables of no field are other people's, unless they are within a structure.

    :raises ConfigError: a value is none of its field's.
    """
    known = {variable(path): (path, kind) for path, kind in fields(cls)}
    structures = tuple(f"{name}__" for name, (_, kind) in known.items() if _structure(kind) is not None)
    if wrong := sorted(name for name in environ if name.startswith(structures) and name not in known):
        raise ConfigError(f"{wrong[0]}: there is no such setting")
    return [(path, _read(environ[name], kind, name)) for name, (path, kind) in known.items() if name in environ]


def from_flags(cls: type[msgspec.Struct], argv: Sequence[str]) -> tuple[Path | None, list[tuple[Field, Any]]]:
    """The configuration file that is named, and what else the command line says.

    :raises CommandLineError: a flag is none.
    :raises ConfigError: a value is none of its field's.
    :raises SystemExit: help was asked for, and printed.
    """
    parser = _Parser(
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        description=f"Each also as a variable: --tls.ca is {PREFIX}TLS__CA. Lists are separated by commas.",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="JSON; the environment and the flags win over it")
    known = {".".join(path): (path, kind) for path, kind in fields(cls)}
    for name in known:
        parser.add_argument(f"--{name}", dest=name, metavar="VALUE")
    given = vars(parser.parse_args(argv))
    config = given.pop("config", None)
    return config, [(known[name][0], _read(raw, known[name][1], f"--{name}")) for name, raw in given.items()]


def lay(values: dict[str, Any], said: Sequence[tuple[Field, Any]]) -> None:
    """Puts what was said over values, in place; outer structures first."""
    for path, value in sorted(said, key=lambda each: len(each[0])):
        place = values
        for name in path[:-1]:
            if not isinstance(place.get(name), dict):
                place[name] = {}
            place = place[name]
        place[path[-1]] = value


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise CommandLineError(f"command line: {message}")


def _read(raw: str, kind: Any, source: str) -> Any:
    """A text as a field of this type: numbers, truth values and words as they are, lists by comma, the rest JSON."""
    try:
        plain = _plain(kind)
        origin = get_origin(plain)
        if origin in (tuple, list) and not raw.lstrip().startswith("["):
            return msgspec.convert([each.strip() for each in raw.split(",") if each.strip()], kind, strict=False)
        if _structure(plain) is not None or origin in (dict, tuple, list):
            return msgspec.json.decode(raw)
        return msgspec.convert(raw, kind, strict=False)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise ConfigError(f"{source}: {error}") from error


def _plain(kind: Any) -> Any:
    """A type without its bounds and without None beside it."""
    if get_origin(kind) is Annotated:
        return _plain(get_args(kind)[0])
    if get_origin(kind) in (Union, types.UnionType):
        others = [each for each in get_args(kind) if each is not type(None)]
        return _plain(others[0]) if len(others) == 1 else kind
    return kind


def _structure(kind: Any) -> type[msgspec.Struct] | None:
    """The structure that a field holds, if it holds one."""
    plain = _plain(kind)
    return plain if isinstance(plain, type) and issubclass(plain, msgspec.Struct) else None
