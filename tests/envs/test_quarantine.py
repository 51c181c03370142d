"""One env of a batch fails: what the adapters of Python envs write, raise, rebuild and bring back."""

from pathlib import Path

import numpy as np
import pytest

from srl.core.algorithm import Records
from srl.core.block import Block, Layout, route_spec
from srl.core.env import EnvRequest, Quarantines, episode_seed
from srl.core.errors import EnvError
from srl.core.names import load_object
from srl.core.spec import Spec
from srl.envs.gym import GymFamily
from srl.envs.pettingzoo import PettingZooFamily
from srl.envs.toy import Counter

FAILING = load_object(f"{Path(__file__).parents[1] / 'bad_envs.py'}:Failing")
SEED, FIRST_ENV, ENVS = 3, 10, 3


class Pair:
    """Two agents in one `Failing`: both see it, the second is paid double. For PettingZoo."""

    possible_agents = ("a", "b")

    def __init__(self, **options):
        self.env = FAILING(**options)
        self.agents = []
        self.is_closed = False

    def observation_space(self, agent):
        return self.env.observation_space

    def action_space(self, agent):
        return self.env.action_space

    def reset(self, seed=None, options=None):
        obs, _ = self.env.reset(seed=seed)
        self.agents = list(self.possible_agents)
        return dict.fromkeys(self.agents, obs), {}

    def step(self, actions):
        obs, reward, terminated, truncated, _ = self.env.step(0)
        here = self.agents
        self.agents = [] if terminated else here
        pay = {"a": reward, "b": 2 * reward}
        return (
            dict.fromkeys(here, obs),
            {agent: pay[agent] for agent in here},
            dict.fromkeys(here, terminated),
            dict.fromkeys(here, truncated),
            {},
        )

    def close(self):
        self.is_closed = True


MAKERS = {
    "gym": (GymFamily.wrap, FAILING, 1),
    "pettingzoo": (PettingZooFamily.wrap, Pair, 2),
}
families = pytest.mark.parametrize("family", MAKERS)


class Played:
    """A batch and the rows it has written; `made` are the envs it has built, in order."""

    def __init__(self, family, *, rows=12, reseed="episode", first_episode=0, **options):
        wrap, make, self.agents = MAKERS[family]
        self.made = []

        def build(**given):
            self.made.append(make(**given))
            return self.made[-1]

        self.env = wrap(
            build,
            EnvRequest(
                name="own",
                options=options,
                wrappers=(),
                num_envs=ENVS,
                seed=SEED,
                first_env=FIRST_ENV,
                reseed=reseed,
                first_episode=first_episode,
            ),
        )
        self.agent = next(iter(self.env.spec.agents.values()))
        records = Records(Spec((self.agent.action.field,)))
        layout = Layout(route_spec(self.agent, records), rows + 1, ENVS * self.agents, ENVS)
        self.block, self.row = Block.allocate(layout), 0
        for array in self.block.fields.values():
            array.fill(1)  # what is not written shows
        self.block["action"][:] = np.arange(rows + 1)[:, None] % 2

    def seen(self, t):
        return [self.block.observation_rows(self.agent, t)]

    def reset(self):
        self.env.reset(self.seen(0))

    def step(self):
        t, self.row = self.row, self.row + 1
        actions = self.block["action"][t].reshape(ENVS, self.agents)
        self.env.step([actions], [self.block.outcome_rows(t)], self.seen(t + 1))

    def step_to(self, row):
        while self.row < row:
            self.step()

    def __getitem__(self, name):
        """A field, of the last agent of each env: `[rows, E, ...]`."""
        array = self.block[name]
        return array.reshape(len(array), ENVS, self.agents, *array.shape[2:])[:, :, -1]


def seed_of(env, episode):
    return episode_seed(SEED, FIRST_ENV + env, episode)


@families
def test_one_that_fails_leaves_a_blank_row_and_the_others_theirs(family):
    played = Played(family, of=[seed_of(1, 0)])
    played.reset()
    played.step()
    with pytest.raises(EnvError) as caught:
        played.step()
    (fault,) = caught.value.faults
    assert (fault.env, fault.kind, fault.episode, fault.step) == (1, "RuntimeError", 0, 2)
    assert fault.seed == seed_of(1, 0)
    assert [a.tolist() for a in fault.actions.values()] == [[[0], [1]]] * played.agents
    assert fault.note == ""
    assert "out of fuel" in fault.traceback
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert played["obs"][2].tolist() == [[2, 0], [0, 0], [2, 0]]
    assert played["valid"][2].tolist() == [True, False, True]
    assert played["acting"][2].tolist() == [True, False, True]
    assert not played["first"][2].any()
    pay = 2 * played.agents
    assert played["reward"][1].tolist() == [pay, 0, pay]
    assert not played["terminated"][1].any()
    played.step()  # which builds it again, and begins its next episode
    assert len(played.made) == ENVS + 1
    assert played.made[1].is_closed
    assert played["obs"][3].tolist() == [[3, 0], [0, 0], [3, 0]]
    assert played["first"][3].tolist() == [False, True, False]
    assert played["valid"][3].all()
    assert played["reward"][2, 1] == 0
    played.step()
    assert played["obs"][4, 1].tolist() == [1, 0]


