"""PPO gives the same however it computes: padded, compiled, in bf16, on a GPU by CUDA graphs."""

import numpy as np
import pytest
import torch

from srl.algorithms.ppo import PPOConfig
from srl.core.collective import Alone
from srl.core.compute import Compute
from srl.core.env import AgentSpec, Box, Discrete, Observation
from srl.nets.acting import bucket
from srl.testing.batches import record_batches

VECTOR = AgentSpec((Observation("obs", (4,), "float32"),), Discrete(3))
REAL = AgentSpec((Observation("obs", (5,), "float32"),), Box((2,), (-1.0,) * 2, (1.0,) * 2))
FRAMES = AgentSpec((Observation("obs", (40, 40), "uint8", stack=4),), Discrete(6))
THUMBNAILS = AgentSpec((Observation("obs", (10, 10), "uint8", stack=4),), Discrete(6))
SETS = AgentSpec(
    (
        Observation("obs", (4,), "float32"),
        Observation("others", (5, 3), "float32"),
        Observation("others_mask", (5,), "bool"),
    ),
    Discrete(3),
)
MEMORY = {"memory": "gru", "memory_size": 8, "chunk": 4, "burn_in": 2}
TRANSFORMER = MEMORY | {"memory": "gtrxl", "memory_length": 3, "memory_heads": 2}
ENTITIES = {"encoder": "entities", "entity_size": 8, "normalise_observations": True}
CASES = {
    "vector": (VECTOR, {}),
    "real": (REAL, {"normalise_observations": True, "normalise_returns": True}),
    "frames": (FRAMES, {"hidden": (), "learning_rate": 0.003}),
    "light": (FRAMES, {"hidden": (), "learning_rate": 0.003, "encoder": "light"}),
    "resnet": (THUMBNAILS, {"hidden": (), "learning_rate": 0.001, "encoder": "resnet"}),
    "memory": (VECTOR, MEMORY),
    "transformer": (VECTOR, TRANSFORMER | {"learning_rate": 0.01}),
    "entities": (SETS, ENTITIES | {"learning_rate": 0.01}),
}
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def make(agent, compute, **options):
    sizes = {"rollout": 8, "batch_size": 128, "minibatch_size": 48, "hidden": (16,)}
    config = PPOConfig(**(sizes | {"learning_rate": 0.05, "adam_epsilon": 0.1} | options))
    return config.make_learner(agent, seed=0, compute=compute, ranks=Alone())


def batches_of(agent, options, blocks=4):
    policy = make(agent, Compute(), **options).policy
    return record_batches(
        policy, agent, rollout=8, lanes=16, end=0.2, blocks=blocks, reward=lambda o, a: 1.0
    )


def learned(learner, batches):
    metrics = [learner.learn(batch, 0.0) for batch in batches]
    return {name: array.copy() for name, array in learner.policy.weights().items()}, metrics


def shown(policy, batch, num_lanes=16):
    row = policy.records.burn_in
    names = ("first", *policy.observation_names, *policy.records.state.names)
    inputs = {name: batch[name][min(row, len(batch[name]) - 1)][:num_lanes] for name in names}
    if batch["obs"].dtype == np.uint8:
        inputs["obs"] = np.moveaxis(batch["obs"][:4, :num_lanes], 0, 1).copy()
    return inputs


def largest_difference(some, others):
    assert some.keys() == others.keys()
    return max(float(np.abs(some[name] - others[name]).max()) for name in some)


@pytest.mark.parametrize("case", CASES)
def test_minibatches_padded_to_one_size_give_the_same_weights(case):
    agent, options = CASES[case]
    batches = batches_of(agent, options)
    plain, padded = make(agent, Compute(), **options), make(agent, Compute(), **options)
    padded._size = -(-48 // padded.policy.records.chunk) + 3
    (weights, metrics), (others, same) = learned(plain, batches), learned(padded, batches)
    assert largest_difference(weights, others) < 1e-5
    for a, b in zip(metrics, same, strict=True):
        assert a == pytest.approx(b, rel=1e-3, abs=1e-5)
    fresh = make(agent, Compute(), **options).policy.weights()
    assert largest_difference(weights, fresh) > 1e-4


@pytest.mark.parametrize("case", CASES)
def test_bf16_rounds_layers_only(case):
    agent, options = CASES[case]
    batches = batches_of(agent, options, blocks=2)
    exact, rounded = (make(agent, Compute(precision=p), **options) for p in ("fp32", "bf16"))
    inputs = shown(rounded.policy, batches[0])
    answers = [learner.policy.act_greedy(inputs) for learner in (exact, rounded)]
    assert all(array.dtype in (np.float32, np.int64, np.int32) for array in answers[1].values())
    np.testing.assert_allclose(answers[0]["log_prob"], answers[1]["log_prob"], atol=0.05)
    assert largest_difference(answers[0], answers[1]) > 0
    (weights, _), (others, _) = learned(exact, batches), learned(rounded, batches)
    assert 0 < largest_difference(weights, others) < 0.05
    assert all(array.dtype != np.float16 for array in others.values())


@pytest.mark.parametrize("num_lanes", [*range(1, 70), 200, 1000, 4097])
def test_a_bucket_wastes_at_most_a_fifth(num_lanes):
    size = bucket(num_lanes)
    assert num_lanes <= size <= num_lanes * 1.25
    assert bucket(size) == size


def test_there_are_four_buckets_an_octave():
    assert len({bucket(n) for n in range(65, 129)}) == 4


def test_without_a_compiler_it_goes_on_and_says_so(monkeypatch, caplog):
    def broken(*_, **__):
        raise RuntimeError("no compiler found")

    monkeypatch.setattr(torch, "compile", broken)
    learner = make(VECTOR, Compute(compile=True))
    assert "no compiler found" in caplog.text
    assert learner.learn(batches_of(VECTOR, {})[0], 0.0)["train_samples"] > 0


@needs_gpu
@pytest.mark.parametrize("case", CASES)
def test_a_gpu_learns_what_the_cpu_learns(case):
    agent, options = CASES[case]
    batches = batches_of(agent, options, blocks=8)
    here, there = (make(agent, Compute(device), **options) for device in ("cpu", "cuda"))
    (weights, _), (others, _) = learned(here, batches), learned(there, batches)
    assert largest_difference(weights, others) < 1e-3


@needs_gpu
@pytest.mark.parametrize("case", CASES)
def test_a_gpu_answers_like_the_cpu_at_every_batch_size(case):
    agent, options = CASES[case]
    here, there = (make(agent, Compute(device), **options).policy for device in ("cpu", "cuda"))
    batch = batches_of(agent, options)[0]
    for round_ in range(6):
        for num_lanes in (1, 7, 16, 11):
            inputs = shown(here, batch, num_lanes)
            mine, its = here.act(inputs), there.act(inputs)
            assert mine.keys() == its.keys()
            np.testing.assert_array_equal(mine["action"].shape, its["action"].shape)
            np.testing.assert_allclose(mine["value"], its["value"], atol=1e-3)
            if case != "real":
                assert (mine["action"] == its["action"]).mean() > 0.9, round_
