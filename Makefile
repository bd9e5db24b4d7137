# Every target except help and clean runs setup first.
.PHONY: help setup demo bench lint check test clean

help:
	@echo "make setup   make .venv with torch, undertow and the tools (2 to 3 minutes, once)"
	@echo "make demo    train the digits example on 4 local workers"
	@echo "make bench   measure undertow and torch DDP on emulated hosts (root, 3 minutes)"
	@echo "make test    lint, check types and run all tests (about 12 minutes on two cores)"
	@echo "make lint    check formatting and lint rules only"
	@echo "make check   check types only"
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
