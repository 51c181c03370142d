"""What every on-policy algorithm must be: one suite for all of them. PPO has more of its own."""

import threading
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
import torch

from srl.algorithms.a2c import A2CConfig
from srl.algorithms.appo import APPOConfig
from srl.algorithms.impala import ImpalaConfig
from srl.algorithms.ppg import PPGConfig
from srl.algorithms.ppo import PPOConfig
from srl.core.algorithm import AlgorithmConfig, HasSmallPolicy, Learner
from srl.core.collective import Alone
from srl.core.compute import Compute
from srl.core.env import AgentSpec, Box, Discrete, MultiDiscrete, Observation
from srl.core.errors import ConfigError
from srl.testing.batches import record_batches
from srl.testing.fakes import run_ranks
from srl.testing.numbers import check_numbers
from srl.testing.shares import AGENT, Whole, apart, learn_share

NUMBERS = Path(__file__).with_name("numbers.json")
VECTOR = (Observation("obs", (4,), "float32"),)
DISCRETE = AgentSpec(VECTOR, Discrete(3))
SPACES = [Discrete(3), MultiDiscrete((2, 3)), Box((2,), (-1.0, -1.0), (1.0, 1.0))]
T, B = 8, 16
SMALL = {"rollout": T, "batch_size": T * B, "minibatch_size": 32, "hidden": (16,)}
NORMALISED = {"normalise_observations": True, "normalise_returns": True}
MEMORY = {"memory": "lstm", "memory_size": 8, "chunk": 4, "burn_in": 3}
ALGORITHMS = {
    "a2c": (A2CConfig, {}),
    "impala": (ImpalaConfig, {}),
    "appo": (APPOConfig, {}),
    "appo, average": (APPOConfig, {"proximal_decay": 0.5}),
    "ppg": (PPGConfig, {"auxiliary_every": 2, "auxiliary_epochs": 2}),
}
MAKING = threading.Lock()  # fresh weights come from the generator that all threads share
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make(name, agent=DISCRETE, *, seed=0, ranks=None, compute=None, **options):
    kind, own = ALGORITHMS[name]
    with MAKING:
        config = kind(**(SMALL | own | options))
        return config.make_learner(
            agent, seed=seed, compute=compute or Compute(), ranks=ranks or Alone()
        )


def record(policy, agent=DISCRETE, seed=0, blocks=1, end=0.2):
    return record_batches(
        policy,
        agent,
        rollout=T,
        lanes=B,
        seed=seed,
        blocks=blocks,
        end=end,
        reward=lambda obs, action: obs[:, 0] + 1,
    )


def assert_equal(a, b):
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def copies(arrays):
    return {name: array.copy() for name, array in arrays.items()}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_it_fits_the_contracts(name):
    config: AlgorithmConfig = ALGORITHMS[name][0]()
    learner: Learner = config.make_learner(DISCRETE, seed=0, compute=Compute(), ranks=Alone())
    policy = config.make_policy(DISCRETE, seed=0, compute=Compute())
    assert_equal(learner.policy.weights(), policy.weights())
    assert isinstance(config, HasSmallPolicy)
    assert config.small_policy(DISCRETE) is not None


@pytest.mark.parametrize(
    ("name", "option", "value", "message"),
    [
        ("a2c", "learning_rate", 0.0, "algorithm.learning_rate must be > 0, got 0.0"),
        ("a2c", "hidden", (0,), r"algorithm.hidden must be sizes >= 1, got \(0,\)"),
        ("a2c", "memory", "rnn", "algorithm.memory must be none or lstm or gru or gtrxl, got rnn"),
        ("impala", "weight_clip", 0.0, "algorithm.weight_clip must be > 0, got 0.0"),
        ("impala", "trace_clip", float("nan"), "algorithm.trace_clip must be > 0, got nan"),
        ("appo", "proximal_decay", 1.0, "algorithm.proximal_decay must be >= 0 and < 1, got 1.0"),
        ("appo", "clip", -1.0, "algorithm.clip must be > 0, got -1.0"),
        ("ppg", "auxiliary_every", 0, "algorithm.auxiliary_every must be >= 1, got 0"),
        ("ppg", "clone_weight", -1.0, "algorithm.clone_weight must be >= 0, got -1.0"),
    ],
)
def test_an_option_out_of_range_is_named(name, option, value, message):
    with pytest.raises(ConfigError, match=message):
        ALGORITHMS[name][0](**{option: value})


