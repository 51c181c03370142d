"""Native vector envs, and the contract of every shipped family; skipped where an extra is missing."""

import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest

from srl.core.algorithm import Records
from srl.core.block import Block, Layout, route_spec
from srl.core.env import AgentSpec, Discrete, EnvRequest, Observation, episode_seed
from srl.core.errors import ConfigError, EnvError
from srl.core.spec import Spec
from srl.envs.atari import AtariFamily
from srl.envs.envpool import EnvPoolFamily
from srl.envs.gym import GymFamily
from srl.envs.native import NativeEnv, Stepped
from srl.testing.env_contract import check_env

NO_TEXT = ("srl.envs.gym:WithoutText",)


def request_of(name, *, num_envs=2, wrappers=(), reseed="episode", **options):
    return EnvRequest(
        name=name,
        options=options,
        wrappers=wrappers,
        num_envs=num_envs,
        seed=3,
        first_env=10,
        reseed=reseed,
    )


def block_of(env, rows):
    agent, envs = env.spec.agents["agent_0"], env.spec.num_envs
    return Block.allocate(
        Layout(route_spec(agent, Records(Spec((agent.action.field,)))), rows, envs, envs)
    )


def step(env, block, t):
    agent = env.spec.agents["agent_0"]
    rows = block.observation_rows(agent, t + 1)
    env.step([block["action"][t][:, None]], [block.outcome_rows(t)], [rows])


def play(env, actions):
    """A block of the actions `[T, E]` and what came of them."""
    block = block_of(env, len(actions) + 1)
    block["action"][:-1] = actions
    env.reset([block.observation_rows(env.spec.agents["agent_0"], 0)])
    for t in range(len(actions)):
        step(env, block, t)
    return block


def stacks_of(block):
    """What a policy is shown at every row, `[T, E, stack, 84, 84]`."""
    return np.array([block.inputs(["obs"], t)["obs"] for t in range(block.layout.rows)])


# The contract of everything that is shipped.


@pytest.mark.parametrize(
    ("name", "options", "steps"),
    [
        ("HalfCheetah-v5", {}, 60),
        ("HalfCheetah-v5", {"max_episode_steps": 30}, 70),
        ("Ant-v5", {}, 120),
    ],
)
def test_mujoco_keeps_the_contract(name, options, steps):
    pytest.importorskip("mujoco", reason="really-scalable-rl[mujoco] is not installed")
    assert check_env(GymFamily.make_batch, request_of(name, **options), steps=steps) == []


def test_minigrid_keeps_the_contract():
    pytest.importorskip("minigrid", reason="really-scalable-rl[minigrid] is not installed")
    request = request_of("MiniGrid-Empty-Random-5x5-v0", wrappers=NO_TEXT)
    agent = GymFamily.make_batch(request).spec.agents["agent_0"]
    assert agent.observation_names == ("obs.direction", "obs.image")
    assert check_env(GymFamily.make_batch, request, steps=220) == []


@pytest.mark.parametrize(
    ("game", "reseed", "options", "steps"),
    [
        ("pong", "start", {"max_episode_frames": 100}, 60),
        ("breakout", "start", {}, 150),
        ("breakout", "start", {"life_loss": True, "sticky_actions": 0.25}, 150),
        ("pong", "episode", {"max_episode_frames": 60}, 40),
        ("breakout", "episode", {"sticky_actions": 0.25, "max_episode_frames": 90}, 50),
    ],
)
def test_atari_keeps_the_contract(game, reseed, options, steps):
    pytest.importorskip("ale_py", reason="really-scalable-rl[atari] is not installed")
    request = request_of(game, reseed=reseed, **options)
    assert check_env(AtariFamily.make_batch, request, steps=steps) == []


@pytest.mark.parametrize(
    ("name", "options", "steps"),
    [
        ("CartPole-v1", {}, 60),
        ("FrozenLake-v1", {}, 60),
        ("Pong-v5", {"max_episode_steps": 20}, 50),
    ],
)
def test_envpool_keeps_the_contract(name, options, steps):
    pytest.importorskip("envpool", reason="really-scalable-rl[envpool] is not installed")
    assert check_env(EnvPoolFamily.make_batch, request_of(name, **options), steps=steps) == []


