# Each target does its own set-up. `make` alone prints this list.
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast soak simulate lint fmt bench up docs docs-serve console pictures reference wheel lock clean

# Containers say so at times: then each of the hundreds of processes that the tests start, and each
# part of Penstock, compiles all of the Python that it imports.
unexport PYTHONDONTWRITEBYTECODE

PY := .venv/bin/python
ARGS ?=

help:  ## Print the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

.venv/.ready-demo: pyproject.toml requirements.lock scripts/setup
	@scripts/setup demo

.venv/.ready-dev: pyproject.toml requirements.lock scripts/setup
	@scripts/setup dev

setup: .venv/.ready-dev  ## Make the environment: .venv with the command .venv/bin/penstock

demo: .venv/.ready-demo  ## A year of flights in as events, out as SQL answers (ARGS=--chaos kills processes meanwhile)
	@.venv/bin/penstock demo $(ARGS)

# The class archive of Spark may be gone since the set-up: the cache keeps three. Without it, each JVM
# that a test starts takes eight more seconds of CPU time.
test: .venv/.ready-dev  ## Every test of behaviour, from nothing
	@scripts/setup postgres
	@scripts/setup zookeeper
	@scripts/setup browser
	@scripts/setup console
	@scripts/setup conformance
	@scripts/setup wheel
	@.venv/bin/penstock internal prepare-spark || echo "penstock setup: Spark has no class archive, so the tests take longer" >&2
	@$(PY) -m pytest -n 6 --no-loadscope-reorder --maxfail 10 -m "not lint" $(ARGS)

test-fast: .venv/.ready-dev  ## The tests that need neither Spark, PostgreSQL nor processes
	@$(PY) -m pytest -m "not spark and not postgres and not system and not conformance" $(ARGS)

soak: .venv/.ready-dev  ## Large counts, recorded in tests/soak (ARGS="sql-wall --total 100000")
	@$(PY) -m tests.soak.soak $(ARGS)

simulate: .venv/.ready-dev  ## Seeds of the simulated cluster (ARGS="--seeds 0:1000")
	@$(PY) -m tests.harness.cluster_simulation $(ARGS)

lint: .venv/.ready-dev  ## ruff, mypy strict, import contracts, sizes, names, sentences
	@scripts/setup console
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy
	@.venv/bin/lint-imports
	@$(PY) -m pytest -q -m lint tests/test_*.py

fmt: .venv/.ready-dev  ## Format the code
	@.venv/bin/ruff format .
	@.venv/bin/ruff check --fix-only -q .

bench: .venv/.ready-dev  ## One table of ours against a peer and a limit, measured in the same run
	@$(PY) -m benchmarks $(ARGS)

up: .venv/.ready-demo  ## Run Penstock in ./data (ARGS="--data-dir DIR …" for more)
	@.venv/bin/penstock up --data-dir data $(ARGS)

docs: .venv/.ready-dev  ## Build the manual, which `penstock up` serves at /docs
	@PYTHONPATH=scripts $(PY) -m manual

docs-serve: .venv/.ready-dev  ## Show the manual at http://127.0.0.1:8000, built anew at each change
	@PYTHONPATH=scripts NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs serve --no-strict $(ARGS)

console: .venv/.ready-dev  ## Build the console from the folder console
	@scripts/setup console
	@cd console && node build.mjs

pictures: .venv/.ready-dev  ## Take the screenshots of the tutorial of the console again
	@PENSTOCK_WRITE_PICTURES=1 $(PY) -m pytest -q tests/system/test_console_tutorial.py

reference: .venv/.ready-dev  ## Write the pages that are generated from the code: docs/reference and others
	@PYTHONPATH=scripts $(PY) -m reference

wheel: .venv/.ready-dev  ## Build dist/penstock_io-*.whl, with its bill of materials (*.cdx.json) beside it
	@PYTHONPATH=scripts $(PY) -m release dist

lock: .venv/.ready-dev  ## Resolve the dependencies anew into requirements.lock
	@.venv/bin/uv pip compile -q --universal --generate-hashes --no-emit-index-url --no-header --no-annotate \
		--python-version 3.11 --extra java --group dev pyproject.toml -o requirements.lock
	@.venv/bin/uv pip compile -q --universal --no-emit-index-url --no-header --annotation-style line \
		--python-version 3.11 --all-extras -c requirements.lock pyproject.toml -o scripts/release/runtime.lock
	@.venv/bin/uv pip compile -q --universal --generate-hashes --no-emit-index-url --no-header --no-annotate \
		--python-version 3.11 tests/conformance/clients/requirements.in -o tests/conformance/clients/requirements.lock
	@.venv/bin/uv pip compile -q --universal --generate-hashes --no-emit-index-url --no-header --no-annotate \
		--python-version 3.11 tests/conformance/clients/superset.in -o tests/conformance/clients/superset.lock
	@.venv/bin/uv pip compile -q --universal --generate-hashes --no-emit-index-url --no-header --no-annotate --no-deps \
		--python-version 3.11 tests/conformance/clients/airflow.in -o tests/conformance/clients/airflow.lock
	@.venv/bin/uv pip compile -q --universal --generate-hashes --no-emit-index-url --no-header --no-annotate \
		--python-version 3.11 tests/conformance/clients/engines.in -o tests/conformance/clients/engines.lock

clean:  ## Remove what the other targets made
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis demo-data build dist src/penstock/services/site
