"""Deliberately broken envs: the contract says, in the right sentence, what is wrong with each."""

import json
from pathlib import Path

import numpy as np
import pytest

from srl.core.env import AgentSpec, Box, Discrete, EnvRequest, Observation
from srl.core.experiment import EnvConfig
from srl.core.names import load_object
from srl.envs.native import NativeEnv, Stepped
from srl.launch.graph.env_factory import make_env
from srl.testing.env_contract import check_env

FILE = Path(__file__).parents[1] / "bad_envs.py"
BOX = Box((1,), (0.0,), (1.0,))
BROKEN = load_object(f"{FILE}:BROKEN")


def request_of(name="own", **options):
    return EnvRequest(
        name=name,
        options=options,
        wrappers=(),
        num_envs=2,
        seed=3,
        first_env=0,
        reseed="episode",
    )


def told_of(name, **options):
    def make(request):
        config = EnvConfig(name=f"{FILE}:{name}", options=json.dumps(options))
        return make_env(
            config, request.seed, num_envs=2, first_env=request.first_env, sets=request.sets
        )

    return check_env(make, request_of(), steps=40)


@pytest.mark.parametrize("name", sorted({name for name, _, _ in BROKEN.values()}))
def test_whole_envs_keep_the_contract(name):
    assert told_of(name) == []


@pytest.mark.parametrize(("name", "fault", "said"), BROKEN.values(), ids=BROKEN)
def test_broken_env_is_told_what_is_wrong_and_nothing_else(name, fault, said):
    told = told_of(name, fault=fault)
    assert told
    assert all(said in sentence for sentence in told), told


def test_mask_of_the_wrong_size_is_refused():
    told = told_of("Guarded", size=3)
    assert len(told) == 1
    assert "has the shape [3], but it must be [2], one truth value a choice" in told[0]


def test_batched_env_with_a_mask_of_the_wrong_size_is_told_so():
    mask = Observation("action_mask", (3,), "bool")
    for action, words in ((Discrete(2), "it must be [2]"), (BOX, "nothing to mask in real")):
        agent = AgentSpec((mask,), action)
        told = check_env(lambda r, a=agent: NativeEnv(None, a, r), request_of())
        assert len(told) == 1
        assert words in told[0]


def test_native_env_that_shows_nan_is_told_so():
    class Nan:
        def start(self, seeds):
            return {"obs": np.zeros((len(seeds), 1), np.float32)}

        def step(self, actions):
            no = np.zeros(len(actions), np.bool_)
            obs = np.full((len(actions), 1), np.nan, np.float32)
            return Stepped({"obs": obs}, no, no, no, no)

        def close(self):
            pass

    agent = AgentSpec((Observation("obs", (1,), "float32"),), Discrete(2))
    told = check_env(lambda r: NativeEnv(Nan(), agent, r), request_of(), steps=5)
    assert len(told) == 1
    assert "not finite" in told[0]
