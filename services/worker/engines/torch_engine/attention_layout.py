"""How the attention kernel is called: what its caller and its source both know, without the compiler."""

from __future__ import annotations

LANES = 16
"""Numbers that are computed at once; the width of a head is a multiple of it."""

WRITE, ATTEND = 1, 2
"""What a task may say is to be done; both, as their sum."""

# The fields of a call's arguments, all int64: two counters the threads draw from, addresses, distances in bytes; of the
# last two, the lower half is a float32.
# fmt: off
(NEXT_TASK, NEXT_THREAD, LAST_TASK, TASKS, SEGMENTS, TABLES, TABLE_STRIDE, ARENA, BLOCK, QUERY, QUERY_STRIDE, KEY,
 KEY_STRIDE, VALUE, VALUE_STRIDE, OUT, SCRATCH, SCRATCH_SIZE, SCORES, WINDOW, SCALE, CAP,
 FIELDS) = range(23)
# fmt: on
