import threading

import numpy as np
import pytest
import torch

from srl.algorithms.ppo import PPOConfig
from srl.core.algorithm import AlgorithmConfig, Learner, Policy
from srl.core.collective import Alone
from srl.core.compute import Compute
from srl.core.env import AgentSpec, Box, Discrete, MultiDiscrete, Observation
from srl.core.errors import CheckpointError, ConfigError
from srl.nets.chunks import Chunks
from srl.testing.batches import record_batches

VECTOR = (Observation("obs", (4,), "float32"),)
DISCRETE = AgentSpec(VECTOR, Discrete(3))
SPACES = [Discrete(3), MultiDiscrete((2, 3)), Box((2,), (-1.0, -1.0), (1.0, 1.0))]
T, B = 8, 16
SMALL = {"rollout": T, "batch_size": T * B, "minibatch_size": 32, "hidden": (16,)}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def record(policy, agent, seed=0, reward=lambda obs, action: 0.0, end=0.1):
    (batch,) = record_batches(policy, agent, rollout=T, lanes=B, seed=seed, reward=reward, end=end)
    return batch


MAKING = threading.Lock()  # fresh weights come from the generator that all threads share


def make(agent=DISCRETE, seed=0, ranks=None, **options):
    with MAKING:
        config = PPOConfig(**(SMALL | options))
        return config.make_learner(agent, seed=seed, compute=Compute(), ranks=ranks or Alone())


def chunks_of(learner, batch):
    policy = learner.policy
    return Chunks(batch, learner._agent, policy.records, policy.device)


def assert_equal(a, b):
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def copies(arrays):
    return {name: array.copy() for name, array in arrays.items()}


def test_ppo_fits_the_contracts():
    config: AlgorithmConfig = PPOConfig()
    learner: Learner = config.make_learner(DISCRETE, seed=0, compute=Compute(), ranks=Alone())
    policy: Policy = config.make_policy(DISCRETE, seed=0, compute=Compute())
    assert policy.records.outputs.names == ("action", "log_prob", "value")
    assert_equal(learner.policy.weights(), policy.weights())


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("clip", -1, "algorithm.clip must be > 0, got -1"),
        ("discount", 1.5, "algorithm.discount must be in 0..1, got 1.5"),
        ("dual_clip", 1.0, "algorithm.dual_clip must be > 1, got 1.0"),
        (
            "clip_schedule",
            "cosine",
            "algorithm.clip_schedule must be constant or linear, got cosine",
        ),
        ("epochs", 0, "algorithm.epochs must be >= 1, got 0"),
        ("batch_size", 100, r"algorithm.batch_size must be a multiple of .* \(128\), got 100"),
    ],
)
def test_config_when_out_of_range_names_the_option(option, value, message):
    with pytest.raises(ConfigError, match=message):
        PPOConfig(**{option: value})


def test_records_when_nothing_is_observed_raise():
    with pytest.raises(ConfigError, match="observes something"):
        PPOConfig().records(AgentSpec((), Discrete(2)))


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_act_answers_its_spec_and_leaves_inputs_alone(space):
    policy = make(AgentSpec(VECTOR, space)).policy
    obs = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    obs.flags.writeable = False
    for act in (policy.act, policy.act_greedy):
        answer = act({"obs": obs, "first": np.zeros(5, bool)})
        assert answer.keys() == set(policy.records.outputs.names)
        for field in policy.records.outputs:
            assert answer[field.name].shape == (5, *field.shape)
            assert answer[field.name].dtype == field.dtype


def test_equal_seeds_act_alike_and_leave_the_global_generator_alone():
    before = torch.get_rng_state()
    a, b, other = make(seed=1).policy, make(seed=1).policy, make(seed=2).policy
    inputs = {"obs": np.ones((64, 4), np.float32), "first": np.zeros(64, bool)}
    assert_equal(a.act(inputs), b.act(inputs))
    assert not np.array_equal(a.act(inputs)["action"], other.act(inputs)["action"])
    assert torch.equal(before, torch.get_rng_state())


