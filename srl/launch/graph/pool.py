"""Makes the pool of a frozen policy, and keeps what it needs in the run folder.

    pinned/POLICY/NUMBER/opponent.json          its algorithm's config, what it sees and does
                         weights.safetensors    its weights

So a run that is resumed needs nothing of the runs its opponents come from.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import safetensors
import safetensors.numpy

from srl.core.algorithm import AlgorithmConfig
from srl.core.arrays import Arrays
from srl.core.compute import Compute
from srl.core.env import AgentSpec
from srl.core.errors import CheckpointError
from srl.launch.graph.config import decode_algorithm
from srl.launch.graph.plan import Opponent
from srl.workers.pool import Pool

_NOTE, _WEIGHTS = "opponent.json", "weights.safetensors"


@dataclass(frozen=True)
class FrozenPolicy:
    """An opponent and its weights."""

    opponent: Opponent
    weights: Arrays


def make_pool(opponents: Sequence[Opponent], *, seed: int, compute: Compute) -> Pool:
    """A pool with fresh weights, one member an opponent."""
    members = []
    for number, opponent in enumerate(opponents):
        algorithm: AlgorithmConfig = decode_algorithm(opponent.algorithm)
        agent = AgentSpec.from_dict(opponent.agent)
        members.append(algorithm.make_policy(agent, seed=seed + number, compute=compute))
    return Pool(members)


def pin(folder: Path, frozen: Mapping[str, Sequence[FrozenPolicy]]) -> None:
    """Copy frozen policies into a run folder."""
    for policy, members in frozen.items():
        for number, member in enumerate(members):
            place = folder / "pinned" / policy / str(number)
            place.mkdir(parents=True)
            (place / _NOTE).write_bytes(msgspec.json.encode(member.opponent))
            arrays = {k: np.asarray(v, order="C") for k, v in member.weights.items()}
            (place / _WEIGHTS).write_bytes(safetensors.numpy.save(arrays))


def read_pinned(folder: Path, policy: str) -> list[FrozenPolicy]:
    """The frozen policies of a run folder, in order; raises CheckpointError where one is damaged."""
    places = sorted((folder / "pinned" / policy).glob("[0-9]*"), key=lambda place: int(place.name))
    found = []
    for place in places:
        try:
            opponent = msgspec.json.decode((place / _NOTE).read_bytes(), type=Opponent)
            weights = safetensors.numpy.load((place / _WEIGHTS).read_bytes())
        except (OSError, msgspec.MsgspecError, safetensors.SafetensorError) as error:
            raise CheckpointError(f"{place} holds no frozen policy: {error}") from error
        found.append(FrozenPolicy(opponent, weights))
    if not found:
        raise CheckpointError(f"{folder / 'pinned' / policy} holds no frozen policy")
    return found


def pinned_weights(folder: Path, policy: str) -> Arrays:
    """The weights of a pool, by the names it gives them."""
    members = enumerate(read_pinned(folder, policy))
    return {f"{i}.{k}": v for i, member in members for k, v in member.weights.items()}
