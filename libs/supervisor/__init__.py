"""A small process supervisor: ordered start by readiness, restart with back-off, clean stop of the whole tree.

Run as `python -m libs.supervisor SPEC.json`; steered over `control`. Decisions are pure (`policy`), the rest is I/O.
"""
