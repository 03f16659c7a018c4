# Pinrail. `make demo` and `make test` set up everything they need; `make help` lists the rest.
#
# What can be made again is kept outside the checkout, in $PINRAIL_CACHE (~/.cache/pinrail), by content.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

export PINRAIL_CACHE ?= $(HOME)/.cache/pinrail

PYTHON ?= python3
UV := $(PINRAIL_CACHE)/uv/$(shell sha256sum requirements/uv.txt | cut -c1-12)/bin/uv
BIN := .venv/bin
LOCKS := requirements/dev.txt requirements/build.txt
NATIVE := kernels/pinrail_kernels/_native.so
CLUSTER := $(PYTHON) e2e/cluster/cluster.py
EXAMPLE := crds/examples/smollm2.yaml
PORT ?= 8000

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

# ---- the two commands of the README

.PHONY: demo
demo: .venv/.ready $(NATIVE) model ## serve the pinned model here and ask it something (first time 2-4 min, then seconds)
	@$(BIN)/pinrail up $(EXAMPLE) --port $(PORT) --ask "What is the capital of France?"

.PHONY: test
test: lint test-unit test-api e2e ## all three layers, real cluster included (cold machine about 25 min)

# ---- the layers of tests

# Files of tests beside one another. Those of faults measure times, and run alone.
BESIDE := -n 2 --dist loadfile

.PHONY: test-fast
test-fast: lint test-unit ## lint, types, layers, unit and property tests

.PHONY: test-unit
test-unit: .venv/.ready $(NATIVE) model
	PINRAIL_REQUIRE_MODEL=1 $(BIN)/python -m pytest $(BESIDE) -m "not apiserver" tests

.PHONY: test-isa
test-isa: .venv/.ready $(NATIVE) model ## the engine's tests with each instruction set forced, and without the C++ kernels
	for isa in none $$($(BIN)/python -c "from pinrail_kernels.native import Native; print(*Native(1).isas)"); do \
		echo "PINRAIL_ISA=$$isa"; \
		PINRAIL_ISA=$$isa PINRAIL_REQUIRE_MODEL=1 $(BIN)/python -m pytest -q tests/engine tests/kernels || exit 1; \
	done

.PHONY: test-api
test-api: .venv/.ready apiserver ## the API-server layer: etcd and kube-apiserver alone
	$(BIN)/python -m pytest $(BESIDE) -m apiserver -k "not faults" tests
	$(BIN)/python -m pytest -m apiserver -k faults tests

.PHONY: test-faults
test-faults: .venv/.ready apiserver ## the faults among them in full: long outages, 20 kills, 1,000 services (25 min)
	PINRAIL_FAULTS=full $(BIN)/python -m pytest -m apiserver tests/apiserver -k faults

.PHONY: e2e
e2e: .venv/.ready model cluster images ## the real cluster, real images, the real model
	code=0; $(CLUSTER) exec -- $(CURDIR)/$(BIN)/python -m pytest e2e || code=$$?; $(CLUSTER) down; exit $$code

.PHONY: lint
lint: .venv/.ready ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# ---- what they need

.venv/.ready: pyproject.toml $(LOCKS) $(UV)
	@echo "setting up .venv (torch is large: about 1 minute the first time, seconds after)"
	@$(UV) venv --quiet --allow-existing --python $(PYTHON) .venv
	@$(UV) pip sync --quiet --python $(BIN)/python --require-hashes $(LOCKS)
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

.PHONY: native
native: $(NATIVE) ## the C++ kernels, built when a source has changed (about 20 s); none without a compiler

