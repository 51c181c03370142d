"""The evaluator: plays a fixed number of episodes a lane with given weights, and reports.

A fixed number a lane, because the first N to finish would favour short episodes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from srl.core.algorithm import Policy
from srl.core.arrays import Arrays
from srl.core.block import Block, input_names, route_layout
from srl.core.env import AgentSpec, Env
from srl.core.telemetry import Telemetry
from srl.rollout.episodes import Episodes


class _Seat:
    """The lanes of one route, in two rows that take turns: nobody wants their samples."""

    def __init__(self, agent: AgentSpec, policy: Policy, num_envs: int, num_agents: int) -> None:
        num_lanes = num_envs * num_agents
        records = replace(policy.records, chunk=1, burn_in=0)
        layout = route_layout(agent, records, rollout=1, lanes=num_lanes, envs=num_envs)
        self.agent = agent
        self.policy = policy
        self.block = Block.allocate(layout)
        self.carry = Block.allocate(replace(layout, rows=1))
        self.episodes = Episodes(num_lanes)
        self.returns: list[list[float]] = [[] for _ in range(num_lanes)]
        self.inputs = input_names(agent, records)

    def act(self) -> np.ndarray:
        """Answer row 0; its actions, `[E, A, *shape]`."""
        self.block.answer(self.policy.act_greedy(self.block.inputs(self.inputs, 0)), 0)
        actions = self.block["action"][0]
        return actions.reshape(self.block.layout.envs, -1, *actions.shape[1:])

    def advance(self) -> None:
        """Count what row 0 brought; row 1 becomes row 0."""
        for lane, episode in self.episodes.observe(self.block, 0).items():
            self.returns[lane].append(episode.agent_return)
        self.carry.continue_from(self.block)
        self.block.begin_with(self.carry)


class Evaluator:
    """Steps one env batch until every lane has played its episodes.

    reads: nothing; its policies are handed to it
    writes: `returns`
    """

    waiting = "wait_for_nothing"

    def __init__(
        self,
        name: str,
        env: Env,
        policies: Sequence[tuple[AgentSpec, Policy, int]],
        *,
        episodes_per_lane: int,
    ) -> None:
        """Play with `policies`: what the agents of each set see, their policy, and their number."""
        self.name = name
        self.telemetry = Telemetry()
        self._env = env
        self._episodes_per_lane = episodes_per_lane
        num_envs = env.spec.num_envs
        self._seats = [_Seat(agent, policy, num_envs, n) for agent, policy, n in policies]

    @property
    def is_done(self) -> bool:
        """Whether every lane has played its episodes."""
        wanted = self._episodes_per_lane
        return all(len(lane) >= wanted for seat in self._seats for lane in seat.returns)

    def returns(self) -> list[float]:
        """Raw returns of the episodes that count, over all lanes."""
        wanted = self._episodes_per_lane
        return [value for seat in self._seats for lane in seat.returns for value in lane[:wanted]]

    def open(self) -> None:
        """Begin the first episodes."""
        self._env.reset([seat.block.observation_rows(seat.agent, 0) for seat in self._seats])

    def step(self) -> bool:
        """Play one step in every env; False when all have played enough."""
        if self.is_done:
            return False
        self._env.step(
            [seat.act() for seat in self._seats],
            [seat.block.outcome_rows(0) for seat in self._seats],
            [seat.block.observation_rows(seat.agent, 1) for seat in self._seats],
        )
        for seat in self._seats:
            seat.advance()
        return True

    def pollables(self) -> Sequence[Any]:
        """Nothing to wait on."""
        return ()

    def close(self) -> None:
        """Close the env."""
        self._env.close()

    def save(self) -> Arrays:
        """Evaluations start over."""
        return {}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Evaluations start over."""
