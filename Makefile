# Every target bootstraps its own virtual environment from plain python3 and pip.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
BASE   := $(VENV)/.installed-base
STAMP  := $(VENV)/.installed
TESTS  ?= tests
# More than cores: many tests wait for a lease to run out.
WORKERS ?= 4
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
FUZZ_SECONDS ?= 60
# The options of `make intervals` and of `make mutants`: --help lists them.
INTERVALS ?=
MUTANTS ?=
SCHEDULES ?= 20000

# Where it is set, every `dibs` that a test starts would compile all of dibs anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv dev demo quick test test-all security check format lint imports types docs conformance sim sim-million sim-large fuzz bench bench-leases bench-github bench-label-state bench-mixed-fleet storm-github intervals mutants build clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

$(BASE): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing dibs into $(VENV): 41 MB, some seconds ..." >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(STAMP): $(BASE) lab/pyproject.toml
	@echo "installing what the tests and checks need into $(VENV): 850 MB more, a minute or two ..." >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' -e lab
	@touch $@

venv: $(BASE) ## a virtual environment with dibs in it

dev: $(STAMP) ## the same, with everything that tests and checks need

demo: $(BASE) ## the main job: four workers, one killed, one frozen, nothing lost
	@$(BIN)/dibs demo

quick: format lint imports types ## a minute and a half: style, layers, types, the core, the documentation
	$(PYTEST) tests/core tests/architecture

test: $(STAMP) ## the tests: about eight minutes
	$(PYTEST) -m "not long" $(TESTS)

test-all: test ## and the long tier: every crash step, storms, servers killed, foreign clients
	$(PYTEST) -m long $(TESTS) || test $$? -eq 5  # 5: none of TESTS is long
	$(if $(filter tests,$(TESTS)),$(BIN)/python -m tests.mutants --sample)

security: $(STAMP) ## the attacks of docs/concepts/security.md, the long ones too: some minutes
	$(PYTEST) tests/security

check: format lint imports types test ## before every commit that is shared

format: $(STAMP) ## fail if a file is not formatted
	$(BIN)/ruff format --check .

lint: $(STAMP) ## ruff, all rules
	$(BIN)/ruff check .

imports: $(STAMP) ## the layers point one way
	$(BIN)/lint-imports

types: $(STAMP) ## mypy, strict
	$(BIN)/mypy

docs: $(STAMP) ## the docs say what the code does; `make test` has these as well
	$(BIN)/python -m pytest -q tests/architecture

conformance: $(STAMP) ## which guarantee each adapter proved, and by which checks
	@$(BIN)/python -m tests.conformance

sim: $(STAMP) ## the proof: ours, two controls, mutants, every interleaving of small cases
	$(BIN)/python -m dibs_lab.sim --schedules $(SCHEDULES)

sim-million: SCHEDULES = 1000000
sim-million: sim ## the same with a million random schedules: two hours and a half on two cores

sim-large: $(STAMP) ## a thousand workers and a hundred thousand issues: some minutes
	$(BIN)/dibs simulate --workers 1000 --issues 100000

fuzz: $(STAMP) ## coverage-guided fuzzing for a while: FUZZ_SECONDS=60
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS)

bench-leases: $(STAMP) ## our leases beside every Python lock library, on real servers
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,bench]' -e lab
	$(BIN)/python -m benchmarks.leases

bench-github: $(STAMP) ## what a fleet asks of GitHub, counted at the server: some minutes
	$(BIN)/python -m benchmarks.github

bench-label-state: $(STAMP) ## requests of a claim, a release and a sweep beside the published numbers
	$(BIN)/python -m benchmarks.label_state

bench-mixed-fleet: $(STAMP) ## double holders while a fleet is switched, counted in the simulator
	$(BIN)/python -m benchmarks.mixed_fleet

storm-github: $(STAMP) ## sixteen workers, 300 issues, every fault of the fake, kills and freezes: some minutes
	$(BIN)/python -m tests.github.storm

intervals: $(STAMP) ## does any store let two processes trust one lease? kills, cuts, clock steps: some ten minutes
	@$(BIN)/python -m tests.intervals $(INTERVALS)

mutants: $(STAMP) ## does a test die with every safety line? all of them: some hours; MUTANTS="--count 40"
	@$(BIN)/python -m tests.mutants $(MUTANTS)

bench: $(STAMP) ## tables and ratios, measured side by side in one run
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[bench]'
	$(BIN)/python -m benchmarks

build: $(STAMP) ## wheel and sdist in dist/
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check build
	$(BIN)/python -m build

clean: ## remove what the targets made
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .cache
