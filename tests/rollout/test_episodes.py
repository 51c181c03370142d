from srl.core.algorithm import Records
from srl.core.block import Block, Layout, route_spec
from srl.core.env import AgentSpec, Discrete, Observation
from srl.core.spec import Spec
from srl.rollout.episodes import Episodes

AGENT = AgentSpec((Observation("obs", (2,), "float32"),), Discrete(2))
LAYOUT = Layout(route_spec(AGENT, Records(Spec((AGENT.action.field,)))), rows=6, lanes=2, envs=2)


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
    episodes, block = Episodes(2), _block()
    finished = [episodes.observe(block, t) for t in range(5)]
    assert finished == [{}, {0: (3.0, 2, "main")}, {}, {}, {}]


def test_a_lost_life_ends_no_episode():
    episodes, block = Episodes(2), _block()
    block["valid"][2, 0] = True
    assert [episodes.observe(block, t) for t in range(2)] == [{}, {}]
    block["truncated"][2, 0], block["valid"][3, 0] = True, False
    assert episodes.observe(block, 2) == {0: (3.0, 3, "main")}


def test_saved_account_goes_on():
    block = _block()
    one, two = Episodes(2), Episodes(2)
    one.observe(block, 0)
    two.load(one.save())
    one.observe(block, 0)  # does not show in what was saved
    assert two.observe(block, 1) == {0: (3.0, 2, "main")}


def test_start_over_forgets_the_episode_under_way():
    episodes, block = Episodes(2), _block()
    episodes.observe(block, 0)
    episodes.start_over()
    assert episodes.save()["return"].tolist() == [0, 0]
    assert episodes.save()["length"].tolist() == [0, 0]
