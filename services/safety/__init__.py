"""What may be said? See README.md."""
