"""A worker is a node of the dataflow: open, step, close around the streams it is handed.

It starts no process and no thread, never sleeps, and never looks
up another worker. `workers/run.py` is the only loop around it, `launch/inline.py` the other
caller: both step it until it says that there was nothing to do.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from srl.core.arrays import Arrays
from srl.core.telemetry import Telemetry


class Worker(Protocol):
    """Called from one thread: `load` where there is a state, `open`, steps, `close`."""

    name: str
    telemetry: Telemetry
    waiting: str
    """What it waits for after `step` returned False: the name under which that time counts."""

    def open(self) -> None:
        """Get ready to step; raises SrlError where that is impossible."""
        ...

    def step(self) -> bool:
        """Do what can be done without waiting; False where there was nothing."""
        ...

    def pollables(self) -> Sequence[Any]:
        """What to wait on after `step` returned False."""
        ...

    def close(self) -> None:
        """Leave every stream and free everything; may be called twice."""
        ...

    def save(self) -> Arrays:
        """State from which `load` continues, between two steps."""
        ...

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what `save` returned; called once, before `open`."""
        ...
