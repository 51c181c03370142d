# make train   set everything up and solve CartPole
# make test    set everything up, check the code and run the tests
# make test-all      all tests, the slow ones too: every algorithm in every launcher (hours)
# make test-cluster  runs on three hosts that are network namespaces, under Ray (root, iproute2, nftables)
# make test-slurm    the example job on a Slurm of one node (root; apt-get install slurm-wlm munge)
# make check   linters, types and import borders alone
# make slow    the slower proofs: every topology, three seeds each; a thousand kills of a writer;
#              every experiment in every variant, interrupted and resumed
# make chaos   10,000 simulated schedules of faults, 200 real runs (an hour; resumable)
# make kills   CartPole while workers are killed, three seeds, and its trainers, 20 times (resumable)
# make soak    half an hour: nothing grows, nothing slows down (a quiet machine)
# make learn   learning curves of every topology and every algorithm, three seeds each, and their tables in
#              docs/algorithms (resumable; says how long it took; PARALLEL=N runs of algorithms at a time)
# make learn-recall        memory or none on the toy that needs it (resumable)
# make learn-match         one policy, two, or a frozen opponent (resumable)
# make learn-half-cheetah  HalfCheetah-v5 by PPO at 1M steps, three seeds (resumable)
# make learn-pong          Pong on a GPU host; RECIPE=pong-appo, pong-rainbow or pong-apex (resumable)
# make learn-sb3           beside Stable-Baselines3, five seeds each (resumable; PARALLEL=N)
# make learn-staleness     what stale batches cost PPO, IMPALA and APPO (resumable; PARALLEL=N)
# make bench   speed, side by side with a CleanRL-style script
# make bench-scaling       cost of a row by actors, envs and bytes (5 minutes, a quiet machine)
# make clean   remove what these made

PYTHON ?= python3
VENV := .venv
PARALLEL ?= 1
RECIPE ?= pong
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

TABLES := $(BIN)/python benchmarks/tables.py

.PHONY: train test test-all test-cluster test-slurm check slow chaos kills soak learn learn-recall learn-match learn-half-cheetah learn-pong learn-sb3 learn-staleness bench bench-scaling clean

train: $(VENV)/.installed
	$(BIN)/srl train cartpole

test: check
	$(BIN)/python -m pytest -m "not slow and not cluster and not slurm" -n 2 --dist worksteal

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/codespell
	$(BIN)/pyright

slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m "slow and not cluster and not slurm" --timeout 1800

test-all: check
	$(BIN)/python -m pytest -m "not cluster and not slurm" --timeout 1800

test-cluster: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m cluster

test-slurm: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m slurm

chaos: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/chaos.py

kills: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/kills.py

soak: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/soak.py

learn: $(VENV)/.installed-dev
	$(PIP) -e ".[mujoco]"
	$(BIN)/python benchmarks/learn.py
	$(BIN)/python benchmarks/learn.py algorithms --parallel $(PARALLEL)
	$(TABLES)

learn-recall: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/learn.py recall

learn-match: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/learn.py match

learn-half-cheetah: $(VENV)/.installed-dev
	$(PIP) -e ".[mujoco]"
	$(BIN)/python benchmarks/learn.py half-cheetah

learn-pong: $(VENV)/.installed-dev
	$(PIP) -e ".[atari]"
	$(BIN)/python benchmarks/pong.py $(RECIPE)
	$(TABLES)

learn-sb3: $(VENV)/.installed-dev
	$(PIP) -e ".[mujoco]"
	$(BIN)/python benchmarks/beside_sb3.py --parallel $(PARALLEL)
	$(TABLES)

learn-staleness: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/staleness.py --parallel $(PARALLEL)
	$(TABLES)

bench-scaling: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/scaling.py

bench: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/first_look.py

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# torch comes first and alone: a range that admits a newer release would bring gigabytes of CUDA.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch==2.13.0
	$(PIP) -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) -e ".[dev]"
	touch $@
