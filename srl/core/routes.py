"""Routes decide which policy an agent plays by: patterns over agent names, first match wins."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from srl.core.env import AgentSpec
from srl.core.errors import ConfigError
from srl.core.experiment import Route


@dataclass(frozen=True)
class RoutedAgents:
    """The agents of one route, by index in the env; all of them see and do the same."""

    policy: str
    agents: tuple[int, ...]
    agent: AgentSpec
    frozen: tuple[str, ...] = ()
    """Where its policies come from, if they do not learn."""


def route_agents(
    routes: Sequence[Route], agents: Mapping[str, AgentSpec]
) -> tuple[RoutedAgents, ...]:
    """Send every agent along the first route that matches its name."""
    policies = [route.policy for route in routes]
    if len(set(policies)) != len(policies):
        raise ConfigError(f"each route needs a policy of its own, got {policies}")
    members: dict[str, list[int]] = {}
    for index, name in enumerate(agents):
        for route in routes:
            if fnmatchcase(name, route.agents):
                members.setdefault(route.policy, []).append(index)
                break
        else:
            patterns = [route.agents for route in routes]
            raise ConfigError(f"no route matches agent {name!r}: the patterns are {patterns}")
    specs, frozen = list(agents.values()), {route.policy: route.frozen for route in routes}
    routed = []
    for policy, indices in members.items():
        first = specs[indices[0]]
        if any(specs[i] != first for i in indices):
            raise ConfigError(
                f"the agents of policy {policy!r} do not see and do the same: give agents of "
                "different spaces different policies"
            )
        routed.append(RoutedAgents(policy, tuple(indices), first, frozen[policy]))
    return tuple(routed)
