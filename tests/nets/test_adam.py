import torch
from torch import nn

from srl.nets.optimiser import Adam


def test_ten_steps_equal_those_of_torch():
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
    theirs = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
    theirs.load_state_dict(ours.state_dict())
    adam = Adam(ours, epsilon=1e-5)
    oracle = torch.optim.Adam(theirs.parameters(), eps=1e-5)
    for step in range(10):
        rate = 0.01 / (step + 1)
        x = torch.randn(16, 5)
        adam.zero_grad()
        ours(x).square().sum().backward()
        norm = adam.clip(1.5)
        adam.step(torch.tensor(rate))
        oracle.zero_grad()
        theirs(x).square().sum().backward()
        torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(theirs.parameters(), 1.5))
        oracle.param_groups[0]["lr"] = rate
        oracle.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)
    assert float(adam.tensors["steps"]) == 10
