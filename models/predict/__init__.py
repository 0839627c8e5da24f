"""Trains the demo models of the unary plane from data inside the packages. Run `python -m models.predict`."""
