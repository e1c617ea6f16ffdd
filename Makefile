# Everything runs in .venv, made on first use from requirements.lock; `make help` lists the targets.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
# The torch that pip installs; empty (`make test VENV=/path/to/env TORCH=`) keeps the environment's own.
TORCH ?= torch==2.13.0
# Tests at a time: one more than cores, because some wait for a browser, a hub or the end of a process.
JOBS ?= 3
# Which run of the notebooks: quick proves the machinery, full is what the book's pages show.
PROFILE ?= quick
# `make test ENGINE=reference` runs the tests of joints and metrics on the dense reference instead of the engine.
ENGINE ?= torch
export MLMJOINT_ENGINE := $(ENGINE)

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export TOKENIZERS_PARALLELISM := false
# Some virtual machines announce AMX and then refuse it, which kills any bfloat16 product.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_BF16

.DEFAULT_GOAL := help
.PHONY: help setup book reproduce check pages html pdf test nbval lint bench bench-report paper picture explorer clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP) ## create .venv and install the locked versions

# torch first and alone: resolved together with the rest, pip may choose a much larger build.
$(STAMP): requirements.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(if $(strip $(TORCH)),$(BIN)/python -m pip install --quiet "$(strip $(TORCH))")
	grep -v '^torch==' requirements.lock > $(VENV)/requirements.txt
	$(BIN)/python -m pip install --quiet -r $(VENV)/requirements.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

# Sequentially, even with -j: the numbers are checked after the run.
book: $(STAMP) ## run the notebooks, check their numbers, build the book, print where it is
	$(MAKE) reproduce
	$(MAKE) check
	$(MAKE) html
	@echo "The book: $(CURDIR)/_build/html/index.html"

reproduce: $(STAMP) ## run the notebooks; PROFILE=full renews what the book shows
	$(BIN)/mlmjoint reproduce --profile $(PROFILE)

check: $(STAMP) ## compare the numbers of the last run with the committed ones
	$(BIN)/mlmjoint check --profile $(PROFILE)

pages: $(STAMP) ## write the generated pages, and the repository's address wherever it appears
	$(BIN)/python -m book.make

html: $(STAMP) pages ## build the book from what is stored, without running a notebook
	@# an interrupted build leaves pages without a search index, which would stop every later one
	test -e _build/html/searchindex.js || rm -rf _build
	$(BIN)/jupyter-book build . -W -n --keep-going --quiet

# The folder is the browser's only input; print.css says how the page is laid out on paper.
pdf: $(STAMP) pages ## print the whole book to _build/mlmjoint.pdf (needs Chromium)
	$(BIN)/jupyter-book build . --builder singlehtml -W -n --keep-going --quiet
	$(BIN)/python -m book.make.pdf _build/singlehtml _build/mlmjoint.pdf
	@echo "The book on paper: $(CURDIR)/_build/mlmjoint.pdf"

test: lint ## lint, then all tests (including the notebooks and the built book)
ifeq ($(ENGINE),reference)
	$(BIN)/python -m pytest -n $(JOBS) tests/core/test_joints.py tests/core/test_metrics.py
else
	@# worksteal: each worker begins with tests that lie next to each other and share fixtures
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal
	$(MAKE) nbval
endif

# As on Colab: an empty folder and nothing but the built wheel; the outputs must equal the committed ones.
nbval: $(STAMP) ## run every notebook against the built wheel and compare what it prints
	rm -rf build _build/nbval && mkdir -p _build/nbval/notebooks
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir _build/nbval .
	$(BIN)/python -m pip install --quiet --no-deps --target _build/nbval/site _build/nbval/*.whl
	cp notebooks/*.ipynb _build/nbval/notebooks
	cp tests/nbval_conftest.py _build/nbval/notebooks/conftest.py
	root="$$PWD" && py="$$(cd $(BIN) && pwd)/python" && cd _build/nbval/notebooks && \
	    export PYTHONPATH="$$root/_build/nbval/site" MLMJOINT_OUT="$$root/_build/nbval/out" OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES= && \
	    "$$py" -c "import mlmjoint, os; assert mlmjoint.__file__.startswith(os.environ['PYTHONPATH']), mlmjoint.__file__" && \
	    "$$py" -m pytest -n $(JOBS) --dist loadfile -p no:cacheprovider --rootdir . \
	        --nbval --nbval-sanitize-with "$$root/tests/nbval_sanitize.cfg" .

lint: $(STAMP) ## ruff: rules and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

bench: $(STAMP) ## measure speed and memory against the published procedure, and write the tables
	missed=0; for file in benchmarks/bench_*.py; do \
	    $(BIN)/python -m benchmarks.$$(basename $$file .py) || missed=1; \
	done; $(BIN)/python -m book.make; exit $$missed

bench-report: $(STAMP) ## write the stored measurements into the README
	$(BIN)/python -m book.make

# A study that was stopped continues where it stopped; a finished one costs seconds.
# STUDY adds options, as in `make paper STUDY="--as-published"` or `STUDY="--engine ray"`.
paper: $(STAMP) ## run the paper's own eight studies, on the available device
	$(BIN)/mlmjoint study --profile paper $(STUDY)
	$(BIN)/mlmjoint table results/paper/* > results/paper/tables.md
	@echo "The columns of the paper's tables: results/paper/tables.md; published.toml takes its printed numbers"

picture: $(STAMP) ## draw the README's picture again
	$(BIN)/mlmjoint pair "A man is [MASK] [MASK] the street." --methods mlm mrf ag --heatmap book/_static/joint.svg

# Minutes, and only needed after a model has changed: building the book never does this.
explorer: $(STAMP) ## compute the data of the page "Explore a joint"; ONLY=NAME for one example
	$(BIN)/python -m book.make.explorer --out book/_static/explore $(if $(ONLY),--only $(ONLY))

clean: ## remove the built book and caches (.venv and results stay)
	rm -rf _build build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
