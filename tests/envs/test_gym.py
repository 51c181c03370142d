from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from srl.core.algorithm import Records
from srl.core.block import Block, Layout, route_spec
from srl.core.env import Box, Discrete, EnvRequest, MultiDiscrete, Observation, episode_seed
from srl.core.errors import ConfigError, EnvError
from srl.core.spec import Spec
from srl.envs.gym import GymFamily
from srl.testing.env_contract import Rows, check_env

FLOATS = spaces.Box(-9, 9, (2,), np.float32)
DICT = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (2, 2, 1), np.uint8),
        "body": spaces.Dict({"speed": spaces.Box(-9, 9, (), np.float64)}),
        "gear": spaces.Discrete(3, start=-1),
    }
)
TUPLE = spaces.Tuple(
    (spaces.MultiDiscrete([3, 4], start=[1, 0]), spaces.MultiBinary(2), spaces.Discrete(2))
)


class Sampler(gymnasium.Env):
    """Shows random members of its space, ends after `length` steps, remembers its actions."""

    def __init__(self, space=FLOATS, action=None, length=7):
        self.observation_space = space
        self.action_space = spaces.Discrete(2) if action is None else action
        self.length, self.taken, self.seeds, self.count = length, [], [], 0

    def _sample(self):
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.count = 0
        return self._sample(), {}

    def step(self, action):
        self.taken.append(action)
        self.count += 1
        return self._sample(), 1.0, self.count == self.length, False, {}


class Broken(Sampler):
    """Does one thing wrong, at its second step or at reset."""

    def __init__(self, fault):
        super().__init__()
        self.fault = fault

    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed)
        if self.fault == "raises in reset":
            raise RuntimeError("no simulator")
        return np.zeros(3, np.float32) if self.fault == "shape in reset" else obs, info

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        if self.count < 2:
            return obs, reward, terminated, truncated, info
        if self.fault == "raises in step":
            raise RuntimeError("simulator fell over")
        obs = {
            "nan": np.full(2, np.nan, np.float32),
            "inf": np.full(2, np.inf, np.float32),
            "shape": np.zeros((1, 2), np.float32),
            "dtype": np.zeros(2, np.float64),
            "list": [0.0, 0.0],
        }.get(self.fault, obs)
        reward = {"reward": np.inf, "no number": None}.get(self.fault, reward)
        return obs, reward, terminated, truncated, info


class Forgetful(Sampler):
    """Ignores its seed, so that nothing can be replayed."""

    def reset(self, *, seed=None, options=None):
        return super().reset()


class BadCloser(Sampler):
    def close(self):
        raise RuntimeError("will not close")


def request_of(name="CartPole-v1", *, num_envs=2, reseed="episode", wrappers=(), **options):
    return EnvRequest(
        name=name,
        options=options,
        wrappers=wrappers,
        num_envs=num_envs,
        seed=3,
        first_env=10,
        reseed=reseed,
    )


def own(make, **kwargs):
    return GymFamily.wrap(make, request_of("own", **kwargs))


def agent_of(env):
    return env.spec.agents["agent_0"]


def block_of(env, rows):
    agent, envs = agent_of(env), env.spec.num_envs
    return Block.allocate(
        Layout(route_spec(agent, Records(Spec((agent.action.field,)))), rows, envs, envs)
    )


def reset(env, block, t=0):
    env.reset([block.observation_rows(agent_of(env), t)])


def step(env, block, t, actions=None):
    if actions is not None:
        block["action"][t] = actions
    rows = block.observation_rows(agent_of(env), t + 1)
    env.step([block["action"][t][:, None]], [block.outcome_rows(t)], [rows])


def play(env, rows):
    block = block_of(env, rows)
    reset(env, block)
    for t in range(rows - 1):
        step(env, block, t)
    return block


@pytest.mark.parametrize("name", ["CartPole-v1", "Acrobot-v1", "Pendulum-v1", "FrozenLake-v1"])
def test_registered_env_keeps_the_contract(name):
    assert check_env(GymFamily().make_batch, request_of(name), steps=210) == []


@pytest.mark.parametrize("space", [FLOATS, DICT, TUPLE], ids=["box", "dict", "tuple"])
def test_own_env_keeps_the_contract(space):
    request = request_of("own", space=space)
    assert check_env(lambda r: GymFamily.wrap(Sampler, r), request, steps=30) == []


def test_env_seeded_at_start_keeps_the_contract():
    assert check_env(GymFamily.make_batch, request_of(reseed="start")) == []


def test_dict_space_becomes_dotted_fields_of_native_dtype():
    assert agent_of(own(Sampler, space=DICT)).observations == (
        Observation("obs.body.speed", (), "float32", path=("body", "speed")),
        Observation("obs.camera", (2, 2, 1), "uint8", path=("camera",)),
        Observation("obs.gear", (), "int64", (3,), ("gear",), (-1,)),
    )


def test_tuple_space_becomes_numbered_fields_with_categories():
    assert agent_of(own(Sampler, space=TUPLE)).observations == (
        Observation("obs.0", (2,), "int64", (3, 4), (0,), (1, 0)),
        Observation("obs.1", (2,), "int8", path=(1,)),
        Observation("obs.2", (), "int64", (2,), (2,), (0,)),
    )