def test_first_loss_by_hand():
    """Ratios are 1 before any update: the policy loss is −mean A, the value loss ½ mean A²."""
    learner = make(normalise_advantages=False, epochs=1, minibatch_size=T * B)
    batch = record(learner.policy, DISCRETE, reward=lambda obs, action: 1.0, end=0.0)
    advantages, _ = learner._advantages(chunks_of(learner, batch), batch)
    metrics = learner.learn(batch, 0.0)
    assert metrics["policy_loss"] == pytest.approx(-advantages.mean(), rel=1e-4)
    assert metrics["value_loss"] == pytest.approx(0.5 * (advantages**2).mean(), rel=1e-4)
    assert metrics["log_prob_drift"] == pytest.approx(0, abs=1e-5)
    assert metrics["entropy"] == pytest.approx(np.log(3), abs=1e-2)
    assert metrics["train_samples"] == T * B
    assert learner.updates == 1


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_learn_moves_weights_and_reports_finite_metrics(space):
    agent = AgentSpec((*VECTOR, Observation("kind", (2,), "int64", (256, 256))), space)
    learner = make(agent, value_clip=0.2, dual_clip=3.0, normalise_observations=True)
    before = copies(learner.policy.weights())
    batch = record(learner.policy, agent, reward=lambda obs, action: obs[:, 0])
    metrics = learner.learn(batch, 0.5)
    assert np.isfinite(list(metrics.values())).all()
    assert metrics["train_samples"] == 4 * batch["valid"][:-1].sum()
    after = learner.policy.weights()
    assert all(not np.array_equal(before[name], after[name]) for name in before)


def test_image_is_learned_from_with_a_shared_cnn():
    agent = AgentSpec((Observation("frame", (36, 36, 2), "uint8"),), Discrete(2))
    learner = make(agent, hidden=(), epochs=1)
    metrics = learner.learn(record(learner.policy, agent, reward=lambda obs, action: action), 0.0)
    assert np.isfinite(list(metrics.values())).all()


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_identity_problem_is_solved(space):
    """The reward is highest for the action that repeats a fact of the observation."""
    agent = AgentSpec(VECTOR, space)
    options = {"minibatch_size": 64, "learning_rate": 0.02, "discount": 0.0, "entropy_weight": 0.0}
    learner = make(agent, **options, normalise_returns=True, normalise_observations=True)

    def reward(obs, action):
        if isinstance(space, Box):
            return -np.abs(action - obs[:, :2]).mean(-1)
        right = obs[:, : max(1, len(space.field.shape) * 2)] > 0
        return (action.reshape(len(obs), -1) == right).mean(-1)

    for i in range(80):
        learner.learn(record(learner.policy, agent, i, reward), 0.0)
    obs = np.random.default_rng(1000).normal(size=(200, 4)).astype(np.float32)
    score = reward(
        obs, learner.policy.act_greedy({"obs": obs, "first": np.zeros(200, bool)})["action"]
    ).mean()
    assert score > (-0.25 if isinstance(space, Box) else 0.93)


@pytest.mark.parametrize("normalise", [False, True])
def test_save_and_load_continue_bit_for_bit(normalise):
    options = {"normalise_observations": normalise, "normalise_returns": normalise}
    a, b = make(seed=1, **options), make(seed=2, **options)
    batches = [record(a.policy, DISCRETE, i, lambda obs, action: obs[:, 1] + 3) for i in range(3)]
    a.learn(batches[0], 0.0)
    b.learn(batches[2], 0.0)
    b.load(a.save())
    assert (a.learn(batches[1], 0.3), a.updates) == (b.learn(batches[1], 0.3), b.updates)
    assert_equal(a.save(), b.save())
    inputs = {name: batches[0][name][0] for name in ("obs", "first")}
    assert_equal(a.policy.act(inputs), b.policy.act(inputs))


def test_load_when_fresh_is_the_start():
    a, b = make(seed=1), make(seed=1)
    start = a.save()
    batch = record(make(seed=5).policy, DISCRETE, 0)
    a.learn(batch, 0.0)
    a.load(start)
    assert (a.learn(batch, 0.0), a.updates) == (b.learn(batch, 0.0), b.updates)


def test_load_when_the_network_differs_names_tensor_and_shapes_and_changes_nothing():
    learner = make()
    before = learner.save()
    with pytest.raises(
        CheckpointError, match=r"'weights/actor.layers.0.weight'.*\[4, 16\].*\[4, 8\]"
    ):
        learner.load(make(hidden=(8,)).save())
    with pytest.raises(CheckpointError, match=r"encoder.*is not wanted"):
        learner.load(make(normalise_observations=True).save())
    with pytest.raises(CheckpointError, match="'updates' is missing"):
        learner.load({name: x for name, x in before.items() if name != "updates"})
    assert_equal(learner.save(), before)


