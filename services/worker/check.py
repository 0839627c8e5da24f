"""`python -m services.worker.check`: what engines and the gateway would say of a model's folder, in a process that may
be lost: the folder may be a stranger's, and libraries parse what lies in it.

One JSON object from standard input, one to standard output:

    {"folder": "…", "paths": ["config.json", …], "context": 8192}
    {"verdicts": [{"engine": "torch", "reasons": ["…"], "notes": ["…"], "weight_bytes": 1, …}], "notes": ["…"]}

`paths` are the files that make the version. It needs no torch.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path

from libs.artifacts.files import FolderError
from libs.artifacts.folder import not_kept, try_template
from libs.texts import TextModel, TextModelError
from services.worker.engines.servable import verdicts
from services.worker.model_files import ModelFiles

SECONDS = 120
"""Of processor time."""
MEMORY = 8 << 30
"""Bytes of address space."""
_TEXTS = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("chat_template.jinja", "chat_template.json"),
)
_MADE_BY = "AutoTokenizer.from_pretrained(folder).save_pretrained(folder) of transformers makes it"


def main() -> int:
    """The command; its exit status."""
    for what, most in ((resource.RLIMIT_CPU, SECONDS), (resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(what, (most, most))
    asked = json.load(sys.stdin)
    folder, context = Path(asked["folder"]), int(asked["context"])
    paths = frozenset(asked["paths"])
    reasons, notes = texts(folder, paths)
    try:
        notes += not_kept(folder, paths)
    except FolderError as error:
        reasons.append(str(error))
    found = [asdict(each) for each in verdicts(ModelFiles(folder), context, reasons)]
    json.dump({"verdicts": found, "notes": notes}, sys.stdout)
    return 0


def texts(folder: Path, paths: Collection[str]) -> tuple[list[str], list[str]]:
    """Why the gateway could not make prompts of texts and texts of tokens with these files, and what else there is to
    know; the template is tried as it is when a version is pushed."""
    reasons, notes = [], []
    try:
        if not try_template(folder, paths):
            notes.append("no chat template: completions alone, no chats")
    except FolderError as error:
        return [str(error)], notes
    try:
        TextModel({name: (folder / name).read_bytes() for name in _TEXTS if name in paths})
    except TextModelError as error:
        missing = str(error).endswith("is missing")
        reasons.append(f"{error}; {_MADE_BY}" if missing else str(error))
    return reasons, notes


if __name__ == "__main__":
    sys.exit(main())