# Taken away first: whoever runs with the old library keeps it. Where none is made, cmake says why, each time.
$(NATIVE): $(wildcard kernels/native/*) | .venv/.ready
	@echo "building the C++ kernels (about 20 s)"
	@$(BIN)/cmake -G Ninja -S kernels/native -B build/native -D CMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja >/dev/null
	@$(BIN)/cmake --build build/native -- --quiet
	@rm -f $@
	@$(BIN)/cmake --install build/native --prefix kernels >/dev/null
	@touch --no-create $@

$(UV): requirements/uv.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Pinrail needs Python 3.11 or newer: make PYTHON=python3.x")'
	@$(PYTHON) -m venv $(dir $(UV))..
	@$(dir $(UV))pip install --quiet --require-hashes --requirement requirements/uv.txt
	@touch $(UV)

.PHONY: model
model: .venv/.ready ## the demonstration model, pinned (about 20 s the first time)
	@$(BIN)/python demo/model.py

.PHONY: apiserver
apiserver: ## etcd, kube-apiserver, its controllers and helm (built once: about 9 min)
	@$(PYTHON) e2e/cluster/parts.py apiserver

.PHONY: cluster
cluster: ## start the one-node Kubernetes (its programs are built once: about 8 min)
	@$(PYTHON) e2e/cluster/parts.py all
	@$(CLUSTER) up

.PHONY: images
images: cluster ## build the images from images/*/Dockerfile and hand them to the cluster
	@$(PYTHON) e2e/cluster/images.py build

.PHONY: cluster-down
cluster-down: ## stop the one-node Kubernetes
	@$(CLUSTER) down

# ---- for developers

.PHONY: format
format: .venv/.ready ## put files into the common format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: chart-crds
chart-crds: ## copy crds/ into the chart
	cp crds/*.yaml charts/pinrail/crds/

.PHONY: docs
docs: .venv/.ready ## write docs/reference.md from crds/
	$(BIN)/python docs/reference.py

COMPILE := $(UV) pip compile --quiet --generate-hashes --no-header --no-annotate --no-emit-index-url --python-version 3.11

.PHONY: lock
lock: $(UV) ## lock what pyproject.toml asks for; UPGRADE=--upgrade takes the newest of everything
	$(COMPILE) $(UPGRADE) pyproject.toml --extra operator --extra cpu --extra tools --extra bench --extra dev -o requirements/dev.txt
	$(COMPILE) pyproject.toml --extra cpu -c requirements/dev.txt -o requirements/engine-cpu.txt
	$(COMPILE) pyproject.toml --extra gpu -c requirements/dev.txt -o requirements/engine-gpu.txt
	$(COMPILE) pyproject.toml --extra operator -c requirements/dev.txt -o requirements/operator.txt
	$(COMPILE) $(UPGRADE) pyproject.toml --extra audit -o requirements/audit.txt
	printf '%s\n' scikit-build-core cmake ninja | $(COMPILE) $(UPGRADE) - -c requirements/dev.txt -o requirements/build.txt

AUDIT := $(PINRAIL_CACHE)/audit/$(shell sha256sum requirements/audit.txt | cut -c1-12)/bin/pip-audit

.PHONY: audit
audit: $(AUDIT) ## ask the package index for known faults of everything that is locked; no part of `make test`
	@$(PYTHON) requirements/audit.py $(AUDIT) requirements/*.txt

$(AUDIT): requirements/audit.txt | $(UV)
	@$(UV) venv --quiet --allow-existing --python $(PYTHON) $(dir $(AUDIT))..
	@$(UV) pip sync --quiet --python $(dir $(AUDIT))python --require-hashes requirements/audit.txt
	@touch $(AUDIT)

.PHONY: bench-operator
bench-operator: .venv/.ready apiserver ## the operator's imports and its memory while it does nothing
	@$(BIN)/python tests/apiserver/bench_operator.py

.PHONY: bench
bench: .venv/.ready $(NATIVE) model ## the engine's speed on this machine
	$(BIN)/pinrail bench cpu --manifest $(EXAMPLE) --model-dir $(PINRAIL_CACHE)/volumes/models/smollm2-135m-instruct

.PHONY: laws
laws: .venv/.ready ## the scheduler's laws over five million random steps (about half an hour)
	PINRAIL_LAW_STEPS=5000000 $(BIN)/python -m pytest tests/engine/core/test_laws.py
