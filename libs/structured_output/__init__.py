"""What an output must match, checked and compiled in one way by those who accept it and those who enforce it."""

from libs.structured_output.grammar import (
    MAX_BYTES,
    Kind,
    StructureError,
    check,
    compile_matcher,
    explain,
    regex_of,
    unforced,
)

__all__ = ["MAX_BYTES", "Kind", "StructureError", "check", "compile_matcher", "explain", "regex_of", "unforced"]
