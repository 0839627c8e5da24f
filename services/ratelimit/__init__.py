"""May this tenant spend this now? See README.md."""
