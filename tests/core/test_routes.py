import pytest

from srl.core.env import AgentSpec, Discrete, Observation
from srl.core.errors import ConfigError
from srl.core.experiment import Route
from srl.core.routes import route_agents

SMALL = AgentSpec((Observation("obs", (2,), "float32"),), Discrete(2))
LARGE = AgentSpec((Observation("obs", (5,), "float32"),), Discrete(3))


def test_route_agents_sends_each_agent_along_the_first_match():
    agents = {"red_0": SMALL, "blue_0": SMALL, "red_1": SMALL}
    routes = (Route(agents="red_*", policy="red"), Route(agents="*", policy="rest"))
    routed = route_agents(routes, agents)
    assert [(r.policy, r.agents) for r in routed] == [("red", (0, 2)), ("rest", (1,))]


def test_route_agents_without_a_match_names_the_agent():
    with pytest.raises(ConfigError, match="no route matches agent 'blue'"):
        route_agents((Route(agents="red"),), {"red": SMALL, "blue": SMALL})


def test_route_agents_of_different_spaces_need_different_policies():
    with pytest.raises(ConfigError, match="do not see and do the same"):
        route_agents((Route(),), {"a": SMALL, "b": LARGE})


def test_route_agents_refuses_one_policy_on_two_routes():
    with pytest.raises(ConfigError, match="policy of its own"):
        route_agents((Route(agents="a"), Route(agents="*")), {"a": SMALL, "b": SMALL})


def test_agent_spec_survives_its_plain_form():
    from srl.core.env import Box, MultiDiscrete

    for action in (Discrete(3), MultiDiscrete((2, 3)), Box((2,), (-1.0, -1.0), (1.0, 1.0))):
        agent = AgentSpec((Observation("obs.a", (2, 3), "uint8", (4,) * 6),), action)
        assert AgentSpec.from_dict(agent.to_dict()) == agent
