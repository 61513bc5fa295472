# Thin calls of smwheel; everything is in `smwheel --help`. The virtual environment is made from pinned requirements.

ARCH ?=
RECIPES ?=
STACK ?=
ENV ?=
PROFILE ?=
MODULES ?=
STRATEGY ?=
MEMORY ?=
JOBS ?=
CUDA ?=
BACKEND ?=
BASE_IMAGE ?=

PYTHON ?= $(shell ci/find-python)
VENV := .venv
SMWHEEL := $(VENV)/bin/smwheel
OPTIONS := $(if $(ARCH),--arch $(ARCH)) $(if $(STACK),--stack $(STACK)) $(if $(ENV),--stack from:$(ENV)) $(if $(PROFILE),--profile $(PROFILE)) \
  $(if $(MODULES),--modules '$(MODULES)') $(if $(STRATEGY),--strategy $(STRATEGY)) \
  $(if $(MEMORY),--memory $(MEMORY)) $(if $(JOBS),--jobs $(JOBS)) $(if $(CUDA),--cuda-home $(CUDA))

.PHONY: wheels plan test lint types test-integration bench clean help

help:
	@echo "make wheels ARCH=120 [RECIPES=…] [STACK=…] [PROFILE=…]   build wheels into wheelhouse/"
	@echo "make wheels ARCH=120 ENV=path                             the same, for the versions of a Python environment"
	@echo "make wheels ARCH=120 BACKEND=docker [BASE_IMAGE=…]         the same, in a container that can reach nothing"
	@echo "make image ARCH=120                                        the wheels as a container image"
	@echo "make plan ARCH=120 …                                       say what would be built and what it costs"
	@echo "make test                                                  lint, types and fast tests"
	@echo "make test-integration                                      real compiles and downloads"

wheels: $(VENV)/.ready
	@$(SMWHEEL) build $(RECIPES) $(OPTIONS) $(if $(BACKEND),--backend $(BACKEND)) \
	  $(if $(BASE_IMAGE),--base-image $(BASE_IMAGE))

# The wheels of one architecture as a container image: docs/containers.md.
.PHONY: image
image: $(VENV)/.ready
	@$(SMWHEEL) image $(if $(ARCH),--arch $(ARCH))

plan: $(VENV)/.ready
	@$(SMWHEEL) plan $(RECIPES) $(OPTIONS)

# For machines that reach upstream's repository: docs/field-report.md.
.PHONY: field-report
field-report: $(VENV)/.ready
	$(VENV)/bin/python ci/field-report $(if $(ARCH),--arch $(ARCH)) $(if $(STACK),--stack $(STACK)) \
	  $(if $(CUDA),--cuda-home $(CUDA))

test: lint types
	$(VENV)/bin/pytest

lint: $(VENV)/.ready-dev
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .

types: $(VENV)/.ready-dev
	$(VENV)/bin/mypy

test-integration: $(VENV)/.ready-dev
	$(VENV)/bin/pytest -m integration tests/integration

clean:
	rm -rf $(VENV) .work

$(VENV)/.ready: ci/requirements/run.txt pyproject.toml ci/find-python
	@ci/make-venv "$(PYTHON)" $(VENV) ci/requirements/run.txt
	@touch $@

$(VENV)/.ready-dev: $(VENV)/.ready ci/requirements/dev.txt
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r ci/requirements/dev.txt
	@touch $@

# Needs uv. The files hold exact versions with hashes for every Python from 3.11.
.PHONY: requirements
requirements:
	cd ci/requirements && for name in run dev; do \
	  uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	    --no-emit-index-url $$name.in --output-file $$name.txt; done
