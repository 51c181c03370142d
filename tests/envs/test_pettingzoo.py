import sys
from dataclasses import replace

import numpy as np
import pytest
from gymnasium import spaces

from srl.core.algorithm import Records
from srl.core.block import Block, Layout, route_spec
from srl.core.env import EnvRequest, episode_seed
from srl.core.errors import ConfigError, EnvError
from srl.core.spec import Spec
from srl.envs.pettingzoo import PettingZooFamily
from srl.testing.env_contract import Rows, check_env

LENGTHS = {"a": 4, "b": 2, "c": 4}


class Parallel:
    """PettingZoo's parallel API, without PettingZoo: each agent ends after its own number of steps.

    Shows `[step, noise]`, rewards the step's number; `truncates` are truncated, not terminated.
    """

    def __init__(self, lengths=LENGTHS, truncates=("c",), fault=""):
        self.possible_agents = list(lengths)
        self.lengths, self.truncates, self.fault = lengths, truncates, fault
        self.seeds, self.taken = [], []

    def observation_space(self, agent):
        return spaces.Box(-99, 99, (2,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(3, start=1)

    def _see(self, agents):
        return {a: np.array([self.count, self.rng.uniform()], np.float32) for a in agents}

    def reset(self, seed=None, options=None):
        self.seeds.append(seed)
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.count, self.agents = 0, list(self.possible_agents)
        obs = self._see(self.agents)
        if self.fault == "absent":
            del obs["b"]
        return obs, {}

    def step(self, actions):
        assert list(actions) == self.agents
        self.taken.append(actions)
        if self.fault == "raises":
            raise RuntimeError("fell over")
        self.count += 1
        agents = self.agents
        ends = {a: self.count >= self.lengths[a] for a in agents}
        terminated = {a: ends[a] and a not in self.truncates for a in agents}
        truncated = {a: ends[a] and a in self.truncates for a in agents}
        self.agents = [a for a in agents if not ends[a]]
        obs = self._see(agents)
        if self.fault == "vanishes":
            self.agents = self.agents[1:]
        if self.fault == "nan":
            obs["b"][0] = np.nan
        if self.fault == "no final":
            obs = {a: obs[a] for a in self.agents}
        rewards = dict.fromkeys(agents, np.inf if self.fault == "reward" else self.count)
        return obs, rewards, terminated, truncated, {}

    def close(self):
        if self.fault == "close":
            raise RuntimeError("will not close")


def request_of(name="own", *, num_envs=2, sets=None, wrappers=(), reseed="episode", **options):
    return EnvRequest(
        name=name,
        options=options,
        wrappers=wrappers,
        num_envs=num_envs,
        seed=3,
        first_env=10,
        reseed=reseed,
        sets=sets,
    )


def own(make=Parallel, **kwargs):
    return PettingZooFamily.wrap(make, request_of(**kwargs))


def play(env, rows, action=0):
    """A block of all agents, lanes env-major."""
    agent, lead = env.spec.agents["a"], (env.spec.num_envs, len(env.spec.agents))
    layout = Layout(
        route_spec(agent, Records(Spec((agent.action.field,)))), rows, lead[0] * lead[1], lead[0]
    )
    block = Block.allocate(layout)
    block["action"][:] = action
    env.reset([block.observation_rows(agent, 0)])
    for t in range(rows - 1):
        taken = block["action"][t].reshape(lead)
        env.step([taken], [block.outcome_rows(t)], [block.observation_rows(agent, t + 1)])
    return block


def of_agent(block, name, index):
    return block[name][:, index].astype(int).tolist()


@pytest.mark.parametrize("reseed", ["episode", "start"])
def test_env_with_early_ends_keeps_the_contract(reseed):
    request = request_of(reseed=reseed)
    assert check_env(lambda r: PettingZooFamily.wrap(Parallel, r), request, steps=30) == []


def test_rows_and_masks_around_an_early_end_are_exact():
    block = play(own(), rows=8)
    # Agent b (1) is out after 2 steps; a (0) terminates and c (2) is truncated after 4.
    assert of_agent(block, "first", 1) == [1, 0, 0, 0, 0, 1, 0, 0]
    assert of_agent(block, "valid", 1) == [1, 1, 0, 0, 0, 1, 1, 0]
    assert of_agent(block, "acting", 1) == [1, 1, 0, 0, 0, 1, 1, 0]
    assert of_agent(block, "terminated", 1)[:7] == [0, 1, 0, 0, 0, 0, 1]
    assert of_agent(block, "reward", 1)[:7] == [1, 2, 0, 0, 0, 1, 2]
    assert block["obs"][:, 1, 0].tolist() == [0, 1, 2, 0, 0, 0, 1, 2]
    assert not block["obs"][3:5, 1].any()
    for index, ends, other in ((0, "terminated", "truncated"), (2, "truncated", "terminated")):
        assert of_agent(block, "first", index) == [1, 0, 0, 0, 0, 1, 0, 0]
        assert of_agent(block, "valid", index) == [1, 1, 1, 1, 0, 1, 1, 1]
        assert of_agent(block, "acting", index) == [1] * 8
        assert of_agent(block, ends, index)[:7] == [0, 0, 0, 1, 0, 0, 0]
        assert of_agent(block, "reward", index)[:7] == [1, 2, 3, 4, 0, 1, 2]
        assert not block[other][:, index].any()
        assert block["obs"][4, index, 0] == 4


def test_actions_reach_the_living_with_the_start_of_their_space():
    made = []

    def make():
        made.append(Parallel())
        return made[-1]

    play(own(make), rows=5, action=[0, 1, 2, 0, 1, 2])
    assert made[0].taken[0] == {"a": 1, "b": 2, "c": 3}
    assert made[0].taken[2] == {"a": 1, "c": 3}


def test_episodes_are_seeded_by_run_env_and_episode():
    made = []

    def make():
        made.append(Parallel())
        return made[-1]

    play(own(make), rows=12)
    assert made[1].seeds == [episode_seed(3, 11, k) for k in (0, 1, 2)]


def test_agents_of_different_spaces_go_in_sets_of_their_own():
    class Mixed(Parallel):
        def action_space(self, agent):
            return spaces.Box(-1, 1, (2,)) if agent == "b" else super().action_space(agent)

    request = request_of(sets=((2, 0), (1,)))
    assert check_env(lambda r: PettingZooFamily.wrap(Mixed, r), request, steps=20) == []
    with pytest.raises(ConfigError, match="exactly one route"):
        PettingZooFamily.wrap(Mixed, replace(request, sets=((0, 1),)))


class Guarded(Parallel):
    """Shows a mask to each agent, in a Dict as PettingZoo's classic games do."""

    def observation_space(self, agent):
        mask = spaces.Box(0, 1, (3,), np.int8)
        return spaces.Dict({"observation": super().observation_space(agent), "action_mask": mask})

    def _see(self, agents):
        self.allowed = {a: int(self.rng.integers(3)) for a in agents}
        seen = super()._see(agents)
        masks = {
            a: (np.arange(3) == allowed).astype(np.int8) for a, allowed in self.allowed.items()
        }
        if self.fault == "mask" and self.count == 2:
            masks["c"][:] = 0
        if self.count == 2:
            masks["b"][:] = 0  # it is out of the game: there is nothing to allow
        return {a: {"observation": seen[a], "action_mask": masks[a]} for a in agents}

    def step(self, actions):
        assert all(self.allowed[a] + 1 == action for a, action in actions.items())
        return super().step(actions)


def test_masks_are_heeded_and_may_be_empty_only_for_who_is_out():
    make = lambda **o: check_env(lambda r: PettingZooFamily.wrap(Guarded, r), request_of(**o))  # noqa: E731
    assert make() == []
    told = make(fault="mask")
    assert len(told) == 1
    assert "showed 'obs.action_mask': every action is masked out (agent 'c')" in told[0]


class Stateful(Parallel):
    """Has a state for a central critic."""

    state_space = spaces.Box(-99, 99, (2,), np.float64)

    def state(self):
        return np.array([self.count, -self.count], np.float64)


def test_state_is_shown_to_a_central_critic_where_it_is_asked_for():
    assert not own(Stateful).spec.agents["a"].central
    env = own(Stateful, central=True, sets=((0, 2), (1,)))
    assert [o.name for o in env.spec.agents["b"].central] == ["state"]
    two, one = (Rows.allocate(env.spec.agents["a"], (7, 2, n), 1) for n in (2, 1))
    env.reset([two.seen[0], one.seen[0]])
    for t in range(7):
        actions = [np.zeros((2, 2), np.int64), np.zeros((2, 1), np.int64)]
        seen = [of.seen[t + 1] for of in (two, one)]
        env.step(actions, [two.outcomes[t], one.outcomes[t]], seen)
    for rows in (two, one):
        counts = [row.central["state"][1].tolist() for row in rows.seen]
        assert counts == [[n, -n] for n in (0, 1, 2, 3, 4, 0, 1, 2)]
    request = request_of(central=True)
    assert check_env(lambda r: PettingZooFamily.wrap(Stateful, r), request, steps=20) == []


def test_env_without_a_state_has_no_central_critic():
    with pytest.raises(ConfigError, match="has no state_space: leave the option central"):
        own(central=True)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("raises", "failed in step: RuntimeError.*fell over"),
        ("vanishes", r"agents \['a'\] left without being terminated or truncated"),
        ("nan", "not finite.*agent 'b'"),
        ("reward", "gave agent 'a' the reward inf"),
    ],
)
def test_fault_in_step_names_env_lane_seed_step_and_actions(fault, said):
    faults = iter(["", fault])
    with pytest.raises(EnvError, match=said) as caught:
        play(own(lambda: Parallel(fault=next(faults))), rows=3)
    told = str(caught.value)
    assert "env 'own'" in told
    assert "env 11 of the run (lane 1 of its batch)" in told
    assert f"seed {episode_seed(3, 11, 0)}, episode 0, step 1, last action 0, 0, 0" in told


