"""The gate's tests (bin/test): run to their end, what failed once more alone, and all of it told in one table."""
