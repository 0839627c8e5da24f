"""The demo models and the pipeline that trains them."""
