from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from srl.core.algorithm import Records
from srl.core.block import Block, Layout, route_spec
from srl.core.env import EnvRequest
from srl.core.errors import ConfigError, EnvError
from srl.core.spec import Spec
from srl.envs.toy import (
    TOYS,
    Chain,
    Counter,
    Identity,
    Masked,
    Match,
    Mortal,
    Pixels,
    Recall,
    Target,
    Turns,
)
from srl.testing.env_contract import check_env


def request_of(num_envs=2, wrappers=(), sets=None, **options):
    return EnvRequest(
        name="toy",
        options=options,
        wrappers=wrappers,
        num_envs=num_envs,
        seed=3,
        first_env=10,
        reseed="episode",
        sets=sets,
    )


def play(env, act, rows):
    """A block of `rows` rows; `act` turns row t's observation [L, ...] into actions [L, ...]."""
    agent = next(iter(env.spec.agents.values()))
    lanes = env.spec.num_envs * len(env.spec.agents)
    spec = route_spec(agent, Records(Spec((agent.action.field,))))
    block = Block.allocate(Layout(spec, rows, lanes, env.spec.num_envs))
    env.reset([block.observation_rows(agent, 0)])
    for t in range(rows - 1):
        block["action"][t] = act(block["obs"][t])
        lead = (env.spec.num_envs, len(env.spec.agents), *agent.action.field.shape)
        actions = block["action"][t].reshape(lead)
        env.step([actions], [block.outcome_rows(t)], [block.observation_rows(agent, t + 1)])
    return block


@pytest.mark.parametrize("agents", [1, 3])
@pytest.mark.parametrize("toy", TOYS.values())
def test_toy_keeps_the_contract(toy, agents):
    assert check_env(toy.make_batch, request_of(agents=agents), steps=70) == []


def test_identity_as_integer_keeps_the_contract():
    assert check_env(Identity.make_batch, request_of(shown="integer"), steps=40) == []


@pytest.mark.parametrize("ends", ["terminated", "truncated"])
def test_counter_rows_are_exact(ends):
    env = Counter.make_batch(request_of(length=2, ends=ends, agents=2))
    block = play(env, lambda obs: 0, rows=6)
    lane = 3  # env 11 of the run, agent 1
    assert block["obs"][:, lane].tolist() == [
        [0, 0, 11, 1],
        [1, 0, 11, 1],
        [2, 0, 11, 1],
        [0, 1, 11, 1],
        [1, 1, 11, 1],
        [2, 1, 11, 1],
    ]
    assert block["first"][:, lane].tolist() == [True, False, False, True, False, False]
    assert block["valid"][:, lane].tolist() == [True, True, False, True, True, False]
    assert block["acting"].all()
    assert block["reward"][:, lane].tolist() == [0, 1, 0, 0, 1, 0]
    other = {"terminated": "truncated", "truncated": "terminated"}[ends]
    assert block[ends][:5, lane].tolist() == [False, True, False, False, True]
    assert not block[other].any()


