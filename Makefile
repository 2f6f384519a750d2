# `make demo` and `make test` work on a fresh machine with Python 3.11 or newer: each sets up $(VENV) by itself.
# Other folder or interpreter: make test VENV=/elsewhere PYTHON=python3.12. Arguments of the demo: make demo ARGS="--help".

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
ARGS ?=
SLOW ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install --quiet -c constraints.txt
TORCH := $(shell sed -n '/^torch==/p' constraints.txt)
STAMPS := $(VENV)/stamps
DEFINITION := pyproject.toml constraints.txt

# The two workers of pytest share two cores: one thread each, or they wait for one another.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

.DEFAULT_GOAL := help
.PHONY: help demo test lint format unit bench docs report-png clean
.DELETE_ON_ERROR:

help:
	@echo "make demo        the main job on real data inside the package: a table and an HTML report"
	@echo "make test        everything that CI checks: lint, then the tests (SLOW=1: the slow tests too)"
	@echo "make lint        ruff, pyright, import-linter"
	@echo "make format      let ruff format and repair what it can"
	@echo "make bench       step and prediction times, the peers too; results in build/bench"
	@echo "make docs        the documentation, in build/docs"
	@echo "make report-png  a picture of the report REPORT=path.html, drawn by Chromium"
	@echo "make clean       remove the set-up and everything built"

# Torch comes first and by itself, so that nothing else pulls in another build of it.
$(STAMPS)/core: $(DEFINITION)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version.split()[0] + "; try make PYTHON=python3.11")'
	@echo "Setting up $(VENV) with $(TORCH) (some minutes, once) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install --quiet $(TORCH)
	@$(INSTALL) -e .
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/test: $(STAMPS)/core tests/oracles.txt
	@echo "Adding the tools of the tests ..."
	@$(INSTALL) -e ".[test]"
	@$(PIP) install --quiet --no-deps -r tests/oracles.txt
	@touch $@

# Without what the peers ask for: two of them ask for torchvision, which would bring another build of torch.
$(STAMPS)/bench: $(STAMPS)/core benchmarks/requirements.txt
	@echo "Adding the peers ..."
	@$(PIP) install --quiet --no-deps -r benchmarks/requirements.txt
	@touch $@

$(STAMPS)/docs: $(STAMPS)/core
	@echo "Adding the tools of the documentation ..."
	@$(INSTALL) -e ".[docs]"
	@touch $@

demo: $(STAMPS)/core
	$(BIN)/singularbayes demo $(ARGS)

test: lint unit

unit: $(STAMPS)/test
	$(ONE_THREAD) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(if $(SLOW),-m "slow or not slow") $(ARGS)

lint: $(STAMPS)/test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports --no-cache

format: $(STAMPS)/test
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(STAMPS)/bench
	@mkdir -p build/bench
	$(BIN)/python benchmarks/steps.py --out build/bench/steps.json $(ARGS)
	$(BIN)/python benchmarks/peers.py --out build/bench/peers.json

docs: $(STAMPS)/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir build/docs

report-png:
	@test -n "$(REPORT)" || { echo "Say which report: make report-png REPORT=path/to/report.html"; exit 2; }
	@chromium=$$(command -v chromium || command -v chromium-browser || command -v google-chrome) \
	  || { echo "Chromium is needed to draw the report; install it with the system's package manager"; exit 2; }; \
	"$$chromium" --headless --no-sandbox --disable-gpu --disable-background-networking --hide-scrollbars \
	  --window-size=1200,3600 --screenshot="$(abspath $(basename $(REPORT))).png" "file://$(abspath $(REPORT))" \
	  && echo "$(basename $(REPORT)).png"

clean:
	rm -rf $(VENV) build dist site .pytest_cache .ruff_cache .hypothesis
