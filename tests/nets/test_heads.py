import pytest
import torch

from srl.core.env import Box, Discrete, MultiDiscrete
from srl.nets.heads import ValueHead, make_policy_head
from srl.nets.mlp import Linear, Mlp
from srl.ops.distributions import draw_noise

SPACES = [
    Discrete(3),
    MultiDiscrete((2, 4)),
    Box((2, 2), (-1.0,) * 4, (1.0,) * 4),
    Box((), (0.0,), (1.0,)),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_policy_head_gives_actions_of_its_space(space):
    distribution = make_policy_head(8, space)(torch.randn(5, 8))
    action = distribution.sample(draw_noise(space, 5, torch.Generator().manual_seed(0)))
    assert tuple(action.shape) == (5, *space.field.shape)
    assert str(action.dtype) == f"torch.{space.field.dtype}"
    assert distribution.log_prob(action).shape == distribution.entropy().shape == (5,)


def test_value_head_gives_one_number_a_row():
    assert ValueHead(8)(torch.randn(5, 8)).shape == (5,)


def test_linear_is_orthogonal_with_its_gain():
    layer = Linear(6, 4, gain=2.0)
    torch.testing.assert_close(layer.weight.T @ layer.weight, 4 * torch.eye(4), atol=1e-5, rtol=0)
    assert layer.bias.tolist() == [0.0] * 4


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_mlp_equals_naive_loop(activation):
    mlp, x = Mlp(3, (5, 4), activation), torch.randn(2, 3)
    naive = x
    for layer in mlp.layers:
        naive = getattr(torch, activation)(layer(naive))
    torch.testing.assert_close(mlp(x), naive)
    assert Mlp(3, (), activation)(x) is x
