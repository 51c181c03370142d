import torch
from torch import nn

from srl.core.compute import Compute
from srl.nets.critics import Critics
from srl.nets.optimiser import Adam, Follower


def make(count=2, hidden=(5, 4), activation="relu"):
    torch.manual_seed(0)
    sizes = {"num_features": 3, "num_actions": 2, "hidden": hidden, "activation": activation}
    return Critics(count, **sizes, compute=Compute())


def test_critics_are_what_each_would_be_alone():
    for count in (1, 2, 3):
        for hidden in ((), (5,), (5, 4)):
            critics = make(count, hidden, "tanh")
            features, action = torch.randn(7, 3), torch.randn(7, 2)
            values = critics(features, action)
            assert values.shape == (count, 7)
            for number in range(count):
                x = torch.cat([features, action], -1)
                for weight, bias in zip(critics.weights, critics.biases, strict=True):
                    x = torch.tanh(x @ weight[number] + bias[number])
                alone = x @ critics.value_weight[number, 0] + critics.value_bias[number]
                torch.testing.assert_close(values[number], alone)


def test_gradients_of_fixed_critics_are_of_the_action_alone():
    critics, features = make(), torch.randn(7, 3)
    action = torch.randn(7, 2, requires_grad=True)
    critics(features, action).sum().backward()
    expected, action.grad = action.grad, None
    critics.zero_grad()
    first = critics(features, action, fixed=True, count=1)
    torch.testing.assert_close(first, critics(features, action)[:1])
    values = critics(features, action, fixed=True)
    torch.testing.assert_close(values, critics(features, action))
    values.sum().backward()
    torch.testing.assert_close(action.grad, expected)
    assert all(p.grad is None for p in critics.parameters())


def test_follower_goes_part_of_the_way():
    critics = make()
    adam = Adam(critics, epsilon=1e-8)
    target = Follower(critics, adam)
    before = [p.clone() for p in critics.parameters()]
    adam.gradient.fill_(1.0)
    adam.step(torch.tensor(0.1))
    for follower, old in zip(target.network.parameters(), before, strict=True):
        assert torch.equal(follower, old)
        assert not follower.requires_grad
    target.follow(0.25)
    pairs = zip(target.network.parameters(), critics.parameters(), before, strict=True)
    for follower, leader, old in pairs:
        torch.testing.assert_close(follower, 0.75 * old + 0.25 * leader)
    features, action = torch.randn(7, 3), torch.randn(7, 2)
    assert not target.network(features, action).requires_grad


def test_what_follows_takes_statistics_as_they_are():
    network = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    adam = Adam(network, epsilon=1e-8)
    follower = Follower(network, adam)
    before = adam.weights.detach().clone()
    network(torch.randn(8, 2))  # counts them in
    adam.weights.data.add_(1.0)
    follower.follow(0.25)
    buffers = dict(follower.network.named_buffers())
    assert all(torch.equal(x, buffers[name]) for name, x in network.named_buffers())
    assert buffers["1.running_mean"].any()
    weights = torch.cat([p.flatten() for p in follower.network.parameters()])
    assert torch.allclose(weights, before + 0.25)
