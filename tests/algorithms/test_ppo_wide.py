"""PPO with memory, masks, a central critic, stacked rows, a user's network, and several ranks."""

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from srl.algorithms.ppo import PPOConfig
from srl.core.collective import Alone
from srl.core.compute import Compute
from srl.core.env import AgentSpec, Box, Discrete, MultiDiscrete, Observation
from srl.core.errors import ConfigError
from srl.nets.chunks import Chunks
from srl.testing.batches import record_batches
from srl.testing.fakes import run_ranks
from srl.testing.shares import Whole, apart, learn_share, make_learner

T, B = 8, 16
SMALL = {"rollout": T, "batch_size": T * B, "minibatch_size": 32, "hidden": (16,)}
MAKING = threading.Lock()  # fresh weights come from the generator that all threads share

VECTOR = Observation("obs", (4,), "float32")
PLAIN = AgentSpec((VECTOR,), Discrete(3))
MEMORIES = [
    {"memory": kind, "memory_size": 8, "chunk": chunk, "burn_in": burn_in}
    for kind in ("lstm", "gru")
    for chunk, burn_in in ((4, 0), (4, 3), (2, 5), (8, 0))
]
TRANSFORMERS = [
    {"memory": "gtrxl", "memory_size": 8, "memory_length": length, "memory_heads": 2}
    | {"chunk": chunk, "burn_in": burn_in}
    for chunk, burn_in, length in ((4, 0, 6), (4, 3, 2), (2, 5, 3), (8, 0, 8))
]
SLOW = pytest.param(TRANSFORMERS[1], marks=pytest.mark.slow)


def make(agent, ranks=None, **options):
    with MAKING:
        config = PPOConfig(**(SMALL | options))
        return config.make_learner(agent, seed=0, compute=Compute(), ranks=ranks or Alone())


def record(policy, agent, **options):
    return record_batches(policy, agent, rollout=T, lanes=B, **options)[0]


def chunks_of(learner, batch):
    policy = learner.policy
    return Chunks(batch, learner._agent, policy.records, policy.device)


def assert_equal(a, b):
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


@pytest.mark.parametrize("memory", MEMORIES + TRANSFORMERS, ids=str)
def test_recorded_log_probs_are_those_of_the_trainer_through_resets_and_block_borders(memory):
    learner = make(PLAIN, **memory)
    batches = record_batches(learner.policy, PLAIN, rollout=T, lanes=B, end=0.3, blocks=3)
    assert all(batch["first"][1:-1].any() for batch in batches)
    for batch in batches:
        chunks = chunks_of(learner, batch)
        everything = torch.arange(chunks.num_chunks)
        with torch.no_grad():
            shown = chunks.read(everything)
            distribution, value, _ = learner.policy.network(*shown, memory["burn_in"])
        rows = chunks.rows(everything).numpy()
        recorded = {n: chunks.learned(batch[n]).reshape(-1)[rows] for n in ("action", "log_prob")}
        log_prob = distribution.log_prob(torch.tensor(recorded["action"])).numpy()
        np.testing.assert_allclose(log_prob, recorded["log_prob"], atol=1e-4)
        values = chunks.learned(batch["value"]).reshape(-1)[rows]
        np.testing.assert_allclose(value.numpy(), values, atol=1e-4)


@pytest.mark.parametrize("memory", MEMORIES[:3] + TRANSFORMERS[:3], ids=str)
def test_value_of_the_row_after_the_last_uses_the_latest_state(memory):
    learner = make(PLAIN, **memory)
    first, second = record_batches(learner.policy, PLAIN, rollout=T, lanes=B, end=0.3, blocks=2)
    with torch.no_grad():
        last = learner.policy.network.value(*chunks_of(learner, first).last(first))
    np.testing.assert_allclose(last.numpy(), second["value"][memory["burn_in"]], atol=1e-4)


def test_gradients_flow_back_over_a_chunk_and_not_over_a_reset_or_the_burn_in():
    learner = make(PLAIN, memory="lstm", memory_size=8, chunk=4, burn_in=2)
    network = learner.policy.network

    def influence(resets):
        obs = torch.randn(6, 1, 4, requires_grad=True)
        first = torch.zeros(6, 1, dtype=torch.bool)
        for row in resets:
            first[row] = True
        state = {name: torch.zeros(1, 8) for name in ("state.hidden", "state.cell")}
        _, value, _ = network({"obs": obs.flatten(0, 1)}, first, state, 2)
        value[-1].backward()
        assert obs.grad is not None
        return [bool(row.abs().sum() > 0) for row in obs.grad]

    assert influence([]) == [False, False, True, True, True, True]
    assert influence([4]) == [False, False, False, False, True, True]