@families
def test_several_that_fail_in_one_call_are_all_named(family):
    played = Played(family, of=[seed_of(0, 0), seed_of(2, 0)], how="nan")
    played.reset()
    played.step()
    with pytest.raises(
        EnvError, match=r"env 10 of the run .* \(and 1 more envs of its batch\)"
    ) as e:
        played.step()
    assert [fault.env for fault in e.value.faults] == [0, 2]
    assert "not finite" in e.value.faults[1].what
    assert played["obs"][2].tolist() == [[0, 0], [2, 0], [0, 0]]
    played.step()
    assert played["first"][3].tolist() == [True, False, True]


@families
def test_failure_in_a_reset_is_tried_again_with_the_next_seed(family):
    played = Played(family, of=[seed_of(2, 0), seed_of(2, 1)], at=0)
    with pytest.raises(EnvError, match="failed in reset"):
        played.reset()
    assert played["valid"][0].tolist() == played["first"][0].tolist() == [True, True, False]
    with pytest.raises(EnvError, match=f"seed {seed_of(2, 1)}, episode 1, step 0"):
        played.step()
    assert not played["valid"][1, 2]
    played.step()
    assert played["first"][2].tolist() == [False, False, True]


@families
def test_env_that_cannot_be_built_again_stays_blank(family):
    played = Played(family, of=[seed_of(0, 0)], at=1)
    played.reset()
    with pytest.raises(EnvError, match="out of fuel"):
        played.step()

    def fail():
        raise OSError("no licence left")

    make, played.env._make = played.env._make, fail
    with pytest.raises(EnvError, match=r"failed in reset: OSError\('no licence left'\)"):
        played.step()
    assert not played["valid"][2, 0]
    played.env._make = make
    played.step()
    assert played["first"][3, 0]


@families
def test_parked_env_is_closed_and_blank_whatever_comes(family):
    played = Played(family)
    assert isinstance(played.env, Quarantines)
    played.reset()
    played.env.park(1)
    assert played.made[1].is_closed
    played.step_to(7)
    assert not played["valid"][1:8, 1].any()
    assert not played["acting"][1:8, 1].any()
    assert not played["first"][1:8, 1].any()
    assert not played["obs"][1:8, 1].any()
    assert not played["reward"][1:7, 1].any()
    assert played["obs"][1:8, 0, 0].tolist() == [1, 2, 3, 4, 0, 1, 2]
    played.row = 0
    played.reset()
    assert played["valid"][0].tolist() == [True, False, True]
    assert len(played.made) == ENVS
    played.env.close()


def test_log_of_a_parked_env_does_not_grow():
    played = Played("gym", rows=4, length=1)
    played.reset()
    played.env.park(0)
    for _ in range(5000):
        played.row = 0
        played.step()
    assert len(played.env._log._log) < 1100
    steps = played.env.save()["steps"]
    assert steps[0] == 0
    assert len(played.env.save()["actions"]) == steps.sum() <= 4


@families
@pytest.mark.parametrize("at_row", [2, 3, 5])
def test_state_with_lost_and_parked_envs_comes_back(family, at_row):
    options = {"of": [seed_of(1, 0)], "counts": False, "rows": 11}
    played = Played(family, **options)
    played.reset()
    played.env.park(2)
    for _ in range(11):
        if played.row == at_row:
            state = {name: array.copy() for name, array in played.env.save().items()}
        if played.row == 1:
            with pytest.raises(EnvError, match="out of fuel"):
                played.step()
        else:
            played.step()
    again = Played(family, **options)
    again.env.park(2)
    assert again.env.load(state, played.seen(at_row))
    again.row = at_row
    again.step_to(11)
    for name in ("obs", "first", "valid", "acting"):
        np.testing.assert_array_equal(again[name][at_row + 1 :], played[name][at_row + 1 :], name)


def test_seeded_at_start_only_a_failure_may_not_come_again_and_the_new_env_gets_a_seed():
    played = Played("gym", reseed="start", of=[seed_of(1, 0)], length=1, at=1, rows=20)
    played.reset()
    with pytest.raises(EnvError) as caught:
        played.step()
    assert caught.value.faults[0].note == ""  # its first episode
    played.step_to(6)
    assert played.env._log.seed[1] == seed_of(1, 1)
    later = Played("gym", reseed="start", of=[seed_of(1, 0)], length=3, at=3)
    later.reset()
    later.env._envs[1]._at = 99  # not in its first episode
    later.step_to(5)
    later.env._envs[1]._at = 2
    with pytest.raises(EnvError) as caught:
        later.step_to(9)
    assert "no seed of its own" in caught.value.faults[0].note


@families
def test_first_episode_is_the_one_asked_for(family):
    played = Played(family, first_episode=7, of=[seed_of(0, 7)], at=1)
    played.reset()
    with pytest.raises(EnvError, match=f"seed {seed_of(0, 7)}, episode 7, step 1"):
        played.step()


def test_toys_and_their_first_episode():
    request = EnvRequest(
        name="counter",
        options={},
        wrappers=(),
        num_envs=1,
        seed=0,
        first_env=4,
        reseed="episode",
        first_episode=6,
    )
    env = Counter.make_batch(request)
    agent = next(iter(env.spec.agents.values()))
    layout = Layout(route_spec(agent, Records(Spec((agent.action.field,)))), 2, 1, 1)
    block = Block.allocate(layout)
    env.reset([block.observation_rows(agent, 0)])
    assert block["obs"][0, 0].tolist() == [0, 6, 4, 0]
