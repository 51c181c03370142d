"""Small policies act like torch's: by the same weights, with the same probabilities."""

import logging
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from srl.algorithms.ppo import PPOConfig
from srl.core.algorithm import HasSmallPolicy, Policy
from srl.core.compute import Compute
from srl.core.env import AgentSpec, Box, Discrete, MultiDiscrete, Observation
from srl.core.errors import CheckpointError
from srl.core.names import load_object
from srl.nets.actor_critic_policy import ActorCriticPolicy
from srl.nets.small import LARGEST_LAYER, SmallActorCritic

VECTOR = Observation("obs", (4,), "float32")
SEEN = {
    "numbers": (VECTOR,),
    "one number": (Observation("obs", (), "float32"),),
    "numbers of other types": (
        Observation("doubles", (3,), "float64"),
        Observation("bytes", (2, 3), "uint8"),
        Observation("flag", (), "bool"),
    ),
    "stacked numbers": (Observation("obs", (3,), "float32", stack=4),),
    "categories": (Observation("obs", (), "int64", categories=(5,)),),
    "small categories": (Observation("obs", (2, 2), "uint8", categories=(2, 3, 4, 5)),),
    "stacked categories": (Observation("obs", (2,), "int32", categories=(3, 2), stack=3),),
    "everything": (
        Observation("cards", (2,), "int64", categories=(4, 3)),
        Observation("place", (3,), "float32"),
        Observation("turn", (), "int16", categories=(2,)),
    ),
}
ACTIONS = {
    "discrete": Discrete(3),
    "one choice": Discrete(1),
    "many choices": Discrete(40),
    "multi-discrete": MultiDiscrete((2, 5, 1)),
    "box": Box((2,), (-1.0,) * 2, (1.0,) * 2),
    "box of one": Box((), (-1.0,), (1.0,)),
    "box of two axes": Box((2, 3), (-1.0,) * 6, (1.0,) * 6),
}
N = 33


def with_mask(action: Discrete | MultiDiscrete, dtype: str = "int8") -> AgentSpec:
    size = action.n if isinstance(action, Discrete) else sum(action.nvec)
    return AgentSpec((VECTOR, Observation("action_mask", (size,), dtype)), action)


def small_of(config: PPOConfig, agent: AgentSpec, seed: int = 0) -> SmallActorCritic:
    named = config.small_policy(agent)
    assert named is not None
    return load_object(named.maker)(agent, seed=seed, **named.options)


def both(agent: AgentSpec, seed: int = 0, **options) -> tuple[ActorCriticPolicy, SmallActorCritic]:
    """Torch's policy and the small one, with the same random weights."""
    config, rng = PPOConfig(**({"hidden": (16, 16)} | options)), np.random.default_rng(seed)
    policy, small = config.make_policy(agent, seed=seed, compute=Compute()), small_of(config, agent)
    weights = {}
    for name, array in policy.weights().items():
        noise = rng.normal(0, 0.5, array.shape)
        moved = np.abs(noise) + array if name.endswith("var") else noise + array
        weights[name] = np.asarray(moved, array.dtype)
    policy.load_weights(weights)
    small.load_weights(weights)
    return policy, small


def observe(agent: AgentSpec, seed: int = 0, n: int = N) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    inputs = {"first": np.zeros(n, bool)}
    for seen in agent.observations:
        shape = (n, *seen.seen_shape)
        if seen is agent.action_mask:
            values = rng.random(shape) < 0.5
        elif seen.categories:
            sizes = np.array(seen.categories * seen.stack).reshape(seen.seen_shape)
            values = rng.integers(0, sizes, shape)
        else:
            values = rng.normal(0, 20, shape) if seen.dtype[0] == "f" else rng.integers(0, 2, shape)
        inputs[seen.name] = values.astype(seen.dtype)
    return inputs


def tensors(inputs: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(x) for name, x in inputs.items()}


def log_prob(
    policy: ActorCriticPolicy, inputs: dict[str, np.ndarray], action: np.ndarray
) -> np.ndarray:
    with torch.inference_mode():
        distribution, _, _ = policy.network(*policy.observed(tensors(inputs)))
        return distribution.log_prob(torch.from_numpy(action.copy())).numpy()