def test_categorical_observation_counts_from_zero_whatever_its_start():
    block = play(own(Sampler, space=spaces.Discrete(3, start=5)), rows=40)
    assert set(block["obs"].ravel().tolist()) == {0, 1, 2}


def played_actions(space, actions):
    made = []

    def make():
        made.append(Sampler(action=space))
        return made[-1]

    env = own(make, num_envs=1)
    block = block_of(env, len(actions) + 1)
    reset(env, block)
    for t, action in enumerate(actions):
        step(env, block, t, np.array(action)[None])
    return agent_of(env).action, made[0].taken


def test_discrete_action_gets_the_start_of_its_space():
    action, taken = played_actions(spaces.Discrete(3, start=-1), [0, 2])
    assert action == Discrete(3, start=-1)
    assert taken == [-1, 1]


def test_multi_discrete_action_gets_start_shape_and_dtype_of_its_space():
    space = spaces.MultiDiscrete([[2, 3]], start=[[5, 0]], dtype=np.int32)
    action, taken = played_actions(space, [[1, 2]])
    assert action == MultiDiscrete((2, 3), (5, 0), (1, 2))
    assert taken[0].tolist() == [[6, 2]]
    assert space.contains(taken[0])


def test_box_action_is_clipped_and_cast_to_its_space():
    space = spaces.Box(np.array([-1.0, 0.0]), np.array([1.0, np.inf]), dtype=np.float64)
    action, taken = played_actions(space, [[-7, 1e6]])
    assert action == Box((2,), (-1.0, 0.0), (1.0, np.inf))
    assert taken[0].tolist() == [-1, 1e6]
    assert taken[0].dtype == np.float64


def test_rows_and_masks_around_an_end_are_exact():
    block = play(own(Sampler, length=2), rows=6)
    assert block["first"][:, 0].tolist() == [True, False, False, True, False, False]
    assert block["valid"][:, 0].tolist() == [True, True, False, True, True, False]
    assert block["terminated"][:5, 0].tolist() == [False, True, False, False, True]
    assert block["reward"][:5, 0].tolist() == [1, 1, 0, 1, 1]
    assert not block["truncated"].any()
    assert block["acting"].all()


@pytest.mark.parametrize(
    ("reseed", "expected"),
    [("episode", [episode_seed(3, 11, k) for k in (0, 1, 2)]), ("start", [None, None])],
)
def test_episodes_are_seeded_by_run_env_and_episode(reseed, expected):
    made = []

    def make():
        made.append(Sampler(length=1))
        return made[-1]

    play(own(make, reseed=reseed), rows=5)
    seeds = made[1].seeds
    assert seeds[0] == episode_seed(3, 11, 0)
    assert seeds == (expected if reseed == "episode" else [seeds[0], *expected])


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("nan", "not finite"),
        ("inf", "not finite"),
        ("shape", r"float32\[1, 2\], its space Box"),
        ("dtype", r"float64\[2\], its space Box"),
        ("list", "is list"),
        ("reward", "reward inf"),
        ("no number", "reward nan"),
        ("raises in step", "simulator fell over"),
    ],
)
def test_fault_in_step_names_env_lane_seed_step_and_action(fault, said):
    faults = iter(["", fault])
    env = own(lambda: Broken(next(faults)))
    block = block_of(env, 4)
    reset(env, block)
    step(env, block, 0, [0, 0])
    with pytest.raises(EnvError, match=said) as caught:
        step(env, block, 1, [0, 1])
    told = str(caught.value)
    assert "env 'own'" in told
    assert "env 11 of the run (lane 1 of its batch)" in told
    assert f"seed {episode_seed(3, 11, 0)}, episode 0, step 2, last action 1" in told


@pytest.mark.parametrize("fault", ["raises in reset", "shape in reset"])
def test_fault_in_reset_names_env_and_seed_and_chains(fault):
    env = own(Broken, fault=fault)
    with pytest.raises(EnvError, match="failed in reset") as caught:
        reset(env, block_of(env, 1))
    assert f"seed {episode_seed(3, 10, 0)}" in str(caught.value)
    assert "last action none" in str(caught.value)
    assert caught.value.__cause__ is not None


def test_categorical_value_outside_its_space_is_an_error():
    class Outside(Sampler):
        def step(self, action):
            return (7, *super().step(action)[1:])

    with pytest.raises(EnvError, match=r"int 7, its space Discrete\(2\)"):
        play(own(Outside, space=spaces.Discrete(2)), rows=2)


