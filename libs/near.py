"""What may have been meant by a word that is not known."""

from __future__ import annotations

from collections.abc import Iterable


def near(word: str, known: Iterable[str], *, tell: bool = False) -> str:
    """The end of a message, "; did you mean get?"; where nothing is near it is empty.

    Whoever mistypes a word mostly begins it right: another first letter needs more of the rest.

    :param tell: say all that is known where nothing is near: "; there are get, set".
    """
    from difflib import get_close_matches

    words = list(known)
    alike = [each for each in get_close_matches(word, words) if each[:1] == word[:1]]
    found = alike or get_close_matches(word, words, 1, 0.8)
    if found:
        return f"; did you mean {found[0]}?"
    return f"; there are {', '.join(words)}" if tell else ""
