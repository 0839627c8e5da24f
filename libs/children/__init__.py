"""Fresh Python processes that belong to one parent: they share a socket pair with it and end with it.

`spawning.py` is the parent's half, `child.py` what the process does first; `alone.py` runs a module once, on what a
stranger has made.
"""
