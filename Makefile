# `make` alone prints this help. Every target but `run` works in .venv with the tools of the extras test and dev.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
GOLDENS := $(patsubst %/pipeline.py,%/golden,$(wildcard pipelines/*/pipeline.py))

.PHONY: help run install test lint format generate golden verify component clean

help: ## Print this help
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## From data to a served, priced model on this machine; options of `tunesmith run` in ARGS="--keep-serving"
	@$(PYTHON) scripts/environment.py local
	@mkdir -p .tunesmith
	@$(BIN)/tunesmith run llm_finetune --json .tunesmith/summary.json $(ARGS)

install: ## Make .venv with everything, for work on tunesmith itself
	@$(PYTHON) scripts/environment.py local,test,dev

test: install ## Run the tests; some of them in ARGS="tests/unit -k gate"
	$(BIN)/pytest $(ARGS)

lint: install ## Check style, types, contracts of the imports, and generated files; changes nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python scripts/wheel.py
	$(BIN)/python scripts/generate.py

format: install ## Put the style in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

generate: install ## Write what is derived from the source: pages, component.yaml, goldens
	$(BIN)/python scripts/generate.py --fix

golden: install ## Write the pipelines' goldens; one of them with ONLY=llm_finetune
	$(BIN)/python scripts/generate.py --fix $(if $(ONLY),pipelines/$(ONLY)/golden,$(GOLDENS))

verify: generate lint ## Generate, check, and fail if that changed a file or made a new one
	@changed=$$(git status --porcelain -- components pipelines docs); \
	if [ -n "$$changed" ]; then echo "$$changed"; echo "Commit what 'make generate' wrote."; exit 1; fi

component: install ## Write a new component that runs: CATEGORY=data NAME=count_words
	@$(BIN)/python scripts/skeleton.py "$(CATEGORY)" "$(NAME)"

clean: ## Remove caches and builds; keeps .venv and the runs in .tunesmith
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