@pytest.mark.parametrize("options", [{}, MEMORY | NORMALISED], ids=["plain", "memory"])
@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_learning_moves_all_weights_and_reports_finite_metrics(name, space, options):
    agent = AgentSpec(VECTOR, space)
    learner = make(name, agent, **options)
    before = copies(learner.policy.weights())
    for batch in record(learner.policy, agent, blocks=2):
        metrics = learner.learn(batch, 0.5)
        assert np.isfinite(list(metrics.values())).all()
        assert metrics["train_samples"] >= batch["valid"][learner.policy.records.burn_in : -1].sum()
    after = learner.policy.weights()
    assert all(not np.array_equal(before[name], after[name]) for name in before)
    assert all(np.isfinite(array).all() for array in after.values())


@pytest.mark.parametrize("options", [NORMALISED, MEMORY], ids=["plain", "memory"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_save_and_load_continue_bit_for_bit_and_equal_seeds_learn_alike(name, options):
    a, same, b = (make(name, seed=seed, **options) for seed in (1, 1, 2))
    batches = record(make(name, seed=5, **options).policy, blocks=5)
    for batch in batches[:3]:  # of PPG, three: one of them waits for the auxiliary phase
        assert a.learn(batch, 0.0) == same.learn(batch, 0.0)
    assert_equal(a.save(), same.save())
    b.learn(batches[0], 0.0)
    b.load(copies(a.save()))
    for batch in batches[3:]:
        assert (a.learn(batch, 0.3), a.updates) == (b.learn(batch, 0.3), b.updates)
    assert_equal(a.save(), b.save())


@pytest.mark.parametrize("name", ["a2c", "impala", "appo", "ppg"])
def test_explained_variance_is_of_targets_by_values(name, monkeypatch):
    """With a batch of other weights, whose ratios V-trace clips: its target − value is no advantage."""
    learner, seen = make(name), []
    whole = type(learner)._estimate

    def estimate(self, chunks, batch):
        seen.append((whole(self, chunks, batch), chunks.learned(batch["value"])))
        return seen[-1][0]

    monkeypatch.setattr(type(learner), "_estimate", estimate)
    (batch,) = record(make(name, seed=5).policy)
    batch["log_prob"] = batch["log_prob"] + np.where(batch["obs"][..., 0] > 0, 2, 0).astype("f4")
    metrics = learner.learn(batch, 0.0)
    (found, recorded), known = seen[0], seen[0][0].known
    if name in ("a2c", "ppg"):
        np.testing.assert_array_equal(found.value, recorded)
    else:
        assert not np.allclose((found.target - found.value)[known], found.advantage[known])
    by_hand = 1 - np.var((found.target - found.value)[known]) / np.var(found.target[known])
    assert metrics["explained_variance"] == pytest.approx(by_hand, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_rows_that_are_not_valid_have_no_influence(name):
    """But for the observation of an end: the value there may be that of a truncated episode."""
    a, b = make(name, **NORMALISED), make(name, **NORMALISED)
    for batch in record(make(name, seed=5).policy, blocks=2, end=0.4):
        changed = copies(batch)
        wrong = ~batch["valid"]
        wrong[-1] = False
        assert wrong.any()
        changed["action"][wrong] = 2
        changed["log_prob"][wrong] = -50.0
        changed["reward"][wrong] = 1e6
        assert a.learn(batch, 0.0) == b.learn(changed, 0.0)
    assert_equal(a.save(), b.save())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_rows_where_the_agent_does_not_act_are_not_learned(name):
    learner = make(name)
    (batch,) = record(learner.policy, end=0.0)
    batch["acting"][:, 1:] = False
    epochs = getattr(learner.config, "epochs", 1)
    assert learner.learn(batch, 0.0)["train_samples"] == epochs * T


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_batch_without_a_valid_row_changes_no_weight(name):
    learner = make(name)
    (batch,) = record(learner.policy)
    batch["valid"][:] = False
    before = copies(learner.policy.weights())
    for _ in range(2):
        assert learner.learn(batch, 0.0)["train_samples"] == 0
    assert_equal(learner.policy.weights(), before)
    assert learner.updates == 0


@pytest.mark.parametrize("memory", [{}, MEMORY], ids=["plain", "memory"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_minibatches_padded_to_one_size_give_the_same_weights(name, memory):
    plain, padded = (make(name, adam_epsilon=0.1, **memory) for _ in range(2))
    padded._size = -(-32 // padded.policy.records.chunk) + 3
    for batch in record(make(name, seed=5, **memory).policy, blocks=3):
        plain.learn(batch, 0.0)
        padded.learn(batch, 0.0)
    assert apart(plain.policy.weights(), padded.policy.weights()) < 1e-5


@pytest.mark.parametrize("memory", [{}, MEMORY], ids=["plain", "memory"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_stacks_masks_and_what_envs_share_are_learned_from(name, memory):
    seen = (Observation("obs", (4,), "float32", stack=3), Observation("action_mask", (3,), "bool"))
    agent = AgentSpec(seen, Discrete(3), (Observation("state", (2,), "float32"),))
    options = NORMALISED | memory | {"central_value": True}
    a, b = make(name, agent, seed=1, **options), make(name, agent, seed=2, **options)
    batches = record_batches(a.policy, agent, rollout=T, lanes=B, agents=2, blocks=4, end=0.3)
    a.learn(batches[0], 0.0)
    b.load(a.save())
    for batch in batches[1:]:
        metrics = a.learn(batch, 0.0)
        assert metrics == b.learn(batch, 0.0)
        assert np.isfinite(list(metrics.values())).all()
    assert_equal(a.save(), b.save())


SHARED = NORMALISED | {"minibatch_size": T * B // 4, "max_grad_norm": 0.3, "learning_rate": 3e-3}


@pytest.mark.parametrize("memory", [{}, MEMORY], ids=["plain", "memory"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_two_ranks_equal_one_on_the_same_blocks(name, memory):
    """With invalid rows, PopArt and normalised observations; a rank has 1/4 of them, one 3/4."""
    options = SHARED | memory | ({"auxiliary_every": 1} if name == "ppg" else {})
    whole = Whole(make(name, AGENT, **options), updates=20)

    def follow(rank):
        learner = make(name, AGENT, ranks=rank, **options)
        learn_share(whole, learner, rank.rank)
        return learner.policy.weights()

    one, other = run_ranks(2, follow)
    assert_equal(one, other)
    assert apart(one, whole.weights) < 1e-5


@pytest.mark.parametrize("name", [*ALGORITHMS, "ppo"])
def test_two_hundred_updates_give_what_they_gave(name):
    """Guards the numbers of learning: `SRL_ACCEPT_NUMBERS=1` accepts others, and a commit says why."""
    kind, own = ALGORITHMS.get(name, (PPOConfig, {}))
    config = kind(**(SMALL | NORMALISED | own | {"hidden": (8,), "learning_rate": 1e-3}))
    learner = config.make_learner(DISCRETE, seed=3, compute=Compute(), ranks=Alone())
    behaviour = config.make_policy(DISCRETE, seed=3, compute=Compute())
    batches = record(behaviour, blocks=5)  # what a fresh policy samples is the same everywhere
    for batch in cycle(batches):
        metrics = learner.learn(batch, 0.0)
        if learner.updates >= 200:
            break
    found = {name: metrics[name] for name in ("policy_loss", "value_loss", "entropy")}
    check_numbers(NUMBERS, name, found | learner.policy.weights())


@needs_gpu
@pytest.mark.parametrize("memory", [{}, MEMORY], ids=["plain", "memory"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_gpu_learns_what_the_cpu_learns(name, memory):
    options = {"adam_epsilon": 0.1, "learning_rate": 0.05, **memory}
    here, there = (make(name, compute=Compute(x), **options) for x in ("cpu", "cuda"))
    for batch in record(make(name, seed=5, **memory).policy, blocks=8):
        here.learn(batch, 0.0)
        there.learn(batch, 0.0)
    assert apart(here.policy.weights(), there.policy.weights()) < 1e-3


@pytest.mark.parametrize("memory", [{}, MEMORY], ids=["plain", "memory"])
def test_where_the_policy_has_not_moved_impala_is_a2c_and_appo_is_ppo(memory):
    options = SMALL | NORMALISED | memory | {"adam_epsilon": 0.1, "learning_rate": 0.02}
    # one step a batch: before a second one the policy has moved, and IMPALA weighs by how far
    whole = options | {"minibatch_size": T * B}
    pairs = [
        (A2CConfig(**whole), ImpalaConfig(**whole, gae_lambda=0.95)),
        (PPOConfig(**options), APPOConfig(**options)),
    ]
    for pair in pairs:
        some, others = (
            config.make_learner(DISCRETE, seed=0, compute=Compute(), ranks=Alone())
            for config in pair
        )
        for _ in range(4):
            (batch,) = record(some.policy)
            some.learn(batch, 0.0)
            others.learn(batch, 0.0)
        assert apart(some.policy.weights(), others.policy.weights()) < 1e-4
