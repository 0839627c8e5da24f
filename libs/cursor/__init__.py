"""Signed ids of a stream's events, with which a reader that lost its stream has it continued, at any gateway.

`Trail` makes them while a stream is written, `read_cursor` reads what came back. See
docs/adr/0035-streams-that-outlive-the-front-door.md.
"""

from libs.cursor.cursor import MAX_ID_CHARS, Cursor, Origin, Position, Trail, read_cursor
from libs.cursor.keyring import Keyring, KeyringFile, new_key

__all__ = [
    "MAX_ID_CHARS",
    "Cursor",
    "Keyring",
    "KeyringFile",
    "Origin",
    "Position",
    "Trail",
    "new_key",
    "read_cursor",
]