@pytest.mark.parametrize("toy", [Identity, Pixels])
def test_naming_the_symbol_is_always_rewarded(toy):
    symbols = (
        (lambda obs: obs.argmax(-1))
        if toy is Identity
        else (lambda obs: obs[:, 0, :, 0].argmax(-1) * 4 // 36)
    )
    block = play(toy.make_batch(request_of(num_envs=8, length=5)), symbols, rows=20)
    assert (block["reward"][:-1] == block["valid"][:-1]).all()
    assert len(np.unique(symbols(block["obs"][0]))) > 1


def test_chain_walked_to_its_end_terminates_with_reward_one():
    block = play(Chain.make_batch(request_of(length=4)), lambda obs: 1, rows=5)
    assert block["reward"][:, 0].tolist() == [0, 0, 1, 0, 0]
    assert block["terminated"][:, 0].tolist() == [False, False, True, False, False]
    assert block["first"][:, 0].tolist() == [True, False, False, False, True]


def test_chain_never_left_is_truncated_and_pays_the_bait():
    env = Chain.make_batch(request_of(length=4, steps=3, bait=0.5))
    block = play(env, lambda obs: 0, rows=5)
    assert block["reward"][:, 0].tolist() == [0.5, 0.5, 0.5, 0, 0]
    assert block["truncated"][:, 0].tolist() == [False, False, True, False, False]


def test_target_rewards_closeness_and_clips():
    exact = play(Target.make_batch(request_of(num_envs=50)), lambda obs: obs, rows=10)
    assert not exact["reward"].any()
    assert exact["obs"].min() < -0.5
    assert exact["obs"].max() > 0.5
    far = play(Target.make_batch(request_of()), lambda obs: 5, rows=3)
    np.testing.assert_allclose(far["reward"][0], far["obs"][0, :, 0] - 1)


def test_toys_draw_every_value_about_equally_often():
    env = Identity.make_batch(request_of(num_envs=4000, choices=4, shown="integer"))
    counts = np.bincount(play(env, lambda obs: 0, rows=2)["obs"].ravel())
    assert (abs(counts - 2000) < 200).all()


def test_recall_is_solved_by_memory_and_by_nothing_else():
    cues = {}

    def remember(obs):
        for lane in np.flatnonzero(obs[:, :4].any(1)):
            cues[int(lane)] = int(obs[lane, :4].argmax())
        return np.array([cues[lane] for lane in range(len(obs))])

    env = Recall.make_batch(request_of(num_envs=200, delay=3, jitter=2))
    block = play(env, remember, rows=40)
    assert (block["reward"][:-1] == block["terminated"][:-1]).all()
    shown = block["obs"]
    assert (shown[..., :4].sum(-1) == block["first"]).all()
    goes = shown[:-1, :, 4] == 1
    assert (goes == block["terminated"][:-1])[block["valid"][:-1]].all()
    lengths = np.diff(np.flatnonzero(block["first"].T.ravel()))
    assert {4, 5, 6} <= {int(n) - 1 for n in lengths}  # delay 3 to 5, the go, a final row
    forgetful = play(env, lambda obs: 2, rows=400)
    mean = forgetful["reward"].sum() / forgetful["terminated"].sum()
    assert abs(mean - 1 / 4) < 0.03


def test_recall_ends_for_all_agents_of_an_env_at_once():
    env = Recall.make_batch(request_of(num_envs=20, agents=2, delay=2, jitter=5))
    block = play(env, lambda obs: 0, rows=30)
    assert (block["terminated"][:, ::2] == block["terminated"][:, 1::2]).all()
    assert not (block["obs"][0, ::2] == block["obs"][0, 1::2]).all()


def test_match_is_even_between_equals_and_won_by_who_knows():
    env = Match.make_batch(request_of(num_envs=500))
    assert list(env.spec.agents) == ["red_0", "blue_0"]
    knowing = lambda obs: obs.argmax(-1)  # noqa: E731
    both = play(env, knowing, rows=17)
    np.testing.assert_allclose(both["reward"][:-1].sum(0), 16 * 0.1, rtol=1e-5)
    one = play(env, lambda obs: np.where(np.arange(1000) % 2, 0, obs.argmax(-1)), rows=17)
    returns = one["reward"][:-1].sum(0).reshape(500, 2).mean(0)
    np.testing.assert_allclose(returns, [16 * (0.75 + 0.1), 16 * (-0.75 + 0.025)], atol=0.3)
    none = play(env, lambda obs: 0, rows=17)
    returns = none["reward"][:-1].sum(0).reshape(500, 2).mean(0)
    np.testing.assert_allclose(returns, 16 * 0.025, atol=0.3)


def test_match_of_teams_pays_the_share_of_each_team():
    env = Match.make_batch(request_of(num_envs=2, agents=2, share=0.5, central=True))
    assert list(env.spec.agents) == ["red_0", "red_1", "blue_0", "blue_1"]
    right = np.array([True, False, True, True] * 2)
    block = play(env, lambda obs: np.where(right, obs.argmax(-1), obs.argmin(-1)), rows=3)
    assert block["reward"][0].tolist() == [0.0, -0.5, 1.0, 1.0] * 2
    assert (block["state"] == block["obs"].reshape(3, 2, 16)).all()


def test_turns_pays_a_move_when_the_next_one_was_made():
    env = Turns.make_batch(request_of(num_envs=1, length=4, jitter=0))
    block = play(env, lambda obs: obs.argmax(-1), rows=7)
    act = block["acting"]
    assert act.tolist() == [[1, 0], [0, 1], [1, 0], [0, 1], [1, 1], [1, 0], [0, 1]]
    assert block["valid"][:, 0].tolist() == [True] * 4 + [False] + [True] * 2
    # The move of row 0 is paid at row 1; that of row 3, the last, at once.
    assert block["reward"][:-1].tolist() == [[0, 0], [1, 0], [0, 1], [1, 1], [0, 0], [0, 0]]
    assert block["terminated"][:, 0].tolist() == [False] * 3 + [True] + [False] * 3


def test_turns_of_three_end_at_random_lengths_and_owe_nothing():
    env = Turns.make_batch(request_of(num_envs=50, agents=3))
    block = play(env, lambda obs: obs.argmax(-1), rows=60)
    moves = (block["acting"] & block["valid"]).reshape(60, 50, 3)
    assert (moves.sum(-1) == block["valid"].reshape(60, 50, 3)[..., 0]).all()
    for e in range(50):
        ends = np.flatnonzero(block["terminated"][:, 3 * e])
        assert (
            block["reward"][: ends[-1] + 1, 3 * e : 3 * e + 3].sum()
            == moves[: ends[-1], e].sum() + 1
        )
    ends = np.diff(np.flatnonzero(block["first"][:, ::3].T.ravel()))
    assert len(set(ends.tolist())) > 3


def test_mortal_agents_die_alone_and_the_others_go_on():
    env = Mortal.make_batch(request_of(num_envs=30, length=4))
    block = play(env, lambda obs: obs.argmax(-1), rows=30)
    valid, acting = (block[name].reshape(30, 30, 3) for name in ("valid", "acting"))
    ended = (block["terminated"] | block["truncated"]).reshape(30, 30, 3)
    first = block["first"].reshape(30, 30, 3)
    assert block["terminated"].any()
    assert block["truncated"].any()
    out = ~valid & ~acting
    assert out.any()
    assert not out.all(-1).any()
    assert (out.any(-1) & valid.any(-1)).any()
    assert (first[1:].all(-1) == ~valid[:-1].any(-1)).all()
    assert (block["reward"][:-1] == block["valid"][:-1]).all()
    # After its final observation an agent that is out shows nothing.
    obs = block["obs"].reshape(30, 30, 3, -1)
    long_out = ~valid[1:] & ~ended[:-1]
    assert not obs[1:][long_out].any()
    assert obs[1:][~long_out].any(-1).all()


def test_masked_rewards_the_best_of_what_is_allowed():
    env = Masked.make_batch(request_of(num_envs=1, length=4))
    agent = env.spec.agents["agent_0"]
    rows = Block.allocate(Layout(route_spec(agent, Records(Spec((agent.action.field,)))), 2, 1, 1))
    env.reset([rows.observation_rows(agent, 0)])
    for _ in range(3):
        mask, values = rows["action_mask"][0, 0], rows["obs"][0, 0]
        best = max(np.flatnonzero(mask), key=lambda i: values[i])
        action = np.array([[best]])
        env.step([action], [rows.outcome_rows(0)], [rows.observation_rows(agent, 0)])
        assert rows["reward"][0, 0] == 1


def test_masked_refuses_what_the_mask_forbids():
    env = Masked.make_batch(request_of(num_envs=40, choices=2))
    with pytest.raises(
        EnvError, match=r"action 0, which its mask forbids; it is env \d+ of the run"
    ):
        play(env, lambda obs: 0, rows=3)


def test_load_of_what_was_not_seen_is_false_and_begins_anew():
    env = Counter.make_batch(request_of())
    block = play(env, lambda obs: 0, rows=3)
    agent = env.spec.agents["agent_0"]
    assert not env.load(env.save(), [block.observation_rows(agent, 0)])
    actions = np.zeros((2, 1), np.int64)
    env.step([actions], [block.outcome_rows(0)], [block.observation_rows(agent, 1)])
    assert block["first"][1].all()


def test_unknown_option_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="no option 'choises': did you mean 'choices'"):
        Identity.make_batch(request_of(choises=3))