def test_memory_layer_is_called_once_where_no_lane_resets(monkeypatch):
    learner = make(PLAIN, memory="gru", memory_size=8, chunk=8)
    batch = record(learner.policy, PLAIN, end=0.0)
    calls = []
    layer = learner.policy.network.memory.layer
    layer.register_forward_hook(lambda *_: calls.append(1))
    chunks = chunks_of(learner, batch)
    batch["first"][0] = False
    learner.policy.network(*chunks_of(learner, batch).read(torch.arange(chunks.num_chunks)))
    assert len(calls) == 1


def test_config_of_a_memory_is_checked():
    with pytest.raises(ConfigError, match=r"chunk must be a divisor of algorithm.rollout"):
        PPOConfig(memory="lstm", chunk=7)
    with pytest.raises(
        ConfigError, match=r"burn_in must be 0 without .*memory .lstm or gru or gtrxl"
    ):
        PPOConfig(burn_in=2)
    for name in ("chunk", "memory_size", "memory_length", "memory_layers", "memory_heads"):
        with pytest.raises(ConfigError, match=rf"{name} must be \d+ without algorithm.memory"):
            PPOConfig(**{name: 7})
    with pytest.raises(
        ConfigError, match=r"memory_heads must be a divisor of .*memory_size \(64\)"
    ):
        PPOConfig(memory="gtrxl", memory_heads=5)
    with pytest.raises(ConfigError, match=r"memory_length must be >= 1"):
        PPOConfig(memory="gtrxl", memory_length=0)


def test_config_of_an_encoder_is_checked():
    with pytest.raises(ConfigError, match=r"encoder must be nature or light or resnet or entities"):
        PPOConfig(encoder="vgg")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=r"entity_heads must be a divisor of .*entity_size \(6\)"):
        PPOConfig(encoder="entities", entity_size=6)
    with pytest.raises(ConfigError, match=r"encoder must be nature with algorithm.network"):
        PPOConfig(encoder="resnet", network="nets:Own")
    for kind, needs in (("resnet", "an image"), ("light", "an image"), ("entities", "a set")):
        with pytest.raises(ConfigError, match=f"algorithm.encoder {kind} needs {needs}"):
            PPOConfig(encoder=kind).records(PLAIN)


@pytest.mark.parametrize(("space", "size"), [(Discrete(3), 3), (MultiDiscrete((2, 3)), 5)], ids=str)
def test_masked_actions_are_never_taken_and_do_not_spoil_learning(space, size):
    agent = AgentSpec((VECTOR, Observation("action_mask", (size,), "bool")), space)
    learner = make(agent)
    if size == 3:
        batch = record(learner.policy, agent, reward=lambda obs, action: action)
        taken = np.take_along_axis(batch["action_mask"][:-1], batch["action"][:-1, :, None], 2)
        assert taken.all()
        assert not batch["action_mask"].all()
    batch = record(learner.policy, agent)
    batch["action_mask"][3, 0] = False  # an agent that may do nothing does not act
    batch["acting"][3, 0] = False
    assert np.isfinite(list(learner.learn(batch, 0.0).values())).all()
    assert all(np.isfinite(x).all() for x in learner.save().values())


def test_real_actions_cannot_be_masked():
    agent = AgentSpec((VECTOR, Observation("action_mask", (2,), "bool")), Box((2,), (-1,), (1,)))
    with pytest.raises(ConfigError, match="masks actions that are real numbers"):
        make(agent)


def test_central_critic_sees_what_the_env_shares_and_the_actor_does_not():
    shared = Observation("state", (3,), "float32")
    agent = AgentSpec((VECTOR,), Discrete(3), (shared,))
    learner = make(agent, central_value=True, normalise_observations=True)
    inputs = {
        "obs": np.ones((2, 4), np.float32),
        "first": np.zeros(2, bool),
        "state": np.array([[0, 0, 0], [1, 2, 3]], np.float32),
    }
    answer = learner.policy.act_greedy(inputs)
    assert answer["value"][0] != answer["value"][1]
    assert answer["log_prob"][0] == answer["log_prob"][1]
    batch = record(learner.policy, agent, agents=2, reward=lambda obs, action: action)
    chunks = chunks_of(learner, batch)
    seen = chunks.observe(torch.arange(2 * B), ["state"])["state"].reshape(2, B, 3)
    np.testing.assert_array_equal(seen, batch["state"][:2].repeat(2, axis=1))
    assert np.isfinite(list(learner.learn(batch, 0.0).values())).all()
    with pytest.raises(ConfigError, match="shares something"):
        make(PLAIN, central_value=True)


