"""The lanes of one group on one route: their streams, the block they fill, what they carry over.

A block's last row holds the observation that the next block begins with. It is carried, after the
rows of a burn-in, in a block of its own, because the next block may only be granted after this one
was learned.
"""

from dataclasses import dataclass, replace

import numpy as np

from srl.core.algorithm import Records
from srl.core.block import Block, Layout
from srl.core.env import AgentSpec, ObservationRows, OutcomeRows
from srl.core.streams import Grant, InferenceClient, SampleProducer
from srl.core.telemetry import Episode
from srl.rollout.episodes import Episodes
from srl.rollout.opponents import Opponents


@dataclass(frozen=True)
class RouteEnds:
    """An actor's ends of the streams of one route, and what its agents see and do."""

    agent: AgentSpec
    agents: tuple[int, ...]
    """Indices, in the env, of the agents on this route."""
    layout: Layout
    """Of the blocks of one group."""
    producer: SampleProducer
    inference: InferenceClient
    records: Records
    scale_rewards: float = 1.0
    clip_rewards: float | None = None
    policy: str = "main"
    """Whose episodes they are."""
    seed: int = 0
    """Of the draws of a pool's policies."""


class Lanes:
    """One group's lanes on one route."""

    def __init__(self, ends: RouteEnds, lane_ids: np.ndarray) -> None:
        layout = ends.layout
        self.ends = ends
        self.grant: Grant | None = None
        self.burn_in = ends.records.burn_in
        self.carry = Block.allocate(replace(layout, rows=self.burn_in + 1))
        self.carry["lane"][:] = lane_ids
        self.episodes = Episodes(len(lane_ids), ends.policy)
        self.opponents = Opponents(ends.records.members, len(lane_ids), ends.seed)
        self._states = ends.records.state.names
        self._lead = (layout.envs, layout.lanes // layout.envs)

    @property
    def block(self) -> Block:
        """The block being filled."""
        return self._granted().block

    def carry_rows(self) -> ObservationRows:
        """Where the env writes what it shows at a reset: after a burn-in that is not valid."""
        return self.carry.observation_rows(self.ends.agent, self.burn_in)

    def start_over(self, t: int) -> None:
        """The episodes at row `t` are lost, and the block with them: a reset begins the next."""
        if self.grant is not None:
            np.copyto(self.carry["episode"], self.grant.block.episodes_at(t))
            self.give_back()
        self.carry["episode"][:] += 1
        self.carry["step"].fill(0)
        self.carry["valid"].fill(False)
        self.episodes.start_over()

    def forget(self, envs: np.ndarray, t: int) -> None:
        """What these envs (`[E]` bool) showed since their episodes began, up to row `t`, is nothing.

        They failed: rows that were sent before are what they are, these can still be taken back.
        """
        lanes = np.repeat(envs, self._lead[1])
        began = t - self.block.steps_at(t)
        lost = lanes & (np.arange(t + 1)[:, None] >= began)
        for mask in ("valid", "acting"):
            self.block[mask][: t + 1][lost] = False
        self.episodes.start_over(lanes)

    def living(self, t: int) -> np.ndarray:
        """`[E]` bool: envs with an episode under way at row `t`."""
        return self.block["valid"][t].reshape(self._lead).any(axis=1)

    def give_back(self) -> None:
        """Give the block back unsent: nobody will fill it."""
        if self.grant is not None:
            self.ends.producer.abandon(self.grant)
            self.grant = None

    def acquire(self) -> bool:
        """Get leave to fill a block and begin it with what was carried; False while there is none."""
        if self.grant is None:
            self.grant = self.ends.producer.acquire()
            if self.grant is not None:
                self.grant.block.begin_with(self.carry)
        return self.grant is not None

    def ask(self, group: int, t: int) -> None:
        """Ask for the actions of row `t`."""
        grant = self._granted()
        self.opponents.show(grant.block, t)
        if self._states:
            grant.block.record_state(self._states, t)
        self.ends.inference.post(group, grant, t)

    def actions(self, t: int) -> np.ndarray:
        """The actions of row `t`, `[E, A, *shape]`."""
        actions = self.block["action"][t]
        return actions.reshape(self._lead + actions.shape[1:])

    def outcome_rows(self, t: int) -> OutcomeRows:
        """Where the env writes what came of the actions of row `t`."""
        return self.block.outcome_rows(t)

    def observation_rows(self, t: int) -> ObservationRows:
        """Where the env writes what is seen at row `t`."""
        return self.block.observation_rows(self.ends.agent, t)

    def observe(self, t: int) -> list[Episode]:
        """Take in what came of row `t`; returns the episodes that ended.

        Their returns are raw; the rewards that stay in the block are what is learned from.
        """
        block, clip = self.block, self.ends.clip_rewards
        finished = self.episodes.observe(block, t)
        rewards = block["reward"][t]
        if self.ends.scale_rewards != 1:
            rewards *= self.ends.scale_rewards
        if clip is not None:
            np.clip(rewards, -clip, clip, out=rewards)
        return list(finished.values())

    def cut(self) -> None:
        """Send the full block; its last row, and a burn-in before it, are carried to the next."""
        grant = self._granted()
        self.carry.continue_from(grant.block)
        self.ends.producer.send(grant)
        self.grant = None

    def _granted(self) -> Grant:
        if self.grant is None:
            raise AssertionError("these lanes have no block")
        return self.grant
