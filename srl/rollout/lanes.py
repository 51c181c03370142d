"""The lanes of one group on one route: their streams, the block they fill, what they carry over.

A block's last row holds the observation that the next block begins with. It is carried in a
one-row block of its own, because the next block may only be granted after this one was learned.
"""

from dataclasses import dataclass

import numpy as np

from srl.core.block import Block, Layout
from srl.core.env import AgentSpec, ObservationRows, OutcomeRows
from srl.core.streams import Grant, InferenceClient, SampleProducer
from srl.rollout.episodes import Episodes


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


class Lanes:
    """One group's lanes on one route."""

    def __init__(self, ends: RouteEnds, lane_ids: np.ndarray) -> None:
        layout = ends.layout
        self.ends = ends
        self.grant: Grant | None = None
        self.carry = Block.allocate(Layout(layout.spec, 1, layout.lanes, layout.envs))
        self.episodes = Episodes(lane_ids)
        self._shared = (*ends.agent.observation_names, "first", "valid", "acting")
        self._lead = (layout.envs, layout.lanes // layout.envs)

    @property
    def block(self) -> Block:
        """The block being filled."""
        return self._granted().block

    def carry_rows(self) -> ObservationRows:
        """Where the env writes what it shows at a reset."""
        return self.carry.observation_rows(self.ends.agent, 0)

    def acquire(self) -> bool:
        """Get leave to fill a block and begin it with the carried row; False while there is none."""
        if self.grant is None:
            self.grant = self.ends.producer.acquire()
            if self.grant is not None:
                self._copy_shared(self.carry, 0, self.grant.block, 0)
                self.episodes.write_head(self.grant.block)
        return self.grant is not None

    def ask(self, group: int, t: int) -> None:
        """Ask for the actions of row `t`."""
        self.ends.inference.post(group, self._granted(), t)

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

    def cut(self) -> None:
        """Send the full block; its last row is carried to the next."""
        grant = self._granted()
        self._copy_shared(grant.block, grant.block.layout.rows - 1, self.carry, 0)
        self.ends.producer.send(grant)
        self.grant = None

    def _granted(self) -> Grant:
        if self.grant is None:
            raise AssertionError("these lanes have no block")
        return self.grant

    def _copy_shared(self, source: Block, from_row: int, target: Block, to_row: int) -> None:
        for name in self._shared:
            np.copyto(target[name][to_row], source[name][from_row])