@pytest.mark.parametrize("memory", [{}, MEMORIES[1]], ids=str)
def test_stacks_are_rebuilt_as_they_were_shown_when_acting(memory):
    agent = AgentSpec((replace(VECTOR, stack=3),), Discrete(3))
    learner = make(agent, **memory)
    batches = record_batches(learner.policy, agent, rollout=T, lanes=B, end=0.3, blocks=3)
    for batch in batches:
        chunks = chunks_of(learner, batch)
        everything = torch.arange(chunks.num_chunks)
        with torch.no_grad():
            shown = chunks.read(everything)
            distribution, _, _ = learner.policy.network(*shown, learner.policy.records.burn_in)
        rows = chunks.rows(everything).numpy()
        action = torch.tensor(chunks.learned(batch["action"]).reshape(-1)[rows])
        recorded = chunks.learned(batch["log_prob"]).reshape(-1)[rows]
        np.testing.assert_allclose(distribution.log_prob(action).numpy(), recorded, atol=1e-4)
    assert np.isfinite(list(learner.learn(batches[-1], 0.0).values())).all()


NETWORK = """
import torch
from torch import nn

class Sum(nn.Module):
    num_features = 5

    def __init__(self, observations):
        super().__init__()
        (seen,) = observations
        self.layer = nn.Linear(seen.shape[0], 5)

    def forward(self, obs):
        return torch.relu(self.layer(obs["obs"]))

def number(observations):
    return 5
"""


def test_a_network_of_the_user_takes_the_place_of_the_encoder(tmp_path):
    (tmp_path / "mine.py").write_text(NETWORK)
    agent = AgentSpec((VECTOR, Observation("action_mask", (3,), "bool")), Discrete(3))
    learner = make(agent, network=f"{tmp_path}/mine.py:Sum")
    assert learner.policy.weights()["encoder.layer.weight"].shape == (5, 4)
    before = learner.policy.weights()["encoder.layer.weight"].copy()
    learner.learn(record(learner.policy, agent, reward=lambda obs, action: obs[:, 0]), 0.0)
    assert not np.array_equal(before, learner.policy.weights()["encoder.layer.weight"])
    with pytest.raises(ConfigError, match=r"must make a torch.nn.Module"):
        make(agent, network=f"{tmp_path}/mine.py:number")
    with pytest.raises(ConfigError, match=r"cannot be made: .*unpack"):
        make(
            AgentSpec((VECTOR, replace(VECTOR, name="two")), Discrete(3)),
            network=f"{tmp_path}/mine.py:Sum",
        )


@pytest.mark.parametrize("memory", [{}, MEMORIES[0], MEMORIES[5], SLOW], ids=str)
def test_two_ranks_equal_one_on_the_same_blocks(memory):
    """100 updates with invalid rows, PopArt, normalised observations and KL stop; 1/4 and 3/4."""
    whole = Whole(make_learner(Alone(), **memory), updates=100)
    assert len(set(whole.samples)) > 1  # the KL stop has ended some batches early

    def follow(rank):
        with MAKING:
            learner = make_learner(rank, **memory)
        learn_share(whole, learner, rank.rank)
        return learner.policy.weights()

    one, other = run_ranks(2, follow)
    assert_equal(one, other)
    assert apart(one, whole.weights) < 1e-5


def test_a_rank_without_rows_takes_part():
    batch = record(make(PLAIN).policy, PLAIN, reward=lambda obs, action: obs[:, 0])

    def learn(rank):
        learner = make(PLAIN, ranks=rank)
        mine = {name: array.copy() for name, array in batch.items()}
        mine["valid"][:] &= rank.rank == 0
        return learner.learn(mine, 0.0), learner.policy.weights()

    (metrics, weights), (others, same) = run_ranks(2, learn)
    assert metrics == others
    assert_equal(weights, same)