def test_missing_agents_and_final_observations_are_errors():
    with pytest.raises(EnvError, match=r"failed in reset: agents \['b'\] are not there"):
        play(own(fault="absent"), rows=2)
    with pytest.raises(EnvError, match="final observation of truncated agent 'c' is missing"):
        play(own(fault="no final"), rows=6)


def test_load_that_cannot_replay_is_false_and_the_env_goes_on():
    class Forgetful(Parallel):
        def reset(self, seed=None, options=None):
            self.rng = np.random.default_rng()
            return super().reset()

    env = own(Forgetful)
    block = play(env, rows=3)
    assert not env.load(env.save(), [block.observation_rows(env.spec.agents["a"], 2)])
    assert play(env, rows=2)["first"][0].all()
    assert env.save()["episode"].tolist() == [1, 1]


def test_requests_that_cannot_be_built_are_refused(caplog):
    with pytest.raises(ConfigError, match=r"cannot be built with the options.*colour"):
        own(colour=1)
    env = own(fault="close")
    env.close()
    env.close()
    assert "failed to close" in caplog.text


def test_missing_package_names_the_extra_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    with pytest.raises(ConfigError, match=r"pip install 'really-scalable-rl\[pettingzoo\]'"):
        PettingZooFamily.make_batch(request_of("butterfly.pistonball_v6"))


