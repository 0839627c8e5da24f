"""The predictor: unary predictions over the Open Inference Protocol, batched across callers."""
