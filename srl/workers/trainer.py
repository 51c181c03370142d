"""The trainer: turns blocks into new versions of the weights."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from srl.core.algorithm import Learner
from srl.core.arrays import Arrays, subset
from srl.core.streams import ParameterPublisher
from srl.core.telemetry import Telemetry
from srl.learning.staging import Batch, Staging, StagingThread


class Trainer:
    """One learner behind one sample stream.

    reads: blocks, staged into batches
    writes: parameters
    waits for: a full batch
    unblocked by: actors that deliver blocks
    """

    waiting = "wait_for_batch"

    def __init__(
        self,
        name: str,
        learner: Learner,
        staging: Staging,
        publisher: ParameterPublisher,
        *,
        thread: StagingThread | None,
        total_env_steps: int | None,
    ) -> None:
        """Train `learner`; with `thread` None, staging happens inside `step`."""
        self.name = name
        self.telemetry = Telemetry()
        self.version = 0
        self._learner = learner
        self._staging = staging
        self._thread = thread
        self._publisher = publisher
        self._total_env_steps = total_env_steps
        self._env_steps = 0

    def open(self) -> None:
        """Publish the first version, then let blocks come."""
        self._publish()
        if self._thread is not None:
            self._thread.start()

    def step(self) -> bool:
        """Learn one batch, if one is full."""
        if self._thread is None:
            self._staging.pump()
        batch = (self._thread or self._staging).pop()
        if batch is None:
            return False
        with self.telemetry.time("learn"):
            metrics = self._learner.learn(batch.arrays, self._progress())
        staleness = [self.version - oldest for oldest in batch.oldest_rows]
        self.version += 1
        self._env_steps += batch.env_steps
        self._publish()
        self._report(batch, metrics, staleness)
        (self._thread or self._staging).learned(batch, self.version)
        return True

    def pollables(self) -> Sequence[Any]:
        """Readable when the staging thread has filled a batch."""
        return () if self._thread is None else (self._thread.full.fd,)

    def close(self) -> None:
        """Stop staging and leave both streams."""
        (self._thread or self._staging).close()
        self._publisher.close()

    def save(self) -> Arrays:
        """Learner, counters and — where staging is not a thread — what is staged."""
        state = {f"learner.{k}": v for k, v in self._learner.save().items()}
        state["counters"] = np.array([self.version, self._env_steps], np.int64)
        if self._thread is None:
            state |= {f"staging.{k}": v for k, v in self._staging.save().items()}
        return state

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `save` returned; what was staged comes back only without a thread."""
        self._learner.load(subset(state, "learner."))
        self.version, self._env_steps = (int(n) for n in state["counters"])
        staged = subset(state, "staging.")
        if self._thread is None and staged:
            self._staging.load(staged, self.version)
        else:
            self._staging.rebase(self.version)

    def load_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Begin a fresh run from another run's weights."""
        self._learner.policy.load_weights(weights)

    def _publish(self) -> None:
        with self.telemetry.time("publish"):
            self._publisher.publish(self._learner.policy.weights(), self.version)

    def _progress(self) -> float:
        if not self._total_env_steps:
            return 0.0
        return min(1.0, self._env_steps / self._total_env_steps)

    def _report(self, batch: Batch, metrics: Mapping[str, float], staleness: list[int]) -> None:
        self.telemetry.counters["train_samples"] += int(metrics["train_samples"])
        self.telemetry.updates.append(
            {
                **metrics,
                "version": self.version,
                "updates": self._learner.updates,
                "consumed_env_steps": self._env_steps,
                "blocks": batch.num_blocks,
                "staleness_mean": float(np.mean(staleness)),
                "staleness_max": max(staleness),
            }
        )
