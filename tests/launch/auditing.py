"""PPO that checks every row it learns from, on a toy env: what the launcher tests run.

`learn` keeps the weights of the versions it published and recomputes the log-probability of every
valid row with the version stamped on it. The largest difference is the metric
`audit_max_difference`: anything but rounding means that a row changed after it was answered.
`ranks_apart` compares the weights of all ranks after each batch: they must be the same.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from srl.algorithms.ppo import PPO, PPOConfig
from srl.core.algorithm import Arrays
from srl.core.collective import Collective
from srl.core.compute import Compute
from srl.core.env import AgentSpec
from srl.core.experiment import (
    ActorsConfig,
    EnvConfig,
    EvaluationConfig,
    Experiment,
    Route,
    StopConfig,
)
from srl.envs.toy.alone import Identity
from srl.envs.toy.base import Moment
from srl.nets.actor_critic_policy import ActorCriticPolicy
from srl.nets.chunks import Chunks

_KEPT_VERSIONS = 8
_ATTENDED_EPISODE = 5
_ATTENDED_SECONDS = 100.0


@dataclass(frozen=True, kw_only=True)
class AuditingConfig(PPOConfig):
    audits: bool = True
    """Whether rows are compared with the weights that they were answered by."""

    def make_learner(
        self, agent: AgentSpec, *, seed: int, compute: Compute, ranks: Collective
    ) -> "AuditingPPO":
        return AuditingPPO(self, agent, seed=seed, compute=compute, ranks=ranks)


class AuditingPPO(PPO):
    def __init__(
        self,
        config: AuditingConfig,
        agent: AgentSpec,
        *,
        seed: int,
        compute: Compute,
        ranks: Collective,
    ) -> None:
        super().__init__(config, agent, seed=seed, compute=compute, ranks=ranks)
        self.config: AuditingConfig = config
        self._judge = ActorCriticPolicy(config, agent, seed=0, compute=compute)
        self._published: dict[int, Arrays] = {}
        self._version = 0

    def learn(self, batch: Mapping[str, np.ndarray], progress: float) -> dict[str, float]:
        weights = {name: array.copy() for name, array in self.policy.weights().items()}
        self._published[self._version] = weights
        self._published.pop(self._version - _KEPT_VERSIONS, None)
        difference = self._audit(batch) if self.config.audits else 0.0
        self._version += 1
        metrics = super().learn(batch, progress)
        checksum = sum(float(np.abs(x).sum()) for x in self._weights())
        audits = self.ranks.gather([difference, checksum])
        checksums = [checksum for _, checksum in audits]
        return metrics | {
            "audit_max_difference": max(difference for difference, _ in audits),
            "ranks_apart": max(checksums) - min(checksums),
        }

    def _weights(self) -> list[np.ndarray]:
        return [array.astype(np.float64) for array in self.policy.weights().values()]

    def save(self) -> Arrays:
        state = super().save() | {"version": np.array(self._version)}
        for version, weights in self._published.items():
            state |= {f"published.{version}.{name}": x.copy() for name, x in weights.items()}
        return state

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        own = dict(state)
        self._version = int(own.pop("version"))
        for name in [name for name in own if name.startswith("published.")]:
            _, version, tensor = name.split(".", 2)
            self._published.setdefault(int(version), {})[tensor] = own.pop(name).copy()
        super().load(own)

    def _audit(self, batch: Mapping[str, np.ndarray]) -> float:
        judge, worst = self._judge, 0.0
        chunks = Chunks(batch, self._agent, judge.records, judge.device)
        everything = torch.arange(chunks.num_chunks)
        rows = chunks.rows(everything).numpy()

        def flat(name: str) -> np.ndarray:
            array = chunks.learned(batch[name])
            return array.reshape(-1, *array.shape[2:])[rows]

        for version in np.unique(flat("version")[flat("valid")]):
            these = (flat("version") == version) & flat("valid")
            judge.load_weights(self._published[int(version)])
            with torch.inference_mode():
                shown = chunks.read(everything)
                distribution, _, _ = judge.network(*shown, judge.records.burn_in)
                log_prob = distribution.log_prob(torch.tensor(flat("action"))).numpy()
            worst = max(worst, float(np.abs(log_prob - flat("log_prob"))[these].max()))
        return worst


def experiment() -> Experiment[AuditingConfig]:
    """Identity: 16 of 16 right answers after some 10k env steps."""
    return Experiment(
        name="auditing",
        env=EnvConfig(name="srl.envs.toy:Identity"),
        algorithm=AuditingConfig(
            rollout=16,
            batch_size=256,
            minibatch_size=128,
            epochs=4,
            learning_rate=3e-3,
            hidden=(16,),
        ),
        actors=ActorsConfig(count=1, envs=16, groups=2),
        stop=StopConfig(env_steps=16_000),
        max_staleness=1,
    )


@dataclass(frozen=True, kw_only=True)
class Attended(Identity):
    """Identity that, after its first episodes, makes a file and waits for another."""

    waits: str = ""
    file: str = ""

    def play(
        self, state: np.ndarray, action: np.ndarray, now: Moment, after: Moment
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if now.episode.max() >= _ATTENDED_EPISODE:
            Path(self.waits).touch()
            deadline = time.monotonic() + _ATTENDED_SECONDS
            while not Path(self.file).exists() and time.monotonic() < deadline:
                time.sleep(0.02)
        return super().play(state, action, now, after)


def attended() -> Experiment[AuditingConfig]:
    """The experiment, whose envs wait for a file: `--env.options` names it."""
    return replace(experiment(), name="attended", env=EnvConfig(name=f"{__file__}:Attended"))


def shared() -> Experiment[AuditingConfig]:
    """Red against blue, both by one policy."""
    return replace(
        experiment(),
        name="shared",
        env=EnvConfig(name="toy/match"),
        evaluation=EvaluationConfig(episodes=20),
    )


def separate() -> Experiment[AuditingConfig]:
    """Red against blue, each by a policy of its own: all right is 1.6 an episode for both."""
    routes = (Route(agents="red_*", policy="red"), Route(agents="blue_*", policy="blue"))
    return replace(shared(), name="separate", routes=routes)
