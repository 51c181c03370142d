"""Deliberately broken envs: the contract says, in the right sentence, what is wrong with each.

An all-false action mask is not among them yet: the env protocol has no masks.
"""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from srl.core.env import AgentSpec, Discrete, EnvRequest, EnvSpec, Observation
from srl.envs.gym import GymFamily
from srl.envs.native import NativeEnv, Stepped
from srl.testing.env_contract import check_env


class Walk(gymnasium.Env):
    """A random walk from 0, over after 6 steps; one thing about it may be wrong."""

    observation_space = spaces.Box(-9, 9, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, fault=""):
        self.fault = fault

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count, self.place = 0, np.zeros(1, np.float32)
        return self.place.copy(), {}

    def step(self, action):
        self.count += 1
        self.place += self.np_random.normal(size=1).astype(np.float32)
        ended, place = self.count == 6, self.place.copy()
        if self.fault == "dtype" and self.count == 3:
            place = place.astype(np.float64)
        if self.fault == "nan" and self.count == 3:
            place[:] = np.nan
        if self.fault == "resets itself" and ended:
            place = np.zeros(1, np.float32)
        return place, 0.0, ended, False, {}


class AllEndsTerminate(gymnasium.Wrapper):
    """The wrapper of an older API: it knows one kind of end."""

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated or truncated, False, info


class Batch:
    """A walk a lane, with Gymnasium's SAME_STEP autoreset or one seed for all, as told."""

    def __init__(self, fault, request):
        agent = AgentSpec((Observation("obs", (1,), "float32"),), Discrete(2))
        self.spec = EnvSpec("batch", request.num_envs, {"agent_0": agent}, "not restored")
        self.fault, self.request = fault, request

    def reset(self, out):
        request, envs = self.request, range(self.request.num_envs)
        seeds = [request.seed + (e if self.fault != "shared seed" else 0) for e in envs]
        self.rngs = [np.random.default_rng(seed) for seed in seeds]
        self.count, self.over = 0, False
        self._show(out[0], first=True)

    def step(self, actions, outcome, out):
        self.count += 1
        same_step = self.fault == "same step"
        ends = self.count == 6
        outcome[0].reward[:] = 0
        outcome[0].terminated[:] = ends
        outcome[0].truncated[:] = False
        if self.count == 7:
            self.count = 0
        first = self.count == 0
        if ends and same_step:
            self.count, first = 0, True
        self._show(out[0], first=first)
        out[0].valid[:] = same_step or not ends

    def _show(self, rows, first):
        rows.obs["obs"][:, 0, 0] = [rng.normal() for rng in self.rngs]
        rows.first[:] = first
        rows.valid[:] = True
        rows.acting[:] = True

    def save(self):
        return {}

    def load(self, state, seen):
        return False

    def close(self):
        pass


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


def told_of_walk(fault):
    return check_env(lambda r: GymFamily.wrap(Walk, r), request_of(fault=fault), steps=40)


def told_of_batch(fault):
    return check_env(lambda r: Batch(fault, r), request_of(), steps=40)


def told_of_limit(wrapper):
    def make(**options):
        return wrapper(gymnasium.make("Pendulum-v1", max_episode_steps=8))

    return check_env(lambda r: GymFamily.wrap(make, r), request_of(), steps=40)


def test_whole_envs_keep_the_contract():
    assert told_of_walk("") == []
    assert told_of_batch("") == []
    assert told_of_limit(gymnasium.Wrapper) == []


@pytest.mark.parametrize(
    ("tell", "fault", "said"),
    [
        (told_of_walk, "dtype", "observation 'obs' is float64[1], its space Box"),
        (told_of_walk, "nan", "showed 'obs' with a value that is not finite"),
        (told_of_walk, "resets itself", "the final observation of an episode must be shown"),
        (told_of_batch, "same step", "the final observation is lost"),
        (told_of_batch, "shared seed", "envs 0 and 1 of a batch must be seeded apart"),
        (told_of_limit, AllEndsTerminate, "at its limit of 8 steps must be truncated"),
    ],
    ids=["dtype", "nan", "lost by the env", "lost by the batch", "shared seed", "limit"],
)
def test_broken_env_is_told_what_is_wrong_and_nothing_else(tell, fault, said):
    told = tell(fault)
    assert told
    assert all(said in sentence for sentence in told), told


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
