"""Toy envs: tasks of a few lines that tell, in seconds, whether a system learns.

`alone` has those of agents that do not meet, `together` those in which what others do matters.
"""

from srl.core.env import EnvRequest
from srl.core.errors import ConfigError
from srl.core.names import nearest
from srl.envs.toy.alone import Chain, Counter, Identity, Masked, Pixels, Recall, Target
from srl.envs.toy.base import Game, ToyEnv
from srl.envs.toy.together import Match, Mortal, Turns

__all__ = [
    "Chain",
    "Counter",
    "Identity",
    "Masked",
    "Match",
    "Mortal",
    "Pixels",
    "Recall",
    "Target",
    "ToyFamily",
    "Turns",
]

TOYS: dict[str, type[Game]] = {
    "identity": Identity,
    "pixels": Pixels,
    "chain": Chain,
    "target": Target,
    "counter": Counter,
    "recall": Recall,
    "masked": Masked,
    "match": Match,
    "turns": Turns,
    "mortal": Mortal,
}


class ToyFamily:
    """Builds batches of toys by name: `toy/chain` is `Chain`."""

    @staticmethod
    def make_batch(request: EnvRequest) -> ToyEnv:
        """Build `request.name`, one of `TOYS`; its options are the fields of the toy."""
        if request.name not in TOYS:
            hint = nearest(request.name, list(TOYS)) or f": there are {', '.join(TOYS)}"
            raise ConfigError(f"there is no toy env {request.name!r}{hint}")
        return TOYS[request.name].make_batch(request)
