"""What the actors of a host report, gathered by its agent: the controller does not hear each word of each.

An actor reports several times a second. Its counters are totals, so of two reports the later says all but the
episodes of the first. The agent keeps one report an actor, and hands all of them over together, so often that
the controller hears of so many actors a second as it has time for, however many there are.
"""

import time

import msgspec

from srl.transport.control import Message, Report, Reports

_REPORTS_A_SECOND = 4000.0
"""Of all actors of a run: a tenth of a core of the controller, at most."""


class Gathering:
    """The reports of a host's actors that the controller has not heard yet."""

    def __init__(self, num_actors: int) -> None:
        """Of a run that has so many, on all of its hosts."""
        self._seconds = num_actors / _REPORTS_A_SECOND
        self._next = 0.0
        self._kept: dict[str, Report] = {}

    def take(self, worker: str, kind: str, message: Message) -> list[Message]:
        """What is to be passed on at once: nothing of an actor's report, all else in its order."""
        if kind == "actor" and isinstance(message, Report):
            self._keep(message)
            return []
        before = self._kept.pop(worker, None)
        return [message] if before is None else [Reports([before]), message]

    def due(self) -> list[Message]:
        """What is to be passed on because it is time to."""
        return self.rest() if self._kept and time.monotonic() >= self._next else []

    def rest(self) -> list[Message]:
        """Whatever is kept."""
        self._next = time.monotonic() + self._seconds
        kept, self._kept = self._kept, {}
        return [Reports([*kept.values()])] if kept else []

    def _keep(self, report: Report) -> None:
        before = self._kept.get(report.worker)
        if before is not None and (before.episodes or before.updates):
            report = msgspec.structs.replace(
                report,
                episodes=before.episodes + report.episodes,
                updates=before.updates + report.updates,
            )
        self._kept[report.worker] = report
