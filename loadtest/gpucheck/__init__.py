"""The torch engine checked on a machine that has nothing but Python, torch and numpy: see `__main__.py`."""
