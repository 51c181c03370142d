import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from srl.core.env import AgentSpec, Box, Discrete, MultiDiscrete, Observation
from srl.core.masks import heed, mask_size, nothing_allowed

MASK = Observation("action_mask", (5,), "bool")


@pytest.mark.parametrize(
    ("space", "size"),
    [(Discrete(5), 5), (MultiDiscrete((2, 3)), 5), (Box((1,), (0.0,), (1.0,)), None)],
)
def test_size_is_one_value_a_choice(space, size):
    assert mask_size(space) == size


def test_forbidden_action_becomes_the_next_allowed_one():
    agent = AgentSpec((MASK,), Discrete(5))
    mask = np.array([[0, 1, 0, 0, 1]] * 5, np.bool_)
    assert heed(agent, np.arange(5), {"action_mask": mask}).tolist() == [1, 1, 4, 4, 4]
    mask = np.array([[0, 1, 0, 0, 0]] * 5, np.int8)
    assert heed(agent, np.arange(5), {"action_mask": mask}).tolist() == [1] * 5


def test_each_choice_of_several_has_its_part_of_the_mask():
    agent = AgentSpec((MASK,), MultiDiscrete((2, 3)))
    mask = np.array([[0, 1, 1, 0, 1], [1, 0, 0, 1, 0]], np.int8)
    taken = heed(agent, np.array([[0, 1], [0, 2]]), {"action_mask": mask})
    assert taken.tolist() == [[1, 2], [0, 1]]


def test_without_a_mask_actions_stay():
    agent = AgentSpec((Observation("obs", (5,), "bool"),), Discrete(5))
    actions = np.arange(5)
    assert heed(agent, actions, {"obs": np.zeros((5, 5), np.bool_)}) is actions


def test_nothing_is_allowed_where_any_choice_has_none():
    masks = np.array([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]])
    assert nothing_allowed(Discrete(5), masks).tolist() == [False, False, False, True]
    several = MultiDiscrete((2, 3))
    assert nothing_allowed(several, masks).tolist() == [False, True, True, True]


@given(st.lists(st.booleans(), min_size=5, max_size=5).filter(any), st.integers(0, 4))
def test_heeded_action_is_allowed_and_an_allowed_one_is_kept(mask, action):
    agent = AgentSpec((MASK,), Discrete(5))
    taken = int(heed(agent, np.array([action]), {"action_mask": np.array([mask])})[0])
    assert mask[taken]
    assert taken == action or not mask[action]
