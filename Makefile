# Everything a person types: `make train`, `make test`. Both set up .venv first, with what a run needs or with what the checks
# need too, and use no network when nothing changed.
PY ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=
# the versions that pip may install; empty: the newest
CONSTRAINTS ?= constraints.txt
# A process takes whole files: the tests of a file share what they have compiled or trained.
TESTS := tests/unit tests/contract tests/integration tests/faults tests/learning -n 2 --dist loadfile
# the commit that `make same-bits` compares the working tree with
BASE ?= HEAD
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# with it each process that a test starts would compile the package again
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install dev train eval test pytest check test-full test-extras test-gpu test-python test-oldest test-newest coverage test-package dist docs bench peers same-bits results readme screen clean

install: $(VENV)/.stamp

dev: $(VENV)/.stamp-dev

# A stamp is newer than what it depends on exactly when the environment is complete: a failed pip leaves no stamp.
$(VENV)/.stamp: pyproject.toml $(CONSTRAINTS)
	test -x $(BIN)/python || $(PY) -m venv $(VENV)
	$(BIN)/python -m pip install $(addprefix -c ,$(CONSTRAINTS)) -e .
	@touch $@

$(VENV)/.stamp-dev: pyproject.toml $(CONSTRAINTS)
	test -x $(BIN)/python || $(PY) -m venv $(VENV)
	$(BIN)/python -m pip install $(addprefix -c ,$(CONSTRAINTS)) -e '.[dev]'
	@touch $(VENV)/.stamp $@

train: install
	$(BIN)/border-train agent=dqn env=cartpole $(ARGS)

eval: install
	$(BIN)/border-eval $(ARGS)

# test: what a contributor runs before each commit
test: check pytest

pytest: dev
	$(BIN)/python -m pytest $(TESTS) $(ARGS)

# check: what a machine can say about the code without running it
check: dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# test-full: what runs before a release, some hours: every case with full counts of faults, every preset, every agent in
# every environment, the libraries of all extras, then long campaigns of kills, storms and a soak
test-full: check test-extras
	TEST_FULL=1 $(BIN)/python -m pytest tests -n 2 --dist loadfile --timeout 3600 $(ARGS)
	$(BIN)/python -m tests.campaigns kills --runs 50
	$(BIN)/python -m tests.campaigns kills-lockstep --runs 50
	$(BIN)/python -m tests.campaigns storms --runs 200
	$(BIN)/python -m tests.campaigns soak

# test-extras: with the real libraries of extras that `make dev` leaves out
test-extras: dev
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev,tune,export,wandb,mlflow,ray]' optuna-dashboard hydra-submitit-launcher hydra-joblib-launcher playwright
	$(BIN)/python -m pytest tests/extras tests/contract/test_every_actor_manager.py $(ARGS)

# test-gpu: device=cuda, on a machine with a GPU of NVIDIA; elsewhere its tests are skipped
test-gpu: dev
	$(BIN)/python -m pytest tests/gpu $(ARGS)

# test-python: the tests with another interpreter, in an environment of its own: `make test-python VERSION=3.12`
test-python:
	$(MAKE) pytest PY=python$(VERSION) VENV=.venv-$(VERSION)

# test-oldest: the tests with the lower bounds of pyproject.toml. For another version of one package, edit build/oldest.txt.
test-oldest: build/oldest.txt
	$(MAKE) pytest VENV=.venv-oldest CONSTRAINTS=$<

build/oldest.txt: pyproject.toml
	mkdir -p build
	grep -oE '"[a-z0-9-]+(\[[a-z0-9,-]+\])?>=[0-9.]+' $< | sed -E 's/"|\[.*\]//g; s/>=/==/' | sort -u > $@

# test-newest: `make test` with the newest versions that pyproject.toml allows
test-newest:
	$(MAKE) test VENV=.venv-newest CONSTRAINTS=

# coverage: lines and branches that the tests run, in all processes; fails below `fail_under` in pyproject.toml
coverage: export COVERAGE_FILE := $(CURDIR)/build/coverage/data
coverage: dev
	$(BIN)/python -m pip install -q 'coverage>=7.13'
	rm -rf build/coverage && mkdir -p build/coverage
	$(BIN)/coverage run -m pytest $(TESTS) $(ARGS); code=$$?; \
	  $(BIN)/coverage combine -q && $(BIN)/coverage report && exit $$code

# dist: the wheel and the source archive, checked
dist: dev
	$(BIN)/python -m pip install -q build twine
	rm -rf dist && $(BIN)/python -m build && $(BIN)/twine check --strict dist/*

# test-package: the wheel in an empty environment and an empty folder, without a compiler; then `make test` in the archive
TRIED := build/package
test-package: dist
	rm -rf $(TRIED) && mkdir -p $(TRIED)/empty $(TRIED)/source && $(PY) -m venv $(TRIED)/venv
	$(TRIED)/venv/bin/python -m pip install -q -c constraints.txt dist/*.whl
	cd $(TRIED)/empty && export PATH=$(CURDIR)/$(TRIED)/venv/bin && border-train --help \
	  && border-train agent=dqn env=cartpole n_actors=8 trainer.max_env_steps=3000 \
	  && border-eval && border-export runs/latest format=numpy
	cd $(TRIED)/empty && $(CURDIR)/$(BIN)/mypy --config-file= --python-executable ../venv/bin/python \
	  -c 'import border_cli; reveal_type(border_cli.load("x"))' | grep LoadedModel
	tar -xzf dist/*.tar.gz -C $(TRIED)/source --strip-components 1
	$(MAKE) -C $(TRIED)/source test

# docs: the site of docs/, in site/; a dead link, or a page that mkdocs.yml does not name, is an error
docs: $(VENV)/.stamp-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

$(VENV)/.stamp-docs: $(VENV)/.stamp
	$(BIN)/python -m pip install -c constraints.txt -e '.[docs]'
	@touch $@

bench: dev
	$(BIN)/python -m bench.speed $(ARGS)

# peers: the same tasks with border-train and with other tools, in turn, up to two hours; writes docs/performance/peers.md
peers: dev
	$(BIN)/python -m bench.peers $(ARGS)

# same-bits: the weights that each agent learns from fixed seeds are those that commit BASE learned
same-bits: dev
	$(BIN)/python -m bench.same_bits $(BASE) . $(ARGS)

# results: the runs of bench/table_of_runs.py, one after the other, some hours; goes on where it was; writes docs/results/
results: dev
	$(BIN)/python -m bench.results $(ARGS)

# readme: the tables of README.md, and the generated parts of docs/reference/, docs/agents/ and docs/coming-from.md
readme: dev
	$(BIN)/python -m bench.readme_table

# screen: a short real run, and its screen as docs/screen.svg
screen: dev
	$(BIN)/python -m bench.screen_picture

clean:
	rm -rf $(VENV) .venv-* .mypy_cache .ruff_cache .pytest_cache .import_linter_cache build dist site
