"""A Dict observation with a mask and a network of one's own, in one file, by command line alone."""

import json

import pytest

from srl import cli

MINE = """
import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import nn


class Doors(gymnasium.Env):
    '''Of the doors that are open, take the one whose lamp is brightest; 8 times.'''

    def __init__(self, doors=4):
        self.doors = doors
        self.action_space = spaces.Discrete(doors)
        self.observation_space = spaces.Dict(
            {
                "lamps": spaces.Box(0, 1, (doors,), np.float32),
                "room": spaces.Discrete(3),
                "action_mask": spaces.MultiBinary(doors),
            }
        )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.look(), {}

    def step(self, action):
        if not self.mask[action]:
            raise ValueError(f"door {action} is shut")
        best = np.where(self.mask, self.lamps, -1).argmax()
        self.steps += 1
        return self.look(), float(action == best), self.steps == 8, False, {}

    def look(self):
        self.lamps = self.np_random.random(self.doors, dtype=np.float32)
        self.mask = self.np_random.integers(0, 2, self.doors).astype(np.int8)
        self.mask[self.np_random.integers(self.doors)] = 1
        room = int(self.np_random.integers(3))
        return {"lamps": self.lamps, "room": room, "action_mask": self.mask}


class Net(nn.Module):
    def __init__(self, observations):
        super().__init__()
        self.sees = [seen.name for seen in observations]
        lamps = next(seen for seen in observations if "lamps" in seen.name)
        self.lamps = lamps.name
        self.layers = nn.Sequential(nn.Linear(lamps.shape[0], 32), nn.ReLU())
        self.num_features = 32

    def forward(self, obs):
        return self.layers(obs[self.lamps])
"""


@pytest.mark.parametrize("launcher", ["inline", "local"])
def test_masked_dict_env_and_network_of_a_file_train(launcher, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    words = ["train", "mine.py:Doors", "--algorithm.network", "mine.py:Net", "--out", "run"]
    words += ["--launcher", launcher, "--stop.env-steps", "16000", "--evaluation.episodes", "20"]
    words += ["--algorithm.rollout", "32", "--algorithm.batch-size", "512"]
    words += ["--algorithm.learning-rate", "3e-3", "--algorithm.normalise-observations", "False"]
    assert cli.main(words) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["eval_return"] > 6  # of 8; a random open door is right about half the time
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["algorithm"]["network"] == f"{tmp_path}/mine.py:Net"
    assert config["env"]["name"] == f"{tmp_path}/mine.py:Doors"
    monkeypatch.chdir("/")
    assert cli.main(["eval", str(tmp_path / "run"), "--episodes", "5"]) == 0


BROKEN = """
from torch import nn


class Net(nn.Module):
    num_features = 8

    def __init__(self, observations):
        super().__init__()
        self.layer = nn.Linear(4, 8)

    def forward(self, obs):
        return {forward}
"""


@pytest.mark.parametrize(
    ("forward", "words"),
    [
        ("obs['obs']", "here [2, 8] for two rows, and returns [2, 4]"),
        ("self.layer(obs['obs']).sum()", "and returns []"),
        ("self.layer(obs['obs']), None", "and returns tuple"),
        ("self.layer(obs['obs'][:, :2])", "fails when it is called with two rows of ['obs']"),
        ("obs['nothing']", "KeyError: 'nothing'"),
    ],
)
def test_network_that_returns_something_else_is_refused(
    forward, words, tmp_path, monkeypatch, capsys
):
    (tmp_path / "broken.py").write_text(BROKEN.replace("{forward}", forward))
    monkeypatch.chdir(tmp_path)
    options = ["--algorithm.network", "broken.py:Net", "--out", "run"]
    assert cli.main(["train", "cartpole", *options]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
