"""The trainer: turns blocks into new versions of the weights.

Several trainers of one policy, its ranks, learn in lock-step, each on its share of every batch:

    publish -> meet, with a full batch -> learn -> publish -> meet, with a full batch -> learn -> ...

Every rank comes to every meeting exactly once: with a full batch, or to say that it stops. If all
have a batch, all learn it. If one stops, that meeting was the last, and full batches stay staged.
Rank 0 publishes; the others wait for it, so that nobody grants a version that is not there yet.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from srl.core.algorithm import Learner
from srl.core.arrays import Arrays, subset
from srl.core.collective import Alone, Collective
from srl.core.errors import StreamError, WorkerError
from srl.core.streams import ParameterPublisher
from srl.learning.finite import Tracer
from srl.learning.guard import Fault, Guard
from srl.learning.staging import Batch, Source

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
    is_faulty: bool
    """One of them has a number that is not finite: nobody learns this batch."""


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
        staging: Source,
        publisher: ParameterPublisher | None,
        *,
        total_env_steps: int | None,
        ranks: Collective | None = None,
        saves_staged: bool = True,
        guard: Guard | None = None,
    ) -> None:
        """Train `learner`; `publisher` is rank 0's, and what is staged is saved with `saves_staged`."""
        self.name = name
        self.telemetry = staging.telemetry
        """One for both: the time that batches take to be made is the trainer's."""
        self.version = 0
        self._learner = learner
        self._staging = staging
        self._saves_staged = saves_staged
        self._publisher = publisher
        self._total_env_steps = total_env_steps
        self._env_steps = 0
        self._train_samples = 0
        self._ranks = ranks or Alone()
        self._guard = guard or Guard(Tracer(staging.layout), worker=name)
        self._has_left = False
        self._is_learning = False
        """Stays True where that failed: the weights are no version, and no meeting is to come."""
        self._broken: tuple[StreamError, float] | None = None
        """Why the group broke, and when to say so."""

    def open(self) -> None:
        """Publish the first version, then let blocks come."""
        try:
            self._publish(self._learner.policy.weights())
        except StreamError as error:
            self._break(error)

    def step(self) -> bool:
        """Learn one batch, if one is full and the other ranks have one too."""
        if self._broken is not None and time.monotonic() >= self._broken[1]:
            raise self._broken[0]
        self._staging.pump()
        batch = self._staging.front()
        if batch is None or self._has_left:
            return False
        try:
            with self.telemetry.time("check"):
                fault = self._guard.before(batch.arrays)
            agreed = self._meet(batch, fault)
            if agreed is None:
                return False
            if fault is not None:
                self._report_fault(fault, batch)
            self._staging.pop()
            self._is_learning = True
            metrics, weights = self._skip() if agreed.is_faulty else self._learn(batch)
            self.version += 1
            self._publish(weights)
            self._is_learning = False
        except StreamError as error:
            self._break(error)
            return False
        self._env_steps += agreed.env_steps
        self._report(metrics, agreed)
        # of a learner that is `Prioritises`; of a batch that was skipped there are none
        told = getattr(self._learner, "priorities", None) if metrics["train_samples"] else None
        self._staging.learned(batch, self.version, told)
        return True

    def pollables(self) -> Sequence[Any]:
        """Readable when blocks arrive."""
        return self._staging.pollables()

    def close(self) -> None:
        """Leave the other ranks, and both streams."""
        if not (self._has_left or self._is_learning):
            try:
                self._meet(None)
            except StreamError as error:
                log.warning("the other ranks are gone already: %s", error)
            self._has_left = True
        self._staging.close()
        if self._publisher is not None:
            self._publisher.close()

    @property
    def counts(self) -> dict[str, int]:
        """What it has learned from, and how often."""
        return {
            "env_steps": self._env_steps,
            "train_samples": self._train_samples,
            "updates": self._learner.updates,
        }

    def save(self) -> Arrays:
        """Learner, counters and — where blocks are part of checkpoints — what is staged."""
        if self._is_learning:
            raise StreamError(
                f"{self.name} has nothing to save: the other ranks left it in the middle of a "
                "version; what goes on, goes on from the checkpoint before"
            )
        state = {f"learner.{k}": v for k, v in self._learner.save().items()}
        state["counters"] = np.array([self.version, self._env_steps, self._train_samples], np.int64)
        state["skipped"] = self._guard.save()
        staged = self._staging.save(with_blocks=self._saves_staged)
        return state | {f"staging.{k}": v for k, v in staged.items()}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `save` returned; what was staged comes back where it is saved."""
        self._learner.load(subset(state, "learner."))
        self.version, self._env_steps, self._train_samples = (int(n) for n in state["counters"])
        if "skipped" in state:  # not in checkpoints from before there was such a count
            self._guard.load(state["skipped"])
        # what rank 0 has saved of its share is not of the others
        staged = {} if self._ranks.rank else subset(state, "staging.")
        has_blocks = self._saves_staged and bool(staged)
        self._staging.load(staged, self.version, with_blocks=has_blocks)

    def follow(self, published: int) -> None:
        """Go on after the last version that was published here, by an earlier life; -1: by none.

        Versions never go back: what is published next are the weights that were loaded.
        """
        if published >= self.version:
            self.version = published + 1
            self._staging.rebase(self.version)

    def retire(self, actor: int) -> None:
        """Expect nothing more of an actor."""
        self._staging.retire(actor)

    def enlist(self, actor: int) -> None:
        """Have an actor take part that was not there before."""
        self._staging.enlist(actor)

    def _learn(self, batch: Batch) -> tuple[dict[str, float], Arrays]:
        """Learn a batch, or skip it where what comes of it is not finite; metrics and weights.

        Bad weights are not published, and not saved over good ones. Metrics and weights are the same
        on all ranks, and so is what they decide.
        """
        before = self._guard.state_of(self._learner)
        with self.telemetry.time("learn"):
            metrics = self._learner.learn(batch.arrays, self._progress())
        with self.telemetry.time("check"):
            weights = self._learner.policy.weights()
            fault = self._guard.after(metrics, weights, batch.arrays, self.version)
        if fault is None:
            self._guard.learned()
            return metrics, weights
        self._report_fault(fault, batch)
        assert before is not None
        self._learner.load(before)
        return self._skip()

    def _skip(self) -> tuple[dict[str, float], Arrays]:
        """Make a version of the weights that are there; metrics and weights."""
        return self._guard.skip(), self._learner.policy.weights()

    def _report_fault(self, fault: Fault, batch: Batch) -> None:
        """Keep the batch and say what is wrong with it; raises WorkerError where that ends the run."""
        words = self._guard.report(fault, batch.arrays, self.version)
        if self._guard.stops:
            raise WorkerError(words)
        log.warning("a batch is skipped: %s", words)

    def _meet(self, batch: Batch | None, fault: Fault | None = None) -> Agreed | None:
        """Tell the other ranks of a full batch and its fault, or (None) that this one stops.

        Returns:
            What all have together; None where one stops, so that nobody learns. Where a fault stops
            all, this was the last meeting, and who found it goes on to say so.
        """
        staleness = [] if batch is None else [self.version - n for n in batch.oldest_rows]
        mine = (
            batch is None,
            0 if batch is None else batch.env_steps,
            len(staleness),
            sum(staleness),
            max(staleness, default=0),
            fault is not None,
        )
        with self.telemetry.time("wait_for_ranks"):
            shares = self._ranks.gather(mine)
        is_stopping, env_steps, blocks, ages, oldest, is_faulty = zip(*shares, strict=True)
        is_last = any(is_faulty) and self._guard.stops
        self._has_left = any(is_stopping) or is_last
        if any(is_stopping) or (is_last and fault is None):
            return None
        return Agreed(
            int(sum(env_steps)), int(sum(blocks)), sum(ages), int(max(oldest)), any(is_faulty)
        )

    def _break(self, error: StreamError) -> None:
        """Learn no more: wait to be stopped, and only then say why."""
        log.warning("%s", error)
        self._has_left, self._broken = True, (error, time.monotonic() + _ORDERS_SECONDS)

    def _publish(self, weights: Arrays) -> None:
        mine = self.version, self._guard.skipped
        with self.telemetry.time("publish"):
            if self._publisher is not None:
                self._publisher.publish(weights, self.version)
            theirs = {(int(version), int(skipped)) for version, skipped in self._ranks.gather(mine)}
        if len(theirs) > 1:
            raise WorkerError(
                f"the ranks have learned different numbers of batches (in all, skipped): {theirs}"
            )

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
                "staleness_mean": agreed.staleness_sum / max(agreed.blocks, 1),
                "staleness_max": agreed.staleness_max,
                "skipped_batches": self._guard.skipped,
            }
        )
