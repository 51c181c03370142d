"""A trainer's side of checkpoints: it copies its state between two batches, and a thread writes it."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

from srl.core.errors import SrlError, StreamError
from srl.core.worker import Worker
from srl.transport.control import Channel, Copied, Part, Report, Save, Saved, SaveFailed

log = logging.getLogger(__name__)

Ledgers = dict[str, dict[str, int]]
"""Policy to what has become of its blocks."""

_REPORT_SECONDS = 0.25


class Saver:
    """Writes the parts of one worker, one at a time.

    What the worker waits for, the copy and at its end the disk, counts as `checkpoint` in its time
    split.
    """

    def __init__(
        self,
        worker: Worker,
        channel: Channel,
        *,
        ledgers: Callable[[], Ledgers],
        report: Callable[[], Report],
    ) -> None:
        self._worker = worker
        self._channel = channel
        self._ledgers = ledgers
        self._report = report
        self._thread: threading.Thread | None = None
        self._answer: Saved | SaveFailed | None = None

    def save(self, order: Save) -> None:
        """Copy the worker's state of now and have it written; waits for one being written.

        A worker that was left by those it works with has no state: it is about to be ended, and the
        order with it.
        """
        self.finish()
        worker, ledgers = self._worker, self._ledgers()
        with worker.telemetry.time("checkpoint"):
            try:
                saved = worker.save()
            except StreamError as error:  # whoever broke the stream is to be named, not this worker
                log.warning("%s", error)
                return
            # Learners may hand out their own arrays, and learn on in them.
            state = {name: np.array(array, order="C") for name, array in saved.items()}
        version = int(worker.version)  # pyright: ignore[reportAttributeAccessIssue] - a trainer's
        counts = dict.fromkeys(ledgers, getattr(worker, "counts", {}))
        self._channel.send(self._report())  # what the manifest will say of this moment
        self._channel.send(Copied(worker.name, order.serial))

        def write() -> None:
            part = _write(order, worker.name, state)
            if isinstance(part, str):
                self._answer = SaveFailed(worker.name, order.serial, part)
            else:
                versions = dict.fromkeys(ledgers, version)
                self._answer = Saved(worker.name, order.serial, part, versions, ledgers, counts)

        self._thread = threading.Thread(target=write, name="checkpoint", daemon=True)
        self._thread.start()

    def report(self) -> None:
        """Say so where a part has been written."""
        if self._thread is not None and not self._thread.is_alive():
            self.finish()

    def finish(self) -> None:
        """Wait for what is being written, and say how that ended."""
        if self._thread is None:
            return
        with self._worker.telemetry.time("checkpoint"):
            self._thread.join(_REPORT_SECONDS)
        while self._thread.is_alive():  # a slow disk: let others know that this one lives
            self._channel.send(self._report())
            with self._worker.telemetry.time("checkpoint"):
                self._thread.join(_REPORT_SECONDS)
        self._thread = None
        if self._answer is not None:
            self._channel.send(self._answer)
            self._answer = None


def _write(order: Save, worker: str, state: dict[str, np.ndarray]) -> Part | str:
    """The part on disk, or why there is none."""
    from srl.learning.checkpoint import write_part

    try:
        return write_part(Path(order.folder), worker, {worker: state})
    except (OSError, SrlError) as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - a thread has nobody to raise to
        return f"{type(error).__name__}: {error}"
