"""`weir completion`: commands, options, kinds and names, completed by the shell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from services.cli import calls
from services.cli.app import Argument, Node, Option, UsageError, parameters, resolve
from services.cli.kinds import ALL, kind_called

_SECONDS = 1.0
"""For the names of a kind; then there are none."""
_SCRIPTS = {
    "bash": """_weir() {
  local IFS=$'\\n'
  COMPREPLY=($(weir __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
  [ ${#COMPREPLY[@]} = 1 ] && COMPREPLY=("$(printf %q "${COMPREPLY[0]}")")
}
complete -o default -F _weir weir""",
    "zsh": """_weir() {
  local -a found; found=("${(@f)$(weir __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  [[ -n "$found" ]] && compadd -a found || _files
}
compdef _weir weir""",
    "fish": "complete -c weir -a '(weir __complete (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'",
}


def completion(shell: Annotated[str, Argument("bash, zsh or fish.", complete="bash zsh fish")]) -> None:
    """Print what makes a shell complete `weir`: `source <(weir completion bash)`."""
    if shell not in _SCRIPTS:
        raise UsageError(f"no script for {shell!r}; there are {', '.join(_SCRIPTS)}")
    print(_SCRIPTS[shell])


def complete(tree: Node, words: list[str]) -> None:
    """Prints what the last word can become, one a line. Never fails: a shell has no use for a reason."""
    try:
        print("".join(f"{each}\n" for each in sorted(_found(tree, words)) if each.startswith(words[-1])), end="")
    except Exception:
        return


def _found(tree: Node, words: list[str]) -> Iterable[str]:
    node: Any = resolve(tree)
    while isinstance(node, Mapping):
        if len(words) == 1:
            return node
        node, words = resolve(node[words[0]]), words[1:]
    wanted = parameters(node)
    options = {flag: each for each in wanted for flag in each.flags if each.kind is not bool}
    given: list[str] = []
    waiting: Any = None
    for word in words[:-1]:
        if waiting is None and not word.startswith("-"):
            given.append(word)
        waiting = options.get(word) if waiting is None else None
    if waiting is not None:
        return waiting.said.choices.split() if isinstance(waiting.said, Option) else ()
    if words[-1].startswith("-"):
        return [flag for each in wanted for flag in each.flags] + ["--help", "--json"]
    placed = [each for each in wanted if isinstance(each.said, Argument)]
    return _values(placed[min(len(given), len(placed) - 1)].said.complete, given) if placed else ()


def _values(what: str, given: list[str]) -> Iterable[str]:
    if what not in ("kind", "name"):
        return [] if what == "file" else what.split()
    if not given:
        from libs.resources.kinds import BY_PLURAL

        return [*BY_PLURAL, ALL]
    with calls.service() as registry:
        found, _ = calls.listing(registry, [kind_called(given[0]).name], timeout=_SECONDS)
    return [each.metadata.name for each in found]