# Atari: what ale-py does, pinned.


def bare_atari(game, seeds, actions, **options):
    """What `AtariVectorEnv` itself shows and gives: obs, lives `[T + 1]` and outcomes `[T]`."""
    vector = pytest.importorskip(
        "ale_py.vector_env", reason="really-scalable-rl[atari] is not installed"
    )
    envs = vector.AtariVectorEnv(game, len(seeds), num_threads=1, reward_clipping=False, **options)
    obs, info = envs.reset(seed=np.array(seeds))
    played = [(obs, info["lives"])]
    outcomes = []
    for taken in actions:
        obs, *outcome, info = envs.step(taken)
        played.append((obs, info["lives"]))
        outcomes.append(outcome)
    envs.close()
    obs, lives = (np.array(values) for values in zip(*played, strict=True))
    return obs, lives, *(np.array(values) for values in zip(*outcomes, strict=True))


def test_atari_rows_are_those_of_ale_py_around_a_truncation():
    actions = np.random.default_rng(0).integers(0, 6, (25, 2))
    seeds = [episode_seed(3, 10 + e, 0) for e in range(2)]
    obs, _, reward, terminated, truncated = bare_atari(
        "pong", seeds, actions, max_num_frames_per_episode=40
    )
    env = AtariFamily.make_batch(request_of("pong", reseed="start", max_episode_frames=40))
    block = play(env, actions)
    env.close()
    assert env.spec.max_steps == 10
    stacks = stacks_of(block)
    assert env.spec.agents["agent_0"].observations[0].shape == (84, 84)
    assert (stacks == obs).all()
    assert (block["reward"][:-1] == reward).all()
    assert (block["terminated"][:-1] == terminated).all()
    assert (block["truncated"][:-1] == truncated).all()
    ends = [9, 20]
    assert np.flatnonzero(block["truncated"][:, 0]).tolist() == ends
    assert np.flatnonzero(~block["valid"][:, 0]).tolist() == [10, 21]
    assert np.flatnonzero(block["first"][:, 0]).tolist() == [0, 11, 22]
    assert not block["terminated"].any()
    # The final observation goes on from the one before; a first one is a frame after zeros.
    assert (stacks[10, :, :3] == stacks[9, :, 1:]).all()
    assert not stacks[11, :, :3].any()
    assert stacks[11, :, 3].any()


def test_atari_life_loss_is_terminated_but_the_game_goes_on():
    actions = np.zeros((200, 1), np.int64)
    actions[::7] = 1  # FIRE: without it no ball comes, and no life is lost
    obs, lives, _, terminated, _ = bare_atari("breakout", [episode_seed(3, 10, 0)], actions)
    over = int(terminated[:, 0].argmax())
    lost = np.flatnonzero(lives[1 : over + 1, 0] < lives[:over, 0]).tolist()
    request = request_of("breakout", num_envs=1, reseed="start", life_loss=True)
    env = AtariFamily.make_batch(request)
    block = play(env, actions)
    env.close()
    assert len(lost) == 4
    assert (stacks_of(block) == obs).all()
    assert np.flatnonzero(block["terminated"][: over + 1, 0]).tolist() == [*lost, over]
    assert block["valid"][: over + 1].all()
    assert not block["first"][1 : over + 2].any()
    assert not block["valid"][over + 1].any()
    assert block["first"][over + 2].all()
    assert block["reward"][over + 1] == 0


def test_atari_rewards_are_raw_and_options_reach_the_game():
    pytest.importorskip("ale_py", reason="really-scalable-rl[atari] is not installed")
    env = AtariFamily.make_batch(
        request_of("ms_pacman", stack=1, full_action_space=True, num_threads=2, noops=0)
    )
    agent = env.spec.agents["agent_0"]
    assert agent == AgentSpec((Observation("obs", (1, 84, 84), "uint8"),), Discrete(18))
    block = play(env, np.full((120, 2), 3))
    env.close()
    assert block["reward"].max() >= 10