@pytest.mark.parametrize(
    ("name", "needs", "options", "steps"),
    [
        ("classic.rps_v2", "pygame", {"max_cycles": 6}, 30),
        ("butterfly.pistonball_v6", "pymunk", {"n_pistons": 3, "max_cycles": 12}, 30),
        ("butterfly.pistonball_v6", "pymunk", {"max_cycles": 5, "central": True}, 12),
        ("butterfly.knights_archers_zombies_v11", "pygame", {"spawn_delay": 4}, 150),
    ],
)
def test_pettingzoo_env_keeps_the_contract(name, needs, options, steps, monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    pytest.importorskip("pettingzoo", reason="really-scalable-rl[pettingzoo] is not installed")
    pytest.importorskip(needs, reason="really-scalable-rl[pettingzoo] is not installed")
    assert check_env(PettingZooFamily.make_batch, request_of(name, **options), steps=steps) == []


def test_unknown_and_unplayable_names_are_refused():
    pytest.importorskip("pettingzoo", reason="really-scalable-rl[pettingzoo] is not installed")
    pytest.importorskip("pygame", reason="really-scalable-rl[pettingzoo] is not installed")
    with pytest.raises(ConfigError, match=r"did you mean 'butterfly\.pistonball_v6'"):
        PettingZooFamily.make_batch(request_of("butterfly.pistonball_v5"))
    with pytest.raises(ConfigError, match="has no parallel_env"):
        PettingZooFamily.make_batch(request_of("classic.tictactoe_v3"))
