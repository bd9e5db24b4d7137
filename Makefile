# Everything a newcomer types. Each target sets up what it needs.
.PHONY: help setup demo bench lint check test clean

help:
	@echo "make demo    train the digits example on 4 local workers"
	@echo "make bench   measure beside torch DDP on emulated hosts (root, 3 minutes)"
	@echo "make test    lint, type check and all tests (about 12 minutes on two cores)"
	@echo "make lint    formatting and lint rules only"
	@echo "make clean   remove .venv and everything generated"

setup:
	@scripts/setup

demo: setup
	@echo "==> demo: undertow run -n 4 --quiet-ranks examples/digits.py"
	@.venv/bin/undertow run -n 4 --quiet-ranks examples/digits.py

bench: setup
	@mkdir -p build
	@echo "==> bench: undertow bench --preset quick --out build/bench.json"
	@.venv/bin/undertow bench --preset quick --out build/bench.json

lint: setup
	@scripts/lint

check: setup
	@scripts/check

test: setup
	@scripts/all

clean:
	@echo "==> clean: removing .venv, builds and caches"
	@rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