def test_atari_seeded_at_start_is_not_restored_and_begins_other_games():
    pytest.importorskip("ale_py", reason="really-scalable-rl[atari] is not installed")
    env = AtariFamily.make_batch(request_of("pong", reseed="start"))
    assert "not restored" in env.spec.restores
    block = play(env, np.zeros((3, 2), np.int64))
    seen = [block.observation_rows(env.spec.agents["agent_0"], 3)]
    fresh = AtariFamily.make_batch(request_of("pong", reseed="start"))
    assert not fresh.load(env.save(), seen)
    play(fresh, np.zeros((1, 2), np.int64))
    assert fresh.save()["episode"].tolist() == [1, 1]
    assert fresh._seed.tolist() == [episode_seed(3, 10 + e, 1) for e in range(2)]
    env.close()
    fresh.close()


def test_unknown_games_and_envs_are_refused_with_the_nearest():
    pytest.importorskip("ale_py", reason="really-scalable-rl[atari] is not installed")
    with pytest.raises(ConfigError, match="did you mean 'pong'"):
        AtariFamily.make_batch(request_of("Pong"))
    with pytest.raises(ConfigError, match="no Atari game 'combat'"):  # ale-py would exit
        AtariFamily.make_batch(request_of("combat"))


def test_unknown_envpool_ids_and_options_are_refused():
    pytest.importorskip("envpool", reason="really-scalable-rl[envpool] is not installed")
    with pytest.raises(ConfigError, match="did you mean 'CartPole-v1'"):
        EnvPoolFamily.make_batch(request_of("CarPole-v1"))
    with pytest.raises(ConfigError, match="cannot be built with the options"):
        EnvPoolFamily.make_batch(request_of("CartPole-v1", colour=1))
    with pytest.raises(ConfigError, match="SRL sets seed itself"):
        EnvPoolFamily.make_batch(request_of("CartPole-v1", seed=1))


def test_envpool_atari_shows_one_frame_a_row():
    envpool = pytest.importorskip("envpool", reason="really-scalable-rl[envpool] is not installed")
    env = EnvPoolFamily.make_batch(request_of("Pong-v5", max_episode_steps=9))
    assert env.spec.agents["agent_0"].observations == (
        Observation("obs", (84, 84), "uint8", stack=4),
    )
    actions = np.random.default_rng(0).integers(0, 6, (12, 2))
    stacks = stacks_of(play(env, actions))
    env.close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        seeds = [episode_seed(3, 10 + e, 0) for e in range(2)]
        kwargs = {"env_type": "gymnasium", "num_threads": 1, "max_episode_steps": 9}
        pool = envpool.make("Pong-v5", num_envs=2, seed=seeds, **kwargs)
        own = [pool.reset()[0], *(pool.step(taken)[0] for taken in actions)]
        pool.close()
    own = np.array(own)
    assert (stacks[:, :, 3] == own[:, :, 3]).all()
    assert (stacks[3:10] == own[3:10]).all()
    assert not stacks[0, :, :3].any()
    color = EnvPoolFamily.make_batch(request_of("Pong-v5", gray_scale=False))
    assert color.spec.agents["agent_0"].observations == (Observation("obs", (12, 84, 84), "uint8"),)
    color.close()


def test_envpool_seeds_envs_by_their_number_in_the_run():
    pytest.importorskip("envpool", reason="really-scalable-rl[envpool] is not installed")
    both = EnvPoolFamily.make_batch(request_of("CartPole-v1"))
    second = EnvPoolFamily.make_batch(replace(request_of("CartPole-v1", num_envs=1), first_env=11))
    actions = np.ones((30, 2), np.int64)
    one, two = play(both, actions), play(second, actions[:, :1])
    both.close()
    second.close()
    assert (one["obs"][:, 1] == two["obs"][:, 0]).all()
    assert (one["obs"][:, 0] != one["obs"][:, 1]).any()


