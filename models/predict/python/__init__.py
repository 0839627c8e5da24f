"""Python steps of the demo models, as they run in the predictor's sandbox."""
