# Two commands: `make demo` and `make test`. Both install what they need.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed$(if $(LOCKED),-locked)

.PHONY: help demo test test-all test-kernels lint docs constraints sbom clean

help:
	@echo "make demo      set up, then plan, compare and train on data that comes with fedgap"
	@echo "make test      set up, then lint, type-check and test"
	@echo "make lint      ruff, and mypy on src/ and tools/"
	@echo "make docs      build the documentation site into site/, warnings as errors"
	@echo "make sbom      write sbom.json: the installed packages, in CycloneDX format"
	@echo "make test-all  all tests at full length, and the GPU kernels in an interpreter"

# `make test LOCKED=1` installs the very files that constraints.txt names, by their hashes, and nothing else.
ifdef LOCKED
$(STAMP): pyproject.toml setup.py constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing what constraints.txt names into $(VENV) (a few minutes the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r constraints.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(STAMP)
else
$(STAMP): pyproject.toml setup.py
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=23.2"
	@echo "installing fedgap and what it needs into $(VENV) (a few minutes the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[all,dev]"
	@touch $(STAMP)
endif

# The newest versions that pyproject.toml allows, for every platform and Python, with the hashes of their files.
constraints: $(STAMP)
	@$(BIN)/uv --quiet pip compile pyproject.toml --all-extras --universal --python-version 3.11 --generate-hashes --no-header \
	  --no-annotate --no-emit-index-url --upgrade --output-file constraints.txt > /dev/null

sbom: $(STAMP)
	@$(BIN)/python -m tools.sbom sbom.json

docs: $(STAMP)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "open site/index.html; $(BIN)/python -m mkdocs serve shows it with a search, and follows what you write"

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/mypy

# A browser for the tests that use the studio (Debian's chromium if there is none); without one they skip.
BROWSER := $(VENV)/.browser
$(BROWSER): $(STAMP)
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
	  && { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } >/dev/null 2>&1; } \
	  || echo "no chromium here: browser tests will skip"
	@touch $(BROWSER)

# Three workers for two cores, because the one with the browser mostly waits. Each begins with a third of the files and
# takes over tests of the others when it is done, so that few files are shared and their fixtures are made once. Bytecode
# is kept, because the tests start many processes.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 3 --dist worksteal

test: lint $(BROWSER)
	@$(PYTEST)

test-all: lint $(BROWSER) test-kernels
	@FEDGAP_FULL=1 $(PYTEST)

# The GPU kernels without a GPU. Triton's interpreter wants an older NumPy than the rest, so both live apart.
KERNELS := $(VENV)/kernels
$(KERNELS): $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(KERNELS) "triton>=3.5,<3.7" "numpy<2.3" \
	  || echo "no Triton here: kernel tests will skip"

test-kernels: $(KERNELS)
	@TRITON_INTERPRET=1 PYTHONPATH=$(KERNELS) $(PYTEST) -q tests/learning/test_kernels.py

demo: $(STAMP)
	@$(BIN)/python experiments/demo.py demo

clean:
	rm -rf $(VENV) build dist *.egg-info src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis demo site
