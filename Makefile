# The project's commands. System packages needed: python3 (3.11 or later) and make; for the tests and `make stack` those in
# PACKAGES too (root gets them installed, others are told); everything else goes into .venv.

CONFIG ?= deploy/fleet.example.yaml
HOST ?= 127.0.0.1
PORT ?= 8900
ARGS ?=

# Percent of statements and branches that the whole of the tests must reach. Raise it with the tests, do not lower it.
COVERAGE := 90

SECONDS ?= 60
PURE_TESTS := tests/index/test_native.py tests/index/test_block_pools.py tests/index/test_radix.py tests/index/test_dump.py \
	tests/router tests/app/test_route_api.py tests/app/test_short_http.py tests/app/test_cases.py
NATIVE_TESTS := tests/index/test_native.py tests/index/test_block_hash.py tests/index/test_block_digest.py \
	tests/index/test_block_check.py tests/index/test_block_cores.py tests/index/test_block_golden.py \
	tests/index/test_block_pools.py tests/index/test_dump.py tests/index/test_radix.py tests/index/test_radix_cores.py \
	tests/index/test_radix_golden.py tests/index/test_radix_payload.py tests/engine/test_live_run.py \
	tests/router/test_assignment_book.py tests/router/test_predictions.py tests/router/test_request_log.py \
	tests/router/test_standing_table.py tests/app/test_known_heads.py

PYTHON := .venv/bin/python
PIP := $(PYTHON) -m pip --disable-pip-version-check
STAMP := .venv/.installed

# What the tests and the stack run, and what checks docker-compose.yml. Their services are not started.
PACKAGES := redis-server redis-tools nginx libnginx-mod-http-js prometheus wget
COMPOSE_PACKAGES := docker-compose

.PHONY: help install run demo stack test check check-compose check-native sanitized check-pure fuzz-native bench lock clean packages test-packages torch litellm
.DEFAULT_GOAL := help

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile

install: $(STAMP)  ## make .venv with the locked packages and this project in it; what the tests and the stack run
	@sh deploy/install_packages.sh --optional $(PACKAGES)

run: $(STAMP)  ## start the router: make run CONFIG=fleet.yaml HOST=0.0.0.0 PORT=8900
	@exec .venv/bin/kvroute serve --config "$(CONFIG)" --host "$(HOST)" --port "$(PORT)"

demo: $(STAMP)  ## show cache-aware routing from end to end: make demo ARGS=--keep
	@exec $(PYTHON) -m deploy.demo $(ARGS)

stack: $(STAMP) packages  ## routers, engines, gateway, Redis, Prometheus of docker-compose.yml without containers: make stack ARGS=--check
	@exec $(PYTHON) -m deploy.stack $(ARGS)

test: $(STAMP) test-packages  ## every test, with branch coverage; or some: make test ARGS=tests/index
	$(PYTHON) -m pytest -n 3 --dist loadgroup --cov --cov-report=term:skip-covered $(or $(ARGS),--cov-fail-under=$(COVERAGE))

