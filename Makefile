# Two commands: `make train` and `make test`. Everything they need is set up in .venv.
PYTHON ?= python3
ROBOT ?= excavator-realistic
RUN ?= runs/excavator
EPISODES ?= 40

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TEST_READY := $(VENV)/.ready-test
PAGE_READY := $(VENV)/.ready-page
DOCS_READY := $(VENV)/.ready-docs
PEERS_READY := $(VENV)/.ready-peers
# sheeprl wants an older pillow than the rest of us, so DreamerV3 has an environment of its own.
DREAMERV3 := .venv-dreamerv3

.PHONY: train test test-slow test-ros2 lint format bench soak clean help dashboard peers docs check-arm64

help:
	@echo "make train   set up, teach a simulated excavator with real sensors from random weights, write a report to $(RUN)/report"
	@echo "make dashboard   the live page of $(RUN), also while it trains"
	@echo "make test    set up; lint, types and tests"
	@echo "make test-slow   the tests that take half a minute or more each"
	@echo "make docs    the documentation site in build/site; warnings are errors"
	@echo "make test-ros2   the ROS 2 bridge with real rclpy, where its wheels can be had"
	@echo "make check-arm64   are there wheels for the robot's side on arm64, for Python 3.10 to 3.13?"
	@echo "make lint    ruff and pyright alone; make format lets ruff correct what it can"
	@echo "make peers   set up what \`firsthand compare\` needs: PyTorch and other learners (1 GB or more)"
	@echo "make bench   how fast update, plants, export, observer and link are, as ratios of one run (slow)"
	@echo "make soak    kills, cuts and floods against the onboard program, many times (slow)"

train: $(READY)
	$(BIN)/firsthand train $(ROBOT) --out $(RUN) $(if $(wildcard $(RUN)/config.json),--resume $(if $(filter command,$(firstword $(origin EPISODES))),--episodes $(EPISODES)),--episodes $(EPISODES))

dashboard: $(PAGE_READY)
	$(BIN)/firsthand dashboard $(RUN)

test: $(TEST_READY)
	scripts/check.sh -n 2 --dist worksteal

test-slow: $(TEST_READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow

lint: $(TEST_READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: $(TEST_READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The link is measured with a rig of the tests.
bench: $(TEST_READY)
	$(BIN)/python benchmarks/speed.py --out build/speed.json

# Real processes killed and links cut, many times: half an hour. Small forms of the same are in `make test`.
soak: $(TEST_READY)
	cd tests && ../$(BIN)/python -m onboard_runtime.soak --out ../benchmarks/results/soak.json

docs: $(DOCS_READY)
	$(BIN)/python scripts/check_numbers.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "The site is in build/site: open build/site/index.html, or, with its search, http://127.0.0.1:8000 after: python3 -m http.server -b 127.0.0.1 -d build/site"

# Needs an index with ROS 2's wheels; where there is none it says so and ends well.
test-ros2: $(TEST_READY)
	scripts/test_ros2.sh

check-arm64:
	scripts/check_arm64.sh

peers: $(PEERS_READY) $(DREAMERV3)/.ready

clean:
	rm -rf $(VENV) $(DREAMERV3) build dist src/*.egg-info onboard/src/*.egg-info lab/src/*.egg-info

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit("firsthand needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; try make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	@echo "Setting up $(VENV): a minute or two, once."
	$(PYTHON) -m venv $(VENV)

$(READY): $(VENV)/bin/python pyproject.toml onboard/pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e onboard -e .
	@touch $@

# Everything in one installation, also what $(READY) stands for.
$(TEST_READY): $(VENV)/bin/python pyproject.toml onboard/pyproject.toml lab/pyproject.toml constraints.txt
	scripts/install_browser.sh
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e onboard -e '.[test,lint]' -e 'lab[ray,soft-robots,mpc]'
	@touch $(READY) $@

$(PAGE_READY): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e onboard -e '.[dashboard]'
	@touch $@

$(DOCS_READY): $(READY) pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e onboard -e '.[docs]'
	@touch $@

$(PEERS_READY): $(READY) lab/pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e onboard -e . -e 'lab[peers]'
	@touch $@

$(DREAMERV3)/.ready: constraints-dreamerv3.txt
	$(PYTHON) -m venv $(DREAMERV3)
	$(DREAMERV3)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-dreamerv3.txt sheeprl torch==2.13.0
	@touch $@
