"""Text ⇄ tokens: chat templates, tokenisation, incremental detokenisation, and the files of model versions that they
need. CPU work that workers must not do."""

from libs.texts.detokenizer import ByteDetokenizer, Detokenizer, byte_alphabet
from libs.texts.model import ChatMessage, TextModel, TextModelError
from libs.texts.store import TextStore

__all__ = [
    "ByteDetokenizer",
    "ChatMessage",
    "Detokenizer",
    "TextModel",
    "TextModelError",
    "TextStore",
    "byte_alphabet",
]