@pytest.mark.parametrize(
    ("make", "name", "module", "extra"),
    [
        (AtariFamily.make_batch, "pong", "ale_py", "atari"),
        (EnvPoolFamily.make_batch, "CartPole-v1", "envpool", "envpool"),
        (GymFamily.make_batch, "MiniGrid-Empty-5x5-v0", "minigrid", "minigrid"),
    ],
)
def test_missing_package_names_the_extra_to_install(make, name, module, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"pip install 'really-scalable-rl\[{extra}\]'"):
        make(request_of(name))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"life_los": True}, "no option 'life_los': did you mean 'life_loss'"),
        ({"stack": "4"}, "stack is '4', must be a int"),
        ({"stack": 0}, "stack is 0, must be at least 1"),
        ({"life_loss": 1}, "life_loss is 1, must be a bool"),
        ({"sticky_actions": 2}, "not a probability"),
    ],
)
def test_impossible_atari_options_are_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        AtariFamily.make_batch(request_of("pong", **options))


# What native families share, with a vector env made up here.


class Vector:
    """Counts steps; ends after 3, env 1 by truncation; loses a life at step 2 of env 0."""

    def __init__(self, fault=""):
        self.fault, self.count, self.closed = fault, None, 0

    def start(self, seeds):
        self.count = np.zeros(len(seeds), np.int64)
        return {"obs": self._obs()}

    def step(self, actions):
        if self.fault == "raises":
            raise RuntimeError("the pool is dry")
        over = self.count == 3
        self.count = np.where(over, 0, self.count + 1)
        ends, first = self.count == 3, np.arange(len(over)) == 0
        lost = (self.count == 2) & first
        reward = np.where(self.fault == "reward", np.nan, np.full(len(over), 5.0))
        return Stepped({"obs": self._obs()}, reward, (ends & first) | lost, ends & ~first, ends)

    def close(self):
        self.closed += 1

    def _obs(self):
        obs = self.count[:, None].astype(np.float32)
        if self.fault == "nan" and self.count.any():
            obs[1] = np.nan
        return obs


class Drawn:
    """Episodes whose lengths their seeds draw; one that begins by itself has a seed of its own."""

    def start(self, seeds):
        self.seed, self.count = seeds.copy(), np.zeros(len(seeds), np.int64)
        self.total, self.others = np.zeros(len(seeds), np.int64), 0
        return {"obs": self._obs()}

    def restart(self, which, seeds):
        self.seed[which] = seeds
        self.count[which] = self.total[which] = 0
        return {"obs": np.where(which[:, None], self._obs(), -1).astype(np.float32)}

    def step(self, actions):
        over, no = self._over(), np.zeros(len(actions), np.bool_)
        self.others += 1
        self.seed = np.where(over, 1000 + self.others, self.seed)
        self.count = np.where(over, 0, self.count + 1)
        self.total = np.where(over, 0, self.total + actions)
        ended = self._over()
        return Stepped({"obs": self._obs()}, self.total.astype(np.float32), ended, no, ended)

    def close(self):
        pass

    def _over(self):
        return self.count == 2 + self.seed % 5

    def _obs(self):
        return np.stack([self.seed % 97, self.count, self.total], -1).astype(np.float32)


DRAWN = AgentSpec((Observation("obs", (3,), "float32"),), Discrete(2))
NUMBER = AgentSpec((Observation("obs", (1,), "float32"),), Discrete(2))


def native(fault="", **kwargs):
    return NativeEnv(Vector(fault), NUMBER, request_of("made-up", **kwargs))


def test_native_rows_and_masks_are_exact():
    block = play(native(), np.ones((6, 2), np.int64))
    assert block["obs"][:, :, 0].T.tolist() == [[0, 1, 2, 3, 0, 1, 2]] * 2
    assert np.flatnonzero(block["first"][:, 0]).tolist() == [0, 4]
    assert np.flatnonzero(~block["valid"][:, 0]).tolist() == [3]
    assert (block["first"][:, 0] == block["first"][:, 1]).all()
    assert (block["valid"][:, 0] == block["valid"][:, 1]).all()
    assert block["reward"][:6].T.tolist() == [[5, 5, 5, 0, 5, 5]] * 2
    assert np.flatnonzero(block["terminated"][:, 0]).tolist() == [1, 2, 5]
    assert np.flatnonzero(block["truncated"][:, 1]).tolist() == [2]
    assert not block["truncated"][:, 0].any()
    assert block["acting"].all()