def test_rows_that_are_not_valid_have_no_influence():
    """Only the recorded value of a final observation counts: it is the bootstrap."""
    options = {"normalise_observations": True, "normalise_returns": True}
    a, b = make(**options), make(**options)
    batch = record(a.policy, DISCRETE, reward=lambda obs, action: obs[:, 0], end=0.4)
    changed = copies(batch)
    wrong = ~batch["valid"]
    wrong[-1] = False
    assert wrong.any()
    changed["obs"][wrong] = 99.0
    changed["action"][wrong] = 2
    changed["log_prob"][wrong] = -50.0
    changed["reward"][wrong] = 1e6
    b.policy.load(a.policy.save())
    assert a.learn(batch, 0.0) == b.learn(changed, 0.0)
    assert_equal(a.save(), b.save())


def test_rows_where_the_agent_does_not_act_are_not_learned():
    learner = make()
    batch = record(learner.policy, DISCRETE, end=0.0)
    batch["acting"][:, 1:] = False
    assert learner.learn(batch, 0.0)["train_samples"] == 4 * T


def test_batch_without_a_valid_row_changes_nothing():
    learner = make()
    batch = record(learner.policy, DISCRETE)
    batch["valid"][:] = False
    before = learner.save()
    assert learner.learn(batch, 0.0)["train_samples"] == 0
    assert_equal(learner.save(), before)


def test_kl_stop_ends_the_epochs():
    options = {"learning_rate": 0.05, "epochs": 10}
    free, stopped = make(**options), make(**options, target_kl=1e-3)
    batch = record(free.policy, DISCRETE, reward=lambda obs, action: action, end=0.0)
    assert free.learn(batch, 0.0)["train_samples"] == 10 * T * B
    metrics = stopped.learn(batch, 0.0)
    assert metrics["train_samples"] < 5 * T * B
    assert metrics["approx_kl"] > 1e-3


def test_schedules_follow_progress():
    learner = make(learning_rate_schedule="linear", clip_schedule="linear")
    batch = record(learner.policy, DISCRETE)
    before = copies(learner.policy.weights())
    assert learner.learn(batch, 1.0)["learning_rate"] == 0.0
    assert_equal(learner.policy.weights(), before)
    assert learner.learn(batch, 0.5)["learning_rate"] == pytest.approx(1.5e-4)


def test_normalised_returns_keep_values_in_units_of_reward():
    learner = make(normalise_returns=True, epochs=1, learning_rate=1e-9)
    batch = record(learner.policy, DISCRETE, reward=lambda obs, action: 100 + 50 * obs[:, 0])
    inputs = {name: batch[name][0] for name in ("obs", "first")}
    before = learner.policy.act(inputs)["value"]
    learner.learn(batch, 0.0)
    assert learner.policy.weights()["returns.mean"] > 50
    np.testing.assert_allclose(learner.policy.act(inputs)["value"], before, atol=1e-2)


def test_weights_bring_another_policy_to_the_same_answers():
    learner = make(normalise_observations=True, normalise_returns=True)
    batch = record(learner.policy, DISCRETE, reward=lambda obs, action: 5 * obs[:, 0])
    learner.learn(batch, 0.0)
    other = make(seed=9, normalise_observations=True, normalise_returns=True).policy
    other.load_weights(learner.policy.weights())
    inputs = {name: batch[name][0] for name in ("obs", "first")}
    assert_equal(learner.policy.act_greedy(inputs), other.act_greedy(inputs))


def test_update_is_what_it_was():
    """Guards the numbers of learning; a change here changes learning and must say so."""
    learner = make(seed=3)
    for i in range(5):
        batch = record(learner.policy, DISCRETE, i, lambda obs, action: (action == 1) + obs[:, 0])
        metrics = learner.learn(batch, 0.0)
    got = [metrics[name] for name in ("value_loss", "entropy", "grad_norm")]
    assert got == pytest.approx([2.82288, 1.09817, 1.29148], rel=1e-3)
