import numpy as np

from srl.core.block import Block, Layout, route_spec
from srl.core.env import AgentSpec, Discrete, Observation
from srl.core.spec import Spec
from srl.rollout.episodes import Episodes

AGENT = AgentSpec((Observation("obs", (2,), "float32"),), Discrete(2))
LAYOUT = Layout(route_spec(AGENT, Spec((AGENT.action.field,))), rows=6, lanes=2, envs=2)


def _block():
    """Lane 0: two steps, terminated, a final row, the next episode. Lane 1 just goes on."""
    block = Block.allocate(LAYOUT)
    block["reward"][:5] = [[1, 10], [2, 10], [0, 10], [5, 10], [5, 10]]
    block["terminated"][1, 0] = True
    block["valid"][:] = True
    block["valid"][2, 0] = False
    block["first"][0] = True
    block["first"][3, 0] = True
    return block


def test_return_and_length_leave_the_final_row_out():
    episodes, block = Episodes(np.array([4, 5])), _block()
    finished = [episodes.observe(block, t) for t in range(5)]
    assert finished == [[], [(3.0, 2)], [], [], []]


def test_row_numbers_go_on_over_final_rows_and_begin_again_with_an_episode():
    episodes, block = Episodes(np.array([4, 5])), _block()
    numbers = []
    for t in range(5):
        episodes.observe(block, t)
        numbers.append((episodes.episode.tolist(), episodes.step.tolist()))
    assert numbers == [
        ([0, 0], [1, 1]),
        ([0, 0], [2, 2]),
        ([1, 0], [0, 3]),
        ([1, 0], [1, 4]),
        ([1, 0], [2, 5]),
    ]


def test_head_says_where_row_0_is():
    episodes, block = Episodes(np.array([4, 5])), _block()
    for t in range(4):
        episodes.observe(block, t)
    episodes.write_head(block)
    assert block["lane"].tolist() == [4, 5]
    assert block["episode"].tolist() == [1, 0]
    assert block["step"].tolist() == [1, 4]


def test_saved_account_goes_on():
    block = _block()
    one, two = Episodes(np.array([4, 5])), Episodes(np.array([4, 5]))
    one.observe(block, 0)
    two.load(one.save())
    one.observe(block, 0)  # does not show in what was saved
    assert two.observe(block, 1) == [(3.0, 2)]


def test_start_over_forgets_the_episode_under_way():
    episodes = Episodes(np.arange(2))
    episodes.step += 3
    episodes._return += 7.0
    episodes._length += 3
    episodes.start_over()
    assert episodes.save()["return"].tolist() == [0, 0]
    assert episodes.save()["length"].tolist() == [0, 0]
    assert (episodes.step.tolist(), episodes.episode.tolist()) == ([0, 0], [1, 1])
