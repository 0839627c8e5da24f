"""Parts of `loadtest.bench_predict`: the models, a predictor in a process of its own, and its callers."""
