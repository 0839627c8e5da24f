"""Text ⇄ tokens: chat templates, tokenisation, incremental detokenisation. CPU work that workers must not do."""

from services.gateway.text.detokenizer import Detokenizer
from services.gateway.text.model import TextModel, TextModelError

__all__ = ["Detokenizer", "TextModel", "TextModelError"]
