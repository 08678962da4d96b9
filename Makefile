# Every target sets itself up: it creates .venv inside the project and installs exactly requirements.lock there,
# whose hashes pip checks and which lists every dependency, then torch.
.PHONY: install demo test test-slow test-asan prove lint bench wheels docs clean
.DEFAULT_GOAL := install
SHELL := /bin/bash

BIN := .venv/bin
STAMP := .venv/.installed
PIP := $(BIN)/python -m pip --quiet --quiet --disable-pip-version-check
# Two processes with one thread each are as fast as one with two, and the results do not depend on the number of cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal --durations=10

install: $(STAMP)

$(STAMP): requirements.lock requirements-torch.txt pyproject.toml
	@set -e; \
	if [ ! -x $(BIN)/python ]; then \
	  for python in $(PYTHON) python3.11 python3 python3.12 python3.13 none; do \
	    "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; \
	  done; \
	  if [ "$$python" = none ]; then echo "linnet needs Python 3.11 or newer: make PYTHON=/path/to/python3.11" >&2; exit 1; fi; \
	  echo "[1/3] creating .venv with $$("$$python" --version)"; \
	  "$$python" -m venv .venv || { rm -rf .venv; echo "python -m venv failed: install python3-venv" >&2; exit 1; }; \
	fi; \
	echo "[2/3] installing torch and $$(grep -c == requirements.lock) other packages into .venv (a few minutes, only once)"; \
	$(PIP) install --no-deps --require-hashes -r requirements.lock; \
	$(PIP) install -r requirements-torch.txt; \
	echo "[3/3] installing linnet itself, editable"; \
	$(PIP) install --no-deps --no-build-isolation -e .; \
	touch $(STAMP)

demo: $(STAMP)
	@$(BIN)/linnet demo

test: lint
	@$(PYTEST) -q

test-slow: $(STAMP)
	@$(PYTEST) -q -m slow --timeout 1800

# Run the tests of the kernels with AddressSanitizer: a wrapper named c++ adds the flag. libstdc++ is preloaded too, because
# otherwise the sanitizer cannot handle the exceptions that torch throws.
test-asan: $(STAMP)
	@set -e; dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; \
	printf '#!/bin/sh\nunset LD_PRELOAD\nexec g++ -fsanitize=address -fno-omit-frame-pointer -g "$$@"\n' > "$$dir/c++"; chmod +x "$$dir/c++"; \
	PATH="$$dir:$$PATH" XDG_CACHE_HOME="$$dir" ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" \
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/ops/cpu/test_linear.py tests/ops/cpu/test_exponential.py \
	tests/ops/cpu/test_block.py tests/ops/cpu/test_features.py tests/ops/cpu/test_exp_block.py \
	tests/ops/test_glu.py tests/ops/test_dropout.py tests/ops/test_positions.py tests/attention/test_step.py \
	-k "not memory and not compiles"

# Try every promise of docs/reliability.md, two at a time, and write its record and table. Takes up to 40 minutes.
prove: $(STAMP)
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.prove

lint: $(STAMP)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/mypy

# A pure wheel, the sdist, and a wheel with prebuilt kernels for this platform. auditwheel puts the OpenMP library beside
# the kernels and names the oldest C library on which they run.
wheels: $(STAMP)
	@set -e; rm -rf dist build/wheel; \
	$(BIN)/python -m hatchling build -t sdist -t wheel -d dist >/dev/null; \
	echo "compiling the kernels of three levels of x86-64 (about a minute)"; \
	LINNET_PREBUILT=1 $(BIN)/python -m hatchling build -t wheel -d build/wheel >/dev/null; \
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m auditwheel repair --strip -w dist build/wheel/*.whl; \
	ls -l dist

# The pages and the API reference as a website; a warning, such as a link that leads nowhere, is an error.
docs: $(STAMP)
	@$(BIN)/python -m mkdocs build --quiet --strict

# Libraries that do not install are left out of the tables.
bench: $(STAMP)
	@$(PIP) install --no-build-isolation -c <(grep -oh '^[^# ]*==[^ ;]*' requirements*.*) -e '.[peers]' || echo "continuing without the other libraries" >&2
	@$(BIN)/linnet bench ops model decode profile --out docs/benchmarks

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find linnet tests -name __pycache__ -type d -prune -exec rm -rf {} +
