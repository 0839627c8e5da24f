"""A journal on the local disk that a killed process leaves whole: see README.md.

`form` is pure (bytes, and the fold that replays them); `files` is the folder: memory-mapped, locked, bounded.
"""

from libs.journal.files import Batch, Journal, JournalLockedError
from libs.journal.form import MAX_PAYLOAD, Opening

__all__ = ["MAX_PAYLOAD", "Batch", "Journal", "JournalLockedError", "Opening"]
