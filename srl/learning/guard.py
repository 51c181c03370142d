"""What a trainer does about numbers that are not finite: stop, or skip the batch and count it.

A skipped batch leaves nothing behind in the learner, and still makes a version, with the weights of
the one before: so gate, ledger, ranks and checkpoints go on as if it had been learned.
`docs/design/0009-not-finite.md` says why.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from srl.core.algorithm import Learner
from srl.core.arrays import Arrays
from srl.core.experiment import OnNan
from srl.learning.checkpoint import list_checkpoints
from srl.learning.finite import Place, Tracer, bad_metric, bad_weights

MOST_IN_A_ROW = 10
"""Batches that are skipped one after the other before the run stops anyway."""
MOST_KEPT = 10
"""Files of batches in a run folder: the first ones say most, and a disk is not endless."""


@dataclass(frozen=True)
class Fault:
    """What is not finite: a recorded number, or what came of learning."""

    what: str
    """`recorded`, `metric` or `weights`."""
    name: str
    """Of the field, the metric or the tensor."""
    words: str
    place: Place | None
    """Of a recorded number, where it came from. Of what came of learning, a number that the learner
    should not have read and that is not finite, if there is one."""


class Guard:
    """Looks at every batch before it is learned, and at what came of it."""

    def __init__(
        self, tracer: Tracer, *, on_nan: OnNan = "stop", worker: str, folder: Path | None = None
    ) -> None:
        """Guard a trainer called `worker`, of a run in `folder`."""
        self.skipped = 0
        """Batches skipped in all."""
        self._in_a_row = 0
        self._tracer = tracer
        self._on_nan: OnNan = on_nan
        self._worker = worker
        self._folder = folder

    @property
    def stops(self) -> bool:
        """Whether the next fault ends the run; alike on every rank."""
        return self._on_nan == "stop" or self._in_a_row >= MOST_IN_A_ROW

    def before(self, batch: Mapping[str, Any]) -> Fault | None:
        """What is wrong with a batch that is to be learned."""
        place = self._tracer.find(batch)
        return None if place is None else Fault("recorded", place.field, f"{place}", place)

    def after(
        self, metrics: Mapping[str, float], weights: Arrays, batch: Mapping[str, Any], version: int
    ) -> Fault | None:
        """What is wrong with what came of learning a batch at `version`."""
        metric, tensor = bad_metric(metrics), bad_weights(weights)
        if metric is None and tensor is None:
            return None
        is_metric = metric is not None
        found = f"{metric} is {metrics[metric]}" if is_metric else f"{tensor} is not finite"
        words = f"learning has diverged: {found} after version {version}"
        place = self._tracer.search(batch, counted=False)
        if place is not None:
            words += f"; in a row that should not matter, {place}"
        return Fault("metric" if is_metric else "weights", metric or tensor or "", words, place)

    def learned(self) -> None:
        """A batch was learned, and nothing was wrong with it."""
        self._in_a_row = 0

    def skip(self) -> dict[str, float]:
        """Count a batch that leaves nothing behind; its metrics."""
        self.skipped += 1
        self._in_a_row += 1
        return {"train_samples": 0.0}

    def state_of(self, learner: Learner) -> Arrays | None:
        """What to put the learner back to; None where a fault ends the run."""
        return None if self.stops else learner.save()

    def report(self, fault: Fault, batch: Mapping[str, Any], version: int) -> str:
        """Keep the batch; what happened, where the batch is, and what to do, for a person."""
        words = fault.words
        if self.stops and self._in_a_row:
            words += f"; {self._in_a_row} batches were skipped right before this one"
        return f"{words}. {self._keep(fault, batch, version)} {self._advice(fault)}"

    def save(self) -> np.ndarray:
        """Its counters."""
        return np.array([self.skipped, self._in_a_row], np.int64)

    def load(self, state: np.ndarray) -> None:
        """Take over what `save` returned."""
        self.skipped, self._in_a_row = (int(n) for n in state)

    def _advice(self, fault: Fault) -> str:
        go_on = f"srl resume {self._folder or 'RUN'}"
        if fault.place is not None and fault.place.kind in ("observation", "reward"):
            advice = (
                "Mend the env (the file has what that lane saw and did before; srl check-env "
                f"{self._tracer.origin.env} looks for more)"
            )
            if self._on_nan == "stop":
                advice += ", or go on without such batches by --on-nan skip"
        else:
            go_on += " --algorithm.learning-rate ..."
            advice = "Lower the learning rate, or scale what is observed and rewarded"
        return f"{advice}: {go_on} goes on from {self._newest()}"

    def _newest(self) -> str:
        found = list_checkpoints(self._folder / "checkpoints") if self._folder else []
        return f"checkpoint {found[-1].name}" if found else "a checkpoint, once there is one"

    def _keep(self, fault: Fault, batch: Mapping[str, Any], version: int) -> str:
        """Write the batch to `errors/`; where it is, in words."""
        if self._folder is None:
            return "The batch is not kept."
        folder = self._folder / "errors"
        if len(list(folder.glob("nan-*.safetensors"))) >= MOST_KEPT:
            return f"The batch is not kept: {MOST_KEPT} others are in {folder}."
        path = folder / f"nan-{self._worker}-{version:08d}.safetensors"
        try:
            write_batch(path, batch, self._header(fault, version))
        except (OSError, safetensors.SafetensorError) as error:
            return f"The batch could not be kept in {path}: {error}."
        return f"The batch is kept in {path}."

    def _header(self, fault: Fault, version: int) -> dict[str, Any]:
        place = None if fault.place is None else asdict(fault.place)
        if place is not None:
            place["value"] = f"{place['value']}"  # JSON has no NaN
        return {
            "worker": self._worker,
            "version": version,
            "what": fault.what,
            "name": fault.name,
            "words": fault.words,
            "env": self._tracer.origin.env,
            "place": place,
        }


def write_batch(path: Path, batch: Mapping[str, Any], header: Mapping[str, Any]) -> None:
    """Write a batch, whole or not at all, with a JSON header called `fault`."""
    arrays = {
        name: np.asarray(x if isinstance(x, np.ndarray) else x.cpu(), order="C")
        for name, x in batch.items()
    }
    aside = path.with_name(f".{path.name}.writing")
    try:
        safetensors.numpy.save_file(arrays, aside, metadata={"fault": json.dumps(header)})
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def read_batch(path: Path) -> tuple[Arrays, dict[str, Any]]:
    """The batch and the header that `write_batch` wrote."""
    with safetensors.safe_open(path, framework="numpy") as file:
        header = json.loads((file.metadata() or {})["fault"])
        return {name: file.get_tensor(name) for name in file.keys()}, header  # noqa: SIM118
