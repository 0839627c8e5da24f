"""What happened, provably? See README.md."""
