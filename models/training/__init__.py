"""Trains the demo models from text that the project writes and generates itself. Run `python -m models.training`."""