def test_native_env_keeps_the_contract():
    assert check_env(lambda r: NativeEnv(Vector(), NUMBER, r), request_of("x"), steps=20) == []


@pytest.mark.parametrize("reseed", ["episode", "start"])
def test_native_env_that_begins_episodes_with_seeds_is_restored_where_it_does(reseed):
    request = request_of("drawn", num_envs=3, reseed=reseed)
    made = NativeEnv(Drawn(), DRAWN, request)
    assert ("not restored" in made.spec.restores) == (reseed == "start")
    assert check_env(lambda r: NativeEnv(Drawn(), DRAWN, r), request, steps=40) == []
    block = play(made, np.random.default_rng(0).integers(0, 2, (40, 3)))
    assert (
        block["reward"][:-1][block["valid"][:-1]] == block["obs"][1:, :, 2][block["valid"][:-1]]
    ).all()
    begun = [block["obs"][t, e, 0] for e in range(3) for t in np.flatnonzero(block["first"][:, e])]
    seeds = [
        episode_seed(3, 10 + e, n) % 97
        for e in range(3)
        for n in range(int(block["first"][:, e].sum()))
    ]
    assert (begun == seeds) == (reseed == "episode")


@pytest.mark.parametrize("at", range(2, 14))
def test_native_env_is_brought_back_at_any_step(at):
    actions = np.random.default_rng(at).integers(0, 2, (at + 12, 3))
    request = request_of("drawn", num_envs=3)
    env = NativeEnv(Drawn(), DRAWN, request)
    whole = play(env, actions)
    half = NativeEnv(Drawn(), DRAWN, request)
    block = play(half, actions[:at])
    again = NativeEnv(Drawn(), DRAWN, request)
    seen = block.observation_rows(DRAWN, at)
    assert again.load(half.save(), [seen])
    rest = block_of(again, len(actions) + 1)
    rest["action"][:-1] = actions
    for t in range(at, len(actions)):
        step(again, rest, t)
    for name in ("obs", "first", "valid"):
        assert (rest[name][at + 1 :] == whole[name][at + 1 :]).all()
    for name in ("reward", "terminated"):
        assert (rest[name][at:-1] == whole[name][at:-1]).all()
    saved, other = again.save(), env.save()
    assert all((saved[name] == other[name]).all() for name in other)
    seen.obs["obs"][0] += 1
    assert not NativeEnv(Drawn(), DRAWN, request).load(half.save(), [seen])


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("raises", "failed in step: RuntimeError.*pool is dry"),
        ("nan", "showed 'obs' with a value that is not finite.*env 11 of the run .lane 1"),
        ("reward", "gave the reward nan.*env 10 of the run .lane 0"),
    ],
)
def test_native_fault_names_env_lane_seed_and_action(fault, said):
    with pytest.raises(EnvError, match=said) as caught:
        play(native(fault), np.ones((2, 2), np.int64))
    assert "seed" in str(caught.value)
    assert "last action 1" in str(caught.value)


def test_native_step_after_a_failed_load_begins_anew():
    env = native()
    block = play(env, np.ones((2, 2), np.int64))
    assert not env.load(env.save(), [])
    step(env, block, 1)
    assert block["first"][2].all()
    assert not block["reward"][1].any()
    assert env.save()["episode"].tolist() == [1, 1]


def test_native_env_refuses_wrappers_and_closes_twice():
    with pytest.raises(ConfigError, match="takes no wrappers"):
        native(wrappers=("a:B",))
    env = native()
    env.close()
    env.close()
    with pytest.raises(EnvError, match="was closed"):
        play(env, np.ones((1, 2), np.int64))
