"""The trainer: turns blocks into new versions of the weights."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from srl.core.algorithm import Learner
from srl.core.arrays import Arrays, subset
from srl.core.errors import WorkerError
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
        self._train_samples = 0

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
        self._check_finite(metrics)
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
        state["counters"] = np.array([self.version, self._env_steps, self._train_samples], np.int64)
        if self._thread is None:
            state |= {f"staging.{k}": v for k, v in self._staging.save().items()}
        return state

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `save` returned; what was staged comes back only without a thread."""
        self._learner.load(subset(state, "learner."))
        self.version, self._env_steps, self._train_samples = (int(n) for n in state["counters"])
        staged = subset(state, "staging.")
        if self._thread is None and staged:
            self._staging.load(staged, self.version)
        else:
            self._staging.rebase(self.version)

    def _check_finite(self, metrics: Mapping[str, float]) -> None:
        """Weights that have become NaN are not published, and not saved over good ones."""
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise WorkerError(
                    f"learning has diverged: {name} is {value} after version {self.version}; "
                    "lower --algorithm.learning-rate, or resume from a checkpoint before it"
                )

    def _publish(self) -> None:
        with self.telemetry.time("publish"):
            self._publisher.publish(self._learner.policy.weights(), self.version)

    def _progress(self) -> float:
        if not self._total_env_steps:
            return 0.0
        return min(1.0, self._env_steps / self._total_env_steps)

    def _report(self, batch: Batch, metrics: Mapping[str, float], staleness: list[int]) -> None:
        self._train_samples += int(metrics["train_samples"])
        self.telemetry.updates.append(
            {
                **metrics,
                "version": self.version,
                "updates": self._learner.updates,
                "consumed_env_steps": self._env_steps,
                "train_samples_total": self._train_samples,
                "blocks": batch.num_blocks,
                "staleness_mean": float(np.mean(staleness)),
                "staleness_max": max(staleness),
            }
        )
