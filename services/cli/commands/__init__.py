"""One module per group of commands. gRPC and protos are imported inside the functions, so that `--help` is quick."""