def assert_alike(agent: AgentSpec, seed: int = 0, n: int = N, **options) -> None:
    policy, small = both(agent, seed, **options)
    inputs = observe(agent, seed, n)
    theirs, ours = policy.act_greedy(inputs), small.act_greedy(inputs)
    assert ours.keys() == theirs.keys()
    for name, array in theirs.items():
        assert (ours[name].shape, ours[name].dtype) == (array.shape, array.dtype), name
        np.testing.assert_allclose(ours[name], array, rtol=1e-5, atol=1e-5, err_msg=name)
    drawn = small.act(inputs)
    expected = log_prob(policy, inputs, drawn["action"])
    np.testing.assert_allclose(drawn["log_prob"], expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(drawn["value"], theirs["value"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("seen", SEEN)
def test_every_observation_is_seen_as_by_torch(seen: str, normalise: bool) -> None:
    assert_alike(AgentSpec(SEEN[seen], Discrete(3)), normalise_observations=normalise)


@pytest.mark.parametrize("action", ACTIONS)
def test_every_action_is_taken_as_by_torch(action: str) -> None:
    assert_alike(AgentSpec((VECTOR,), ACTIONS[action]), normalise_returns=True)


@pytest.mark.parametrize("dtype", ["bool", "int8"])
@pytest.mark.parametrize("action", [Discrete(4), MultiDiscrete((3, 1, 4))])
def test_masks_are_heeded_as_by_torch(action: Discrete | MultiDiscrete, dtype: str) -> None:
    # some rows of these masks allow nothing: then all choices are alike
    assert_alike(with_mask(action, dtype))


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**31),
    n=st.integers(1, 70),
    size=st.integers(1, 9),
    hidden=st.lists(st.integers(1, 20), max_size=3),
    activation=st.sampled_from(["tanh", "relu"]),
    action=st.sampled_from(list(ACTIONS.values())),
    normalise=st.booleans(),
)
def test_any_shape_is_like_torch(seed, n, size, hidden, activation, action, normalise) -> None:
    agent = AgentSpec((Observation("obs", (size,), "float32"),), action)
    options = {"hidden": tuple(hidden), "activation": activation}
    policy, small = both(agent, seed, **options, normalise_observations=normalise)
    inputs = observe(agent, seed, n)
    drawn, theirs = small.act(inputs), policy.act_greedy(inputs)
    expected = log_prob(policy, inputs, drawn["action"])
    np.testing.assert_allclose(drawn["log_prob"], expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(drawn["value"], theirs["value"], rtol=1e-4, atol=1e-4)


def test_choices_are_drawn_as_often_as_they_are_likely() -> None:
    agent = AgentSpec((VECTOR,), MultiDiscrete((3, 6)))
    policy, small = both(agent)
    inputs = {k: np.repeat(v[:1], 1000, axis=0) for k, v in observe(agent).items()}
    drawn = np.concatenate([small.act(inputs)["action"].copy() for _ in range(100)])
    with torch.inference_mode():
        distribution, _, _ = policy.network(*policy.observed(tensors(inputs)))
    for k, choice in enumerate(distribution.choices):
        expected = len(drawn) * choice.log_probs[0].exp().double().numpy()
        counts = np.bincount(drawn[:, k], minlength=len(expected))
        chi_square = float(((counts - expected) ** 2 / expected).sum())
        freedom = len(expected) - 1
        assert chi_square < freedom + 4 * math.sqrt(2 * freedom)
    joint = np.bincount(drawn[:, 0] * 6 + drawn[:, 1], minlength=18).reshape(3, 6) / len(drawn)
    np.testing.assert_allclose(joint, np.outer(joint.sum(1), joint.sum(0)), atol=5e-3)


def test_numbers_are_drawn_with_their_mean_and_deviation() -> None:
    agent = AgentSpec((VECTOR,), ACTIONS["box"])
    policy, small = both(agent)
    inputs = {k: np.repeat(v[:1], 1000, axis=0) for k, v in observe(agent).items()}
    drawn = np.concatenate([small.act(inputs)["action"].copy() for _ in range(100)])
    std = np.exp(policy.weights()["policy_head.log_std"])
    mean = policy.act_greedy(inputs)["action"][0]
    np.testing.assert_allclose(drawn.mean(0), mean, atol=float(4 * std.max() / 300))
    np.testing.assert_allclose(drawn.std(0), std, rtol=0.02)
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.02


class Always(np.random.Generator):
    """Draws one number."""

    number = 0.0

    def random(self, size=None, dtype=np.float64, out=None):
        out[...] = self.number


@pytest.mark.parametrize("number", [0.0, 1 - 2.0**-24])
@settings(deadline=None, max_examples=100)
@given(seed=st.integers(0, 2**31), n=st.integers(2, 60))
def test_least_and_largest_number_draw_choices_that_are_allowed(
    number: float, seed: int, n: int
) -> None:
    agent = with_mask(Discrete(n))
    _, small = both(agent, seed)
    small._rng = Always(np.random.SFC64())
    small._rng.number = number
    inputs = observe(agent, seed)
    inputs["action_mask"][np.arange(N), np.arange(N) % n] = 1  # never nothing
    action = small.act(inputs)["action"]
    assert (action < n).all()
    assert np.take_along_axis(inputs["action_mask"], action[:, None], 1).all()


def test_weights_are_copied_and_named_as_torch_names_them() -> None:
    agent = AgentSpec((VECTOR,), ACTIONS["box"])
    policy, small = both(agent, normalise_observations=True, normalise_returns=True)
    theirs, ours = policy.weights(), small.weights()
    assert ours.keys() == theirs.keys()
    for name, array in theirs.items():
        assert ours[name].dtype == array.dtype
        np.testing.assert_array_equal(ours[name], array, err_msg=name)
    inputs = observe(agent)
    before = small.act_greedy(inputs)["value"].copy()
    for array in theirs.values():
        array.fill(0)
    np.testing.assert_array_equal(small.act_greedy(inputs)["value"], before)


def test_weights_of_another_network_are_refused() -> None:
    agent = AgentSpec((VECTOR,), Discrete(3))
    policy, _ = both(agent)
    with pytest.raises(CheckpointError, match=r"'actor\.layers\.1\.bias' is not wanted"):
        small_of(PPOConfig(hidden=(16,)), agent).load_weights(policy.weights())
    with pytest.raises(CheckpointError, match=r"'actor\.layers\.0\.weight' has shape \[4, 8\]"):
        small_of(PPOConfig(hidden=(8, 16)), agent).load_weights(policy.weights())


@pytest.mark.parametrize("action", [Discrete(3), ACTIONS["box"]])
def test_a_saved_generator_goes_on_bit_for_bit(action: Discrete | Box) -> None:
    agent = AgentSpec((VECTOR,), action)
    _, small = both(agent)
    inputs = observe(agent)  # an odd number of lanes: half of a drawn word is left over
    small.act(inputs)
    state = small.save()
    again = small_of(PPOConfig(hidden=(16, 16)), agent, seed=5)
    again.load_weights(small.weights())
    again.load(state)
    for _ in range(3):
        expected, found = small.act(inputs), again.act(inputs)
        for name in expected:
            np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def test_equal_seeds_draw_equal_actions_and_others_others() -> None:
    agent = AgentSpec((VECTOR,), ACTIONS["box"])
    config = PPOConfig()
    first, same, other = (small_of(config, agent, seed) for seed in (1, 1, 2))
    actions = [p.act(observe(agent))["action"] for p in (first, same, other)]
    np.testing.assert_array_equal(actions[0], actions[1])
    assert (actions[0] != actions[2]).all()


def test_state_of_torchs_generator_is_left_alone_and_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = AgentSpec((VECTOR,), Discrete(3))
    policy, small = both(agent)
    before = small.save()["sfc64"]
    with caplog.at_level(logging.WARNING):
        small.load(policy.save())
    assert "begins anew" in caplog.text
    np.testing.assert_array_equal(small.save()["sfc64"], before)


def test_records_are_those_of_ppo() -> None:
    for action in ACTIONS.values():
        agent = AgentSpec((VECTOR,), action)
        policy: Policy = small_of(PPOConfig(), agent)
        assert policy.records == PPOConfig().records(agent)


def test_ppo_offers_none_where_it_would_not_act_alike_or_not_faster() -> None:
    agent = AgentSpec((VECTOR,), Discrete(3))
    image = AgentSpec((Observation("obs", (84, 84, 1), "uint8"),), Discrete(3))
    shared = AgentSpec((VECTOR,), Discrete(3), central=(Observation("all", (2,), "float32"),))
    entities = AgentSpec((Observation("boxes", (4, 3), "float32"),), Discrete(3))
    wide = AgentSpec((Observation("obs", (LARGEST_LAYER + 1,), "float32"),), Discrete(3))
    assert isinstance(PPOConfig(), HasSmallPolicy)
    assert PPOConfig().small_policy(image) is None
    assert PPOConfig().small_policy(wide) is None
    assert PPOConfig(memory="gru").small_policy(agent) is None
    assert PPOConfig(memory="gtrxl").small_policy(agent) is None
    assert PPOConfig(encoder="entities").small_policy(entities) is None
    assert PPOConfig().small_policy(entities) is not None
    assert PPOConfig(network="nets:Own").small_policy(agent) is None
    assert PPOConfig(central_value=True).small_policy(shared) is None
    assert PPOConfig(hidden=(LARGEST_LAYER + 1,)).small_policy(agent) is None
    assert PPOConfig(hidden=(LARGEST_LAYER,)).small_policy(agent) is not None
    assert PPOConfig().small_policy(shared) is not None


def test_it_is_imported_without_torch() -> None:
    code = "import sys, srl.nets.small; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