def test_load_continues_bit_for_bit_across_many_episodes_and_a_trimmed_log():
    request = request_of(num_envs=3)
    rng = np.random.default_rng(0)
    env, rows = GymFamily.make_batch(request), 2600
    block = block_of(env, rows)
    block["action"][:] = rng.integers(0, 2, (rows, 3))
    reset(env, block)
    for t in range(rows - 1):
        if t == 2500:
            state = env.save()
        step(env, block, t)
    assert len(state["actions"]) < 1000
    again, other = GymFamily.make_batch(request), block_of(env, rows)
    assert again.load(state, [block.observation_rows(agent_of(env), 2500)])
    other["action"][:] = block["action"]
    for t in range(2500, rows - 1):
        step(again, other, t)
    for name in ("obs", "first", "valid"):
        assert (other[name][2501:] == block[name][2501:]).all()
    for name in ("reward", "terminated", "truncated"):
        assert (other[name][2500:] == block[name][2500:]).all()


@pytest.mark.parametrize(
    ("make", "reseed"), [(Forgetful, "episode"), (Sampler, "start")], ids=["differs", "start"]
)
def test_load_that_cannot_restore_is_false_and_the_env_goes_on(make, reseed):
    env = own(make, reseed=reseed)
    block = play(env, rows=4)
    fresh = own(make, reseed=reseed)
    assert not fresh.load(env.save(), [block.observation_rows(agent_of(env), 3)])
    reset(fresh, block)
    step(fresh, block, 0)
    assert block["first"][0].all()
    assert block["valid"][1].all()
    assert fresh.save()["episode"].tolist() == [1, 1]


def test_load_of_another_number_of_envs_is_false():
    env = own(Sampler, num_envs=3)
    block = play(env, rows=2)
    fresh = own(Sampler)
    assert not fresh.load(env.save(), [block.observation_rows(agent_of(env), 1)])


def test_load_whose_replay_raises_is_false():
    env = own(Broken, fault="")
    block = play(env, rows=4)
    fresh = own(Broken, fault="raises in step")
    assert not fresh.load(env.save(), [block.observation_rows(agent_of(env), 3)])


def test_wrappers_are_applied_in_order(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "import gymnasium\n"
        "class Twice(gymnasium.RewardWrapper):\n"
        "    def reward(self, reward):\n"
        "        return 2 * reward\n"
    )
    flatten = "gymnasium.wrappers:FlattenObservation"
    env = own(Sampler, wrappers=(flatten, f"{path}:Twice"), space=spaces.Discrete(3))
    assert agent_of(env).observations[0].shape == (3,)
    assert (play(env, rows=2)["reward"][0] == 2).all()


def test_unknown_id_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'CartPole-v1'"):
        GymFamily.make_batch(request_of("CarPole-v1"))


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [("ALE/Pong-v5", "ale_py", "atari"), ("HalfCheetah-v5", "mujoco", "mujoco")],
)
def test_missing_package_names_the_extra_to_install(name, module, extra, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(ConfigError, match=rf"pip install 'really-scalable-rl\[{extra}\]'"):
        GymFamily.make_batch(request_of(name))


def test_requests_that_cannot_be_built_are_refused():
    with pytest.raises(ConfigError, match="colour"):
        GymFamily.make_batch(request_of(colour=1))
    with pytest.raises(ConfigError, match=r"not a gymnasium\.Env"):
        own(lambda: 7)
    with pytest.raises(ConfigError, match=r"Text.*SRL knows Box, Discrete"):
        own(Sampler, space=spaces.Text(4))
    with pytest.raises(
        ConfigError, match=r"MultiBinary.*SRL knows Discrete, MultiDiscrete and Box"
    ):
        own(Sampler, action=spaces.MultiBinary(4))
    sizes = iter([2, 3])
    with pytest.raises(ConfigError, match="differ in their spaces"):
        own(lambda: Sampler(spaces.Discrete(next(sizes))))
    with pytest.raises(ConfigError, match="exactly one route"):
        GymFamily.make_batch(replace(request_of(), sets=((0, 1),)))


def test_close_twice_and_of_an_env_that_fails_to_is_not_fatal(caplog):
    env = own(BadCloser)
    env.close()
    env.close()
    assert "failed to close" in caplog.text


def test_taxi_shows_its_mask_by_a_wrapper():
    newest = "Taxi-v4" if "Taxi-v4" in gymnasium.registry else "Taxi-v3"
    request = request_of(newest, wrappers=("srl.envs.gym:MaskFromInfo",))
    agent = GymFamily.make_batch(request).spec.agents["agent_0"]
    assert set(agent.observation_names) == {"obs.obs", "obs.action_mask"}
    assert agent.action_mask == Observation("obs.action_mask", (6,), "int8", path=("action_mask",))
    assert check_env(GymFamily.make_batch, request, steps=230) == []


def test_env_without_a_mask_in_its_info_is_told_so():
    request = request_of("CartPole-v1", wrappers=("srl.envs.gym:MaskFromInfo",))
    env = GymFamily.make_batch(request)
    rows = Rows.allocate(env.spec.agents["agent_0"], (1, 2, 1), 0)
    with pytest.raises(EnvError, match="info has no 'action_mask'"):
        env.reset([rows.seen[0]])
    request = request_of("Pendulum-v1", wrappers=("srl.envs.gym:MaskFromInfo",))
    with pytest.raises(ConfigError, match="MaskFromInfo needs discrete actions"):
        GymFamily.make_batch(request)
