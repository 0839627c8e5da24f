# Weir: every target that a person types. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
PY := .venv/bin/python
PROTO_FILES = $(shell cd protos && find weir inference -name '*.proto' | sort)
SITE = $(shell $(PY) -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
PROTOC = $(PY) -m grpc_tools.protoc -Iprotos -I$(SITE)

.PHONY: help
help: ## Show this help.
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: protos
protos: ## Generate Python code from protos/ into protos/gen.
	rm -rf protos/gen && mkdir -p protos/gen
	$(PROTOC) --python_out=protos/gen --grpc_python_out=protos/gen --pyi_out=protos/gen $(PROTO_FILES)

.PHONY: protos-image
protos-image:
	@mkdir -p .weir/build
	$(PROTOC) --include_imports --include_source_info --descriptor_set_out=.weir/build/image.binpb $(PROTO_FILES)
