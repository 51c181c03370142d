"""Values of actions: noise row by row, two streams, masks, and memory."""

import numpy as np
import pytest
import torch

from srl.core.compute import Compute
from srl.core.env import AgentSpec, Discrete, Observation
from srl.nets.encoder import EncoderOptions
from srl.nets.memory import MemoryOptions
from srl.nets.noisy import NoisyLinear
from srl.nets.q_network import QNetwork

VECTOR = Observation("obs", (4,), "float32")
PLAIN = AgentSpec((VECTOR,), Discrete(3))
MASKED = AgentSpec((VECTOR, Observation("action_mask", (3,), "bool")), Discrete(3))


def make(agent=PLAIN, **options):
    torch.manual_seed(0)
    defaults = {"network": None, "encoder": EncoderOptions(), "hidden": (8, 8), "memory": None}
    defaults |= {"dueling": False, "noise": None, "numbers": 1, "activation": "relu"}
    return QNetwork(agent, **(defaults | options), epsilon=0.1, compute=Compute())


def judge(network, obs, noise=None):
    first = torch.zeros(1, len(obs), dtype=torch.bool)
    return network({"obs": obs}, first, {}, noise=noise)[0]


def test_noisy_layer_has_for_every_row_the_weights_of_its_noise():
    torch.manual_seed(1)
    layer = NoisyLinear(3, 2, 0.5)
    for parameter in layer.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    x, noise = torch.randn(6, 3), torch.randn(6, 5)
    got = layer(x, noise)
    shaped = noise.sign() * noise.abs().sqrt()
    for row in range(6):
        into, out = shaped[row, :3], shaped[row, 3:]
        weight = layer.weight + layer.weight_scale * torch.outer(into, out)
        bias = layer.bias + layer.bias_scale * out
        torch.testing.assert_close(got[row], x[row] @ weight + bias)


def test_noisy_layer_without_noise_is_its_mean():
    torch.manual_seed(1)
    layer, x = NoisyLinear(3, 2, 0.5), torch.randn(1, 3)
    torch.testing.assert_close(layer(x, None), x @ layer.weight + layer.bias)
    drawn = layer(x.expand(40_000, 3), torch.randn(40_000, 5))
    torch.testing.assert_close(drawn.mean(0), layer(x, None)[0], atol=0.02, rtol=0)


def test_noisy_layer_begins_as_in_the_paper():
    layer = NoisyLinear(16, 4, 0.5)
    assert layer.weight.abs().max() <= 1 / 4
    assert set(layer.weight_scale.flatten().tolist()) == {0.5 / 4}
    assert set(layer.bias_scale.tolist()) == {0.5 / 4}


def test_each_row_has_noise_of_its_own():
    network = make(noise=0.5, dueling=True)
    # two streams of 4 -> 8 -> 8 -> 3 and 1: inputs and outputs of every layer
    assert network.num_noise == 2 * (4 + 8 + 8 + 8) + (8 + 3) + (8 + 1)
    obs, noise = torch.randn(1, 4).expand(5, 4), torch.randn(5, network.num_noise)
    got = judge(network, obs, noise)
    assert len(got.flatten().unique()) == 15
    for row in range(5):
        torch.testing.assert_close(got[row], judge(network, obs[:1], noise[row : row + 1])[0])
    assert len(judge(network, obs).unique(dim=0)) == 1


@pytest.mark.parametrize("numbers", [1, 5])
def test_advantages_of_two_streams_have_mean_zero(numbers):
    network = make(dueling=True, numbers=numbers)
    obs = torch.randn(6, 4)
    values = judge(network, obs)
    assert values.shape == (6, 3, numbers)
    advantage, value = network.streams
    torch.testing.assert_close(values.mean(1), value(obs, None))
    raw = advantage(obs, None).reshape(6, 3, numbers)
    torch.testing.assert_close(values[:, 1] - values[:, 0], raw[:, 1] - raw[:, 0])


def test_best_is_the_highest_that_is_allowed():
    network = make(MASKED)
    values = torch.tensor([[1.0, 2.0, 3.0]]).expand(4, 3)
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 0]]).bool()
    best = network.best(values, {"action_mask": mask})
    assert best[:3].tolist() == [2, 1, 0]
    assert 0 <= int(best[3]) < 3  # nobody acts there, but it must be an action
    assert network.best(torch.full((1, 3), -1e30), {"action_mask": mask[2:3]}).tolist() == [0]


def test_the_mask_is_not_an_input():
    network = make(MASKED)
    assert network.encoder.num_features == 4
    obs = {"obs": torch.randn(2, 4), "action_mask": torch.ones(2, 3, dtype=torch.bool)}
    first = torch.zeros(1, 2, dtype=torch.bool)
    other = obs | {"action_mask": ~obs["action_mask"]}
    torch.testing.assert_close(network(obs, first, {})[0], network(other, first, {})[0])


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize("burn_in", [0, 3])
def test_memory_row_by_row_equals_a_chunk(kind, burn_in):
    options = MemoryOptions(kind, 6)
    network = make(memory=options, dueling=True)
    rows, lanes = 7, 5
    obs = torch.randn(rows, lanes, 4)
    first = torch.rand(rows, lanes) < 0.3
    start = {name: torch.randn(lanes, 6) for name in options.state.names}
    chunk, after = network({"obs": obs.flatten(0, 1)}, first, start, burn_in)
    one_by_one, state = [], start
    for t in range(rows):
        values, state = network({"obs": obs[t]}, first[t : t + 1], state)
        one_by_one.append(values)
    torch.testing.assert_close(chunk, torch.cat(one_by_one[burn_in:]))
    for name in after:
        torch.testing.assert_close(after[name], state[name])


def test_gradients_do_not_flow_into_the_burn_in():
    network = make(memory=MemoryOptions("gru", 6))
    obs = torch.randn(4, 1, 4, requires_grad=True)
    state = {"state.hidden": torch.zeros(1, 6)}
    first = torch.zeros(4, 1, dtype=torch.bool)
    values, _ = network({"obs": obs.flatten(0, 1)}, first, state, 2)
    values[-1].sum().backward()
    assert obs.grad is not None
    assert [bool(row.abs().sum() > 0) for row in obs.grad] == [False, False, True, True]


def test_epsilon_is_one_of_the_weights():
    network = make()
    assert network.state_dict()["epsilon"].item() == pytest.approx(0.1)
    assert "epsilon" not in dict(network.named_parameters())
    assert np.isfinite(judge(network, torch.randn(2, 4)).detach().numpy()).all()