def test_impossible_requests_are_refused():
    with pytest.raises(ConfigError, match="length is 0"):
        Counter.make_batch(request_of(length=0))
    with pytest.raises(ConfigError, match="jitter is -1, must be at least 0"):
        Recall.make_batch(request_of(jitter=-1))
    with pytest.raises(ConfigError, match="choices is 'x', must be of type int"):
        Recall.make_batch(request_of(choices="x"))
    with pytest.raises(ConfigError, match="no wrappers"):
        Counter.make_batch(request_of(wrappers=("a:B",)))
    with pytest.raises(ConfigError, match="every agent must be in exactly one route"):
        Counter.make_batch(request_of(agents=2, sets=((0,),)))


class Faulty:
    """A Counter or Identity with one fault, to see that the contract finds it."""

    def __init__(self, fault, request):
        self.env = Identity.make_batch(request)
        self.spec, self.fault = self.env.spec, fault
        if fault == "seed":
            self.env._now = replace(self.env._now, env=np.zeros_like(self.env._now.env))
        if fault == "random":
            self.env._now = replace(self.env._now, seed=next(SEEDS))

    def reset(self, out):
        self.env.reset(out)
        if self.fault == "first":
            out[0].first[:] = False

    def step(self, actions, outcome, out):
        self.env.step(actions, outcome, out)
        if self.fault == "valid":
            out[0].valid[:] = True
        if self.fault == "reward":
            outcome[0].reward[:] = 1
        if self.fault == "nan":
            out[0].obs["obs"][0] = np.nan

    def save(self):
        return self.env.save()

    def load(self, state, seen):
        same = self.env.load(state, seen)
        if self.fault == "load":
            self.env._now = replace(self.env._now, seed=9)
        return same

    def close(self):
        self.env.close()


SEEDS = count()


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("first", "'first' must be True on the rows after reset"),
        ("valid", "'valid' must be False exactly on the row after an end"),
        ("reward", "the reward of a reset step must be 0"),
        ("nan", "observation 'obs' must be finite"),
        ("random", "two builds with the same seed"),
        ("seed", "must be seeded apart"),
        ("load", "after load() at row"),
    ],
)
def test_contract_finds_the_fault(fault, said):
    told = check_env(lambda r: Faulty(fault, r), request_of(length=5), steps=20)
    assert any(said in sentence for sentence in told), told