check: $(STAMP) check-compose  ## format, lint, types, import directions, container files, installed versions
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy
	.venv/bin/lint-imports
	.venv/bin/hadolint deploy/docker/*.Dockerfile
	$(PIP) check

check-compose: $(STAMP)  ## docker-compose.yml read by a real compose, in both profiles
	@if [ "$$(id -u)" -eq 0 ] || command -v docker-compose >/dev/null; then \
		sh deploy/install_packages.sh $(COMPOSE_PACKAGES) && $(PYTHON) -m deploy.stack.compose_check; \
	else \
		echo "docker-compose.yml is not checked: there is no docker-compose (sudo apt-get install docker-compose)"; \
	fi

sanitized: $(STAMP)
	cmake -S . -B build/sanitize -DKVROUTE_SANITIZE=ON -DCMAKE_BUILD_TYPE=Debug \
		-DPython_EXECUTABLE="$(abspath $(PYTHON))" >/dev/null
	cmake --build build/sanitize --parallel 2

check-native: sanitized  ## the native core's tests over a build with AddressSanitizer and UBSan
	KVROUTE_CORE_FILE="$$(ls build/sanitize/_core.*.so)" KVROUTE_CORE=native PYTHONMALLOC=malloc \
		ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
		LD_PRELOAD="$$($${CXX:-g++} -print-file-name=libasan.so) $$($${CXX:-g++} -print-file-name=libubsan.so) $$($${CXX:-g++} -print-file-name=libstdc++.so)" \
		$(PYTHON) -m pytest -n 2 -k 'not python' -p tests.support.core_file $(or $(ARGS),$(NATIVE_TESTS))

check-pure: $(STAMP)  ## what an install without a compiler gives: the Python core, told in its log and in /healthz
	rm -rf build/pure && $(PYTHON) -m venv build/pure
	echo "$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
		>"$$(build/pure/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/needed.pth"
	CC=/no/compiler CXX=/no/compiler build/pure/bin/python -m pip --disable-pip-version-check install --quiet \
		--no-deps --no-build-isolation .
	cd build/pure && bin/python -c 'from index.native import CORE; assert CORE.name == "python", CORE; print(CORE.reason)'
	build/pure/bin/python -m pytest -n 2 $(or $(ARGS),$(PURE_TESTS))

fuzz-native: $(STAMP)  ## libFuzzer over event payloads, bodies and the table, each for SECONDS (needs clang): make fuzz-native SECONDS=600
	cmake -S . -B build/fuzz -DKVROUTE_FUZZ=ON -DKVROUTE_SANITIZE=ON -DCMAKE_CXX_COMPILER=clang++ >/dev/null
	cmake --build build/fuzz --parallel 2
	$(PYTHON) -m tests.fuzz.seeds build/fuzz/corpus
	mkdir -p build/fuzz/corpus/table build/fuzz/corpus/token_list build/fuzz/corpus/request_head
	printf '{"model":"m","token_ids":[1, 23,4567890]}' >build/fuzz/corpus/token_list/first
	printf 'POST /route HTTP/1.1\r\nContent-Length: 23\r\n\r\n' >build/fuzz/corpus/request_head/first
	@set -e; for name in table payload sglang_payload token_list request_head; do \
		build/fuzz/tests/fuzz/fuzz_$$name -max_total_time=$(SECONDS) -max_len=4096 -print_final_stats=1 \
			build/fuzz/corpus/$$name; \
	done

bench: $(STAMP) packages  ## every script in benchmarks/ (but servers that one of them starts, and what needs real engines)
	@set -e; for script in $$(grep -l __main__ benchmarks/*.py | grep -v -e _server.py -e compare_live.py -e availability_live.py); do \
		name=$$(basename "$$script" .py); \
		echo "== $$name"; \
		$(PYTHON) -m "benchmarks.$$name"; \
	done

torch: $(STAMP)  ## the CPU engine's model: torch into .venv, with all other versions as they are locked
	$(PIP) install --quiet --constraint requirements.lock torch==2.13.0

litellm: $(STAMP)  ## what the LiteLLM example and its tests need, with all other versions as they are locked
	$(PIP) install --quiet --constraint requirements.lock "litellm>=1.108"

lock: $(PYTHON)  ## resolve pyproject.toml anew into requirements.lock (needs the package index)
	$(PYTHON) -m venv --clear build/lock
	build/lock/bin/python -m pip --disable-pip-version-check install --quiet uv
	build/lock/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --extra dev \
		--no-annotate --no-header --output-file requirements.lock pyproject.toml

packages:
	@sh deploy/install_packages.sh $(PACKAGES)

test-packages:
	@sh deploy/install_packages.sh $(PACKAGES) $(COMPOSE_PACKAGES)

clean:  ## remove .venv, caches and build products
	rm -rf .venv build dist *.egg-info .coverage .coverage.* htmlcov
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml requirements.lock CMakeLists.txt $(wildcard index/core/*.cpp index/core/*.h) | $(PYTHON)
	@echo "Installing the locked packages and building the native core: one to two minutes"
	@$(PIP) install --quiet --requirement requirements.lock
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch "$@"

$(PYTHON):
	@sh deploy/make_venv.sh
