# The project's commands. System packages needed: python3 (3.11 or later), make, and for the tests redis-server (root gets
# it installed); everything else goes into .venv.

CONFIG ?= deploy/fleet.example.yaml
HOST ?= 127.0.0.1
PORT ?= 8900
ARGS ?=

# Percent of statements and branches that the whole of the tests must reach. Raise it with the tests, do not lower it.
COVERAGE := 90

SECONDS ?= 60
NATIVE_TESTS := tests/index/test_native.py tests/index/test_block_cores.py tests/index/test_block_golden.py \
	tests/index/test_block_pools.py tests/index/test_dump.py tests/index/test_radix.py tests/index/test_radix_cores.py \
	tests/index/test_radix_golden.py tests/index/test_radix_payload.py

PYTHON := .venv/bin/python
PIP := $(PYTHON) -m pip --disable-pip-version-check
STAMP := .venv/.installed

.PHONY: help install run demo test check check-native fuzz-native bench lock clean redis
.DEFAULT_GOAL := help

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile

install: $(STAMP)  ## make .venv with the locked packages and this project in it; redis-server for the tests
	@sh deploy/install_redis.sh optional

run: $(STAMP)  ## start the router: make run CONFIG=fleet.yaml HOST=0.0.0.0 PORT=8900
	@exec .venv/bin/kvroute serve --config "$(CONFIG)" --host "$(HOST)" --port "$(PORT)"

demo: $(STAMP)  ## show cache-aware routing from end to end: make demo ARGS=--keep
	@exec $(PYTHON) -m deploy.demo $(ARGS)

test: $(STAMP) redis  ## every test, with branch coverage; or some: make test ARGS=tests/index
	$(PYTHON) -m pytest -n 3 --cov --cov-report=term:skip-covered $(or $(ARGS),--cov-fail-under=$(COVERAGE))

check: $(STAMP)  ## format, lint, types, import directions, installed versions
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy
	.venv/bin/lint-imports
	$(PIP) check

check-native: $(STAMP)  ## the native core's tests over a build with AddressSanitizer and UBSan
	cmake -S . -B build/sanitize -DKVROUTE_SANITIZE=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo \
		-DPython_EXECUTABLE="$(abspath $(PYTHON))" >/dev/null
	cmake --build build/sanitize --parallel 2
	KVROUTE_CORE_FILE="$$(ls build/sanitize/_core.*.so)" KVROUTE_CORE=native PYTHONMALLOC=malloc \
		ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
		LD_PRELOAD="$$($${CXX:-g++} -print-file-name=libasan.so) $$($${CXX:-g++} -print-file-name=libubsan.so) $$($${CXX:-g++} -print-file-name=libstdc++.so)" \
		$(PYTHON) -m pytest -p tests.support.core_file $(or $(ARGS),$(NATIVE_TESTS))

fuzz-native: $(STAMP)  ## libFuzzer over each engine's event payloads for SECONDS (needs clang): make fuzz-native SECONDS=600
	cmake -S . -B build/fuzz -DKVROUTE_FUZZ=ON -DKVROUTE_SANITIZE=ON -DCMAKE_CXX_COMPILER=clang++ >/dev/null
	cmake --build build/fuzz --parallel 2
	$(PYTHON) -m tests.fuzz.seeds build/fuzz/corpus
	mkdir -p build/fuzz/corpus/table
	@set -e; for name in table payload sglang_payload; do \
		build/fuzz/tests/fuzz/fuzz_$$name -max_total_time=$(SECONDS) -max_len=4096 -print_final_stats=1 \
			build/fuzz/corpus/$$name; \
	done

bench: $(STAMP) redis  ## every script in benchmarks/ (but servers that one of them starts)
	@set -e; for script in $$(grep -l __main__ benchmarks/*.py | grep -v _server.py); do \
		name=$$(basename "$$script" .py); \
		echo "== $$name"; \
		$(PYTHON) -m "benchmarks.$$name"; \
	done

lock: $(PYTHON)  ## resolve pyproject.toml anew into requirements.lock (needs the package index)
	$(PYTHON) -m venv --clear build/lock
	build/lock/bin/python -m pip --disable-pip-version-check install --quiet uv
	build/lock/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --extra dev \
		--no-annotate --no-header --output-file requirements.lock pyproject.toml

redis:
	@sh deploy/install_redis.sh

clean:  ## remove .venv, caches and build products
	rm -rf .venv build dist *.egg-info .coverage .coverage.* htmlcov
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml requirements.lock CMakeLists.txt $(wildcard index/core/*.cpp index/core/*.h) | $(PYTHON)
	$(PIP) install --quiet --requirement requirements.lock
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch "$@"

$(PYTHON):
	@sh deploy/make_venv.sh
