"""What a model's file says of itself, for `weir models push`: signature and golden rows (`python -m
services.predictor.derive`)."""
