"""A toy of which a policy is shown the newest pictures: what Atari shows, and restored exactly."""

from dataclasses import dataclass

import numpy as np

from srl.core.env import AgentSpec, Discrete, Observation
from srl.envs.toy.alone import Pixels
from srl.envs.toy.base import Moment


@dataclass(frozen=True, kw_only=True)
class Stacked(Pixels):
    """Name the symbol of the picture; the `stack` newest pictures are shown together."""

    length: int = 7
    stack: int = 4

    @property
    def agent(self) -> AgentSpec:
        picture = Observation("obs", (self.size, self.size), "uint8", stack=self.stack)
        return AgentSpec((picture,), Discrete(self.choices))

    def show(self, state: np.ndarray, now: Moment) -> dict[str, np.ndarray]:
        return {"obs": super().show(state, now)["obs"][..., 0]}
