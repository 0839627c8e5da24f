"""The text filter behind Weir's safety service: bounded patterns, whole texts and streams, one meaning for both.

Pure: no I/O, no clock, no grpc, no protobuf. `view` is what texts are compared as, `pattern` parses the bounded
regular-expression dialect, `automaton` turns many patterns into one lazily built automaton (linear time, nothing to
backtrack), `stream` filters a text that arrives in pieces, `pack` holds rules and compiles them per stage, `tokens`
puts tokens in the place of personal data and the values back.
"""

from libs.safety_filter.pack import Finding, Pack, PackError, Rule, Verdict, compile_pack, rules_from_json
from libs.safety_filter.pattern import PatternError, parse_pattern
from libs.safety_filter.stream import StreamFilter
from libs.safety_filter.tokens import Restorer, Tokens

__all__ = [
    "Finding",
    "Pack",
    "PackError",
    "PatternError",
    "Restorer",
    "Rule",
    "StreamFilter",
    "Tokens",
    "Verdict",
    "compile_pack",
    "parse_pattern",
    "rules_from_json",
]
