import numpy as np

from srl.core.algorithm import Records
from srl.core.block import Block, input_names, route_layout
from srl.core.env import AgentSpec, Discrete, Observation
from srl.core.spec import Spec
from srl.rollout.opponents import Opponents

AGENT = AgentSpec((Observation("obs", (), "float32"),), Discrete(2))
RECORDS = Records(Spec((AGENT.action.field,)), members=3)
LANES = 64


def block():
    made = Block.allocate(route_layout(AGENT, RECORDS, rollout=4, lanes=LANES, envs=LANES))
    made["lane"][:] = np.arange(LANES) + 100
    made["first"][0] = True
    made["first"][2, :32] = True
    return made


def shown(opponents, rows):
    made = block()
    for t in rows:
        opponents.show(made, t)
    return made["policy_id"]


def test_opponent_is_drawn_where_an_episode_begins():
    ids = shown(Opponents(3, LANES, seed=1), range(4))
    assert set(ids[0]) == {0, 1, 2}
    np.testing.assert_array_equal(ids[1], ids[0])
    np.testing.assert_array_equal(ids[2, 32:], ids[1, 32:])
    assert (ids[2, :32] != ids[1, :32]).any()
    np.testing.assert_array_equal(ids[3], ids[2])


def test_draws_depend_on_seed_lane_and_episode_alone():
    one, again, other = (shown(Opponents(3, LANES, seed=s), range(4)) for s in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()


def test_saved_opponents_go_on():
    before, after = Opponents(3, LANES, seed=1), Opponents(3, LANES, seed=1)
    whole = shown(before, range(4))
    before = Opponents(3, LANES, seed=1)
    shown(before, range(2))
    after.load(before.save())
    np.testing.assert_array_equal(shown(after, [2, 3])[2:4], whole[2:4])


def test_policy_that_is_no_pool_has_no_id():
    alone = Records(Spec((AGENT.action.field,)))
    layout = route_layout(AGENT, alone, rollout=1, lanes=2, envs=2)
    assert "policy_id" not in layout.spec
    assert "policy_id" not in input_names(AGENT, alone)
    assert "policy_id" in input_names(AGENT, RECORDS)
    opponents = Opponents(0, 2, seed=0)
    opponents.show(Block.allocate(layout), 0)
    assert opponents.save() == {}
