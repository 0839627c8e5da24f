"""Which of a model's chat templates is used: where it stands, and which of several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from libs.chat_template.template import TemplateError

DEFAULT = "default"


def chosen(alone: bytes | None, config: Mapping[str, Any], older: Mapping[str, Any]) -> str:
    """The source, as transformers finds it; "" when there is none.

    :param alone: the file `chat_template.jinja`, which counts before
    :param config: `tokenizer_config.json`, and this before
    :param older: `chat_template.json`.
    :raises TemplateError: it is no text, or there are several with names and none is the default.
    """
    if alone is not None:
        try:
            return alone.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise TemplateError("chat_template.jinja is no UTF-8") from None
    found = config.get("chat_template") or older.get("chat_template") or ""
    if isinstance(found, list):
        named = {str(each.get("name")): each.get("template") for each in found if isinstance(each, Mapping)}
        found = named.get(DEFAULT)
        if found is None:
            raise TemplateError(f"of the templates {', '.join(sorted(named))} none is called {DEFAULT}")
    if not isinstance(found, str):
        raise TemplateError("the chat template is no text")
    try:
        found.encode()
    except UnicodeEncodeError:
        raise TemplateError("the chat template has half a surrogate pair") from None
    return found.removeprefix("\ufeff")
