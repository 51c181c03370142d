"""Whether trainers that share the blocks of a batch learn what one learns from all of them.

    python -m srl.testing.shares RANK OWN

is one of two trainers, on a host whose address is OWN. The first says where it is found; the other reads
that. Each learns the whole first, alone, and then its share with the other; what it prints last is how far
the weights of the two ways are apart.
"""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from srl.algorithms.ppo import PPO, PPOConfig
from srl.core.arrays import Arrays
from srl.core.collective import Alone, Collective
from srl.core.compute import Compute
from srl.core.env import AgentSpec, Discrete, Observation
from srl.learning.parallel import BetweenHosts, TrainerGroup
from srl.nets.on_policy import OnPolicyLearner
from srl.testing.batches import record_batches
from srl.transport.listener import address_of, listen

AGENT = AgentSpec((Observation("obs", (4,), "float32"),), Discrete(3))
_ROWS, _LANES = 8, 16
_SECONDS = 110.0
_BORDERS = (0, _LANES // 4, _LANES)
"""Of the lanes: the first of two has a quarter of them, the other the rest."""
_OPTIONS: dict[str, Any] = {
    "rollout": _ROWS,
    "batch_size": _ROWS * _LANES,
    "minibatch_size": _ROWS * _LANES // 4,
    "hidden": (16,),
    "normalise_observations": True,
    "normalise_returns": True,
    "target_kl": 0.01,
    "learning_rate": 3e-3,
    "learning_rate_schedule": "linear",
    "max_grad_norm": 0.3,
    "epochs": 6,
}


class Whole:
    """What one learner did with all of some batches: with invalid rows, statistics and a KL stop."""

    def __init__(self, learner: OnPolicyLearner[Any], updates: int) -> None:
        """Learn at least so many updates."""
        self.batches: list[Arrays] = []
        self.samples: list[float] = []
        """Rows that were learned from, by batch: where the KL stop ended it early, they are fewer."""
        self.updates: list[int] = []
        self.dealt: list[list[list[int]]] = []
        """Chunks of every minibatch."""
        deal = learner._deal

        def remember(chunks: torch.Tensor, num_parts: int) -> tuple[torch.Tensor, ...]:
            parts = deal(chunks, num_parts)
            self.dealt.append([part.tolist() for part in parts])
            return parts

        learner._deal = remember
        while learner.updates < updates:
            number = len(self.batches)
            (batch,) = record_batches(
                learner.policy,
                AGENT,
                rollout=_ROWS,
                lanes=_LANES,
                seed=number,
                reward=lambda obs, action: 3 * obs[:, 0] + action,
                end=0.4,
            )
            self.batches.append({name: array.copy() for name, array in batch.items()})
            self.samples.append(learner.learn(batch, number / 40)["train_samples"])
            self.updates.append(learner.updates)
        self.weights = learner.policy.weights()


def make_learner(ranks: Collective, **options: Any) -> PPO:
    """A learner, alone or one of two; its weights are those of all others."""
    config = PPOConfig(**(_OPTIONS | options))
    return config.make_learner(AGENT, seed=0, compute=Compute(), ranks=ranks)


def learn_share(whole: Whole, learner: OnPolicyLearner[Any], rank: int) -> None:
    """Learn one of two shares of the same batches, in the same minibatches."""
    orders = iter(whole.dealt)
    low, high = _BORDERS[rank : rank + 2]

    def deal_alike(chunks: torch.Tensor, num_parts: int) -> tuple[torch.Tensor, ...]:
        mine = [
            [
                (q // _LANES) * (high - low) + q % _LANES - low
                for q in part
                if low <= q % _LANES < high
            ]
            for part in next(orders)
        ]
        assert sorted(q for part in mine for q in part) == sorted(chunks.tolist())
        assert len(mine) == num_parts
        return tuple(torch.tensor(part, dtype=torch.int64) for part in mine)

    learner._deal = deal_alike
    for number, batch in enumerate(whole.batches):
        metrics = learner.learn(_lanes(batch, low, high), number / 40)
        assert metrics["train_samples"] == whole.samples[number]
        assert learner.updates == whole.updates[number]


def apart(some: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray]) -> float:
    """The largest difference of any weight."""
    assert some.keys() == others.keys()
    return max(float(np.abs(some[name] - others[name]).max()) for name in some)


def _lanes(batch: Mapping[str, np.ndarray], low: int, high: int) -> Arrays:
    """Some of the lanes of a batch."""
    return {
        name: np.ascontiguousarray(array[low:high] if array.ndim == 1 else array[:, low:high])
        for name, array in batch.items()
    }


def learn_together(hosts: Sequence[tuple[str, Sequence[str]]]) -> list[float]:
    """Have two trainers learn, each on a host: its address, and what runs a command there.

    Returns:
        How far each is apart from one that learned alone.
    """
    pipe, found = subprocess.PIPE, []
    started = [
        subprocess.Popen(
            [*prefix, sys.executable, "-m", "srl.testing.shares", str(rank), own],
            stdin=pipe,
            stdout=pipe,
            text=True,
        )
        for rank, (own, prefix) in enumerate(hosts)
    ]
    try:
        out = started[0].stdout
        assert out is not None
        address = out.readline()
        for rank, trainer in reversed([*enumerate(started)]):
            last = trainer.communicate(address if rank else None, timeout=_SECONDS)[0]
            assert trainer.returncode == 0, f"trainer {rank} ended with {trainer.returncode}"
            found.append(float(last))
    finally:
        for trainer in started:
            trainer.kill()
            trainer.communicate()
    return found


def main(rank: int, own: str) -> None:
    """Be one of two trainers."""
    torch.set_num_threads(1)
    with listen(own) as listener:  # as an agent does, before its trainers live
        if rank == 0:
            sys.stdout.write(f"{address_of(listener)}\n")
            sys.stdout.flush()
        whole = Whole(make_learner(Alone()), updates=40)
        address = sys.stdin.readline().strip() if rank else address_of(listener)
        point = BetweenHosts(address, own, listener=None if rank else listener.fileno())
        group = TrainerGroup(point, life=1, policy="main", rank=rank, size=2, device="cpu")
        learner = make_learner(group.learner)
        learn_share(whole, learner, rank)
        group.close()
    sys.stdout.write(f"{apart(whole.weights, learner.policy.weights())}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
