"""The trainer: turns blocks into new versions of the weights.

Several trainers of one policy, its ranks, learn in lock-step, each on its share of every batch:

    publish -> meet, with a full batch -> learn -> publish -> meet, with a full batch -> learn -> ...

Every rank comes to every meeting exactly once: with a full batch, or to say that it stops. If all
have a batch, all learn it. If one stops, that meeting was the last, and full batches stay staged.
Rank 0 publishes; the others wait for it, so that nobody grants a version that is not there yet.
"""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from srl.core.algorithm import Learner
from srl.core.arrays import Arrays, subset
from srl.core.collective import Alone, Collective
from srl.core.errors import StreamError, WorkerError
from srl.core.streams import ParameterPublisher
from srl.core.telemetry import Telemetry
from srl.learning.staging import Batch, Staging, StagingThread

log = logging.getLogger(__name__)

_ORDERS_SECONDS = 5.0
"""How long a rank whose group broke waits to be stopped before it says so itself: whoever broke it
is the one to be named."""


class Agreed(NamedTuple):
    """What the ranks tell each other of their shares of a batch, added up."""

    env_steps: int
    blocks: int
    staleness_sum: float
    staleness_max: int


class Trainer:
    """One learner behind its share of a sample stream.

    reads: blocks, staged into batches
    writes: parameters (rank 0)
    waits for: a full batch; the other ranks' full batches
    unblocked by: actors that deliver blocks; a rank that stops
    """

    waiting = "wait_for_batch"

    def __init__(
        self,
        name: str,
        learner: Learner,
        staging: Staging,
        publisher: ParameterPublisher | None,
        *,
        thread: StagingThread | None,
        total_env_steps: int | None,
        ranks: Collective | None = None,
        saves_staged: bool = True,
    ) -> None:
        """Train `learner`; with `thread` None, staging happens inside `step`.

        `publisher` is rank 0's. What is staged is saved with `saves_staged`, where there is no thread.
        """
        self.name = name
        self.telemetry = Telemetry()
        self.version = 0
        self._learner = learner
        self._staging = staging
        self._thread = thread
        self._saves_staged = saves_staged and thread is None
        self._publisher = publisher
        self._total_env_steps = total_env_steps
        self._env_steps = 0
        self._train_samples = 0
        self._ranks = ranks or Alone()
        self._has_left = False
        self._is_learning = False
        """Stays True where that failed: the weights are no version, and no meeting is to come."""
        self._broken: tuple[StreamError, float] | None = None
        """Why the group broke, and when to say so."""

    def open(self) -> None:
        """Publish the first version, then let blocks come."""
        try:
            self._publish()
        except StreamError as error:
            self._break(error)
            return
        if self._thread is not None:
            self._thread.start()

    def step(self) -> bool:
        """Learn one batch, if one is full and the other ranks have one too."""
        if self._broken is not None and time.monotonic() >= self._broken[1]:
            raise self._broken[0]
        staging = self._thread or self._staging
        if self._thread is None:
            self._staging.pump()
        batch = staging.front()
        if batch is None or self._has_left:
            return False
        try:
            agreed = self._meet(batch)
            if agreed is None:
                return False
            staging.pop()
            self._is_learning = True
            with self.telemetry.time("learn"):
                metrics = self._learner.learn(batch.arrays, self._progress())
            self._check_finite(metrics)
            self.version += 1
            self._publish()
            self._is_learning = False
        except StreamError as error:
            self._break(error)
            return False
        self._env_steps += agreed.env_steps
        self._report(metrics, agreed)
        staging.learned(batch, self.version)
        return True

    def pollables(self) -> Sequence[Any]:
        """Readable when the staging thread has filled a batch; without one, when blocks arrive."""
        return self._staging.pollables() if self._thread is None else (self._thread.full.fd,)

    def close(self) -> None:
        """Leave the other ranks, stop staging and leave both streams."""
        if not (self._has_left or self._is_learning):
            try:
                self._meet(None)
            except StreamError as error:
                log.warning("the other ranks are gone already: %s", error)
            self._has_left = True
        (self._thread or self._staging).close()
        if self._publisher is not None:
            self._publisher.close()

    def save(self) -> Arrays:
        """Learner, counters and — where blocks are part of checkpoints — what is staged."""
        if self._is_learning:
            raise WorkerError(
                f"{self.name} has nothing to save: the other ranks left it in the middle of a "
                "version; resume goes on from the checkpoint before"
            )
        state = {f"learner.{k}": v for k, v in self._learner.save().items()}
        state["counters"] = np.array([self.version, self._env_steps, self._train_samples], np.int64)
        if self._saves_staged:
            state |= {f"staging.{k}": v for k, v in self._staging.save().items()}
        return state

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `save` returned; what was staged comes back where it is saved."""
        self._learner.load(subset(state, "learner."))
        self.version, self._env_steps, self._train_samples = (int(n) for n in state["counters"])
        staged = subset(state, "staging.")
        if self._saves_staged and staged:
            self._staging.load(staged, self.version)
        else:
            self._staging.rebase(self.version)

    def follow(self, published: int) -> None:
        """Go on after the last version that was published here, by an earlier life; -1: by none.

        Versions never go back: what is published next are the weights that were loaded.
        """
        if published >= self.version:
            self.version = published + 1
            self._staging.rebase(self.version)

    def retire(self, actor: int) -> None:
        """Expect nothing more of an actor."""
        (self._thread or self._staging).retire(actor)

    def _check_finite(self, metrics: Mapping[str, float]) -> None:
        """Weights that have become NaN are not published, and not saved over good ones."""
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise WorkerError(
                    f"learning has diverged: {name} is {value} after version {self.version}; "
                    "lower --algorithm.learning-rate, or resume from a checkpoint before it"
                )

    def _meet(self, batch: Batch | None) -> Agreed | None:
        """Tell the other ranks of a full batch, or (None) that this one stops.

        Returns:
            What all have together; None where one stops, so that nobody learns.
        """
        staleness = [] if batch is None else [self.version - n for n in batch.oldest_rows]
        mine = (
            batch is None,
            0 if batch is None else batch.env_steps,
            len(staleness),
            sum(staleness),
            max(staleness, default=0),
        )
        with self.telemetry.time("wait_for_ranks"):
            shares = self._ranks.gather(mine)
        is_stopping, env_steps, blocks, staleness_sum, staleness_max = zip(*shares, strict=True)
        if any(is_stopping):
            self._has_left = True
            return None
        return Agreed(
            int(sum(env_steps)), int(sum(blocks)), sum(staleness_sum), int(max(staleness_max))
        )

    def _break(self, error: StreamError) -> None:
        """Learn no more: wait to be stopped, and only then say why."""
        log.warning("%s", error)
        self._has_left, self._broken = True, (error, time.monotonic() + _ORDERS_SECONDS)

    def _publish(self) -> None:
        with self.telemetry.time("publish"):
            if self._publisher is not None:
                self._publisher.publish(self._learner.policy.weights(), self.version)
            versions = {version for (version,) in self._ranks.gather((self.version,))}
        if len(versions) > 1:
            raise WorkerError(f"the ranks have learned different numbers of batches: {versions}")

    def _progress(self) -> float:
        if not self._total_env_steps:
            return 0.0
        return min(1.0, self._env_steps / self._total_env_steps)

    def _report(self, metrics: Mapping[str, float], agreed: Agreed) -> None:
        """Rank 0 speaks for all."""
        self._train_samples += int(metrics["train_samples"])
        if self._ranks.rank:
            return
        self.telemetry.updates.append(
            {
                **metrics,
                "version": self.version,
                "updates": self._learner.updates,
                "consumed_env_steps": self._env_steps,
                "train_samples_total": self._train_samples,
                "blocks": agreed.blocks,
                "staleness_mean": agreed.staleness_sum / agreed.blocks,
                "staleness_max": agreed.staleness_max,
            }
        )
