"""The lives of a run's workers, for its controller: who has died, and who starts again."""

import msgspec

from srl.core.experiment import Experiment
from srl.launch.graph.plan import Plan
from srl.launch.supervision import Supervisor, Verdict
from srl.transport.control import (
    Enlist,
    Evaluated,
    Failure,
    Message,
    Preempted,
    Ready,
    Report,
    Restart,
    Restarted,
    Retire,
    Saved,
)

_PROGRESS_COUNTERS = ("env_steps", "requests", "draws")
"""Of an actor, a policy worker and a buffer: one of them says that a life of it got somewhere."""


class Lives:
    """Hears what workers and agents say, and decides by a Supervisor."""

    def __init__(self, experiment: Experiment, plan: Plan) -> None:
        self._plan = plan
        self._kinds = {worker.name: worker.kind for worker in plan.workers}
        self._late = set(plan.late)
        """Actors that have not come yet, and need not."""
        least = _least(experiment)
        self._supervisor = Supervisor(plan, experiment.restarts, least, self._late)
        self._enlisted: list[int] = []
        """Those of them that have."""
        self._retired: list[int] = []
        """Actors that were given up."""
        self._untold: list[Retire | Enlist] = []
        self.preempted: str | None = None
        """Who was told to go by the host's owner."""
        self.rolled_back = {route.policy: 0 for route in plan.learning}
        """Policy to blocks whose learning was lost with its trainers."""
        self._kept = dict(self.rolled_back)
        """Policy to blocks, of this start of the run, whose learning is in a checkpoint or lost."""
        self._learned = set[str]()
        """Trainers that learned something in the life they have."""

    @property
    def restarts(self) -> int:
        """Lives that were begun again."""
        return self._supervisor.restarts

    def hear(self, message: Message) -> None:
        """Take in a message, if it is about lives."""
        if isinstance(message, Report):
            if message.updates and message.incarnation == self._supervisor.incarnation(
                message.worker
            ):
                self._learned.add(message.worker)
            if any(message.counters.get(name) for name in _PROGRESS_COUNTERS):
                self._supervisor.progressed(message.worker, message.incarnation)
        elif isinstance(message, Ready):
            self._on_ready(message)
        elif isinstance(message, Evaluated):
            self._progressed(message.worker)
        elif isinstance(message, Preempted):
            self.preempted = message.worker
        elif isinstance(message, Restarted):
            self._on_restarted(message)

    def saved(self, saved: Saved) -> None:
        """A checkpoint is whole, of which this was the last part missing."""
        for policy, ledger in saved.ledgers.items():
            self._kept[policy] = ledger["consumed"]
        for worker in self._learned:  # and it will not be lost any more
            self._progressed(worker)

    def died(self, failure: Failure, now: float) -> Verdict:
        """What follows from a death: the run ends, or it goes on, perhaps without that worker."""
        if failure.worker not in self._kinds:
            return Verdict(reason=failure.message)
        if failure.is_homeless and self._hungry(without=failure.worker) is not None:
            failure = msgspec.structs.replace(failure, is_homeless=False)  # it is waited for
        verdict = self._supervisor.died(failure, now)
        for worker in verdict.given_up:
            if self._kinds[worker] == "actor":
                self._retired.append(self._plan.worker(worker).index)
                self._untold.append(Retire(self._retired[-1]))
        if verdict.given_up and (hungry := self._hungry()) is not None:
            words = f"{failure.message}; with it the last actor is gone that sends to {hungry}"
            return Verdict(reason=f"{words}: more --actors.count a trainer or buffer help")
        return verdict

    def _hungry(self, without: str = "") -> str | None:
        """Who takes blocks and has no actor left that sends it any, or would have none `without` one."""
        actors = (w for w in self._plan.of_kind("actor") if w.name not in self._late)
        left = {w.index for w in actors if w.name != without} - set(self._retired)
        for route in self._plan.learning:
            takers = self._plan.takers(route.policy)
            for place, taker in enumerate(takers):
                if not any(actor % len(takers) == place for actor in left):
                    return taker.name
        return None

    def is_writer(self, worker: str) -> bool:
        """Whether a checkpoint needs this worker."""
        return self._kinds.get(worker, "trainer") in ("trainer", "buffer")

    def orders(self, state: str | None, now: float) -> list[Restart | Retire | Enlist]:
        """What node agents are to do now; trainers go on from the checkpoint `state`."""
        orders: list[Restart | Retire | Enlist] = list(self._untold)
        self._untold.clear()
        for restart in self._supervisor.due(now):
            for worker in restart.workers:
                self._learned.discard(worker)
            orders.append(Restart(list(restart.workers), restart.incarnation, state))
        return orders

    def _progressed(self, worker: str) -> None:
        self._supervisor.progressed(worker, self._supervisor.incarnation(worker))

    def _on_ready(self, ready: Ready) -> None:
        if ready.incarnation > 1 and self._kinds[ready.worker] in ("trainer", "buffer"):
            self._untold += [Enlist(actor) for actor in self._enlisted]
            self._untold += [Retire(actor) for actor in self._retired]  # a new life knows of none
        if ready.worker in self._late:
            self._late.remove(ready.worker)
            self._supervisor.joined(ready.worker)
            self._enlisted.append(self._plan.worker(ready.worker).index)
            self._untold.append(Enlist(self._enlisted[-1]))

    def _on_restarted(self, restarted: Restarted) -> None:
        """Of dead trainers, what they learned after the checkpoint is lost."""
        for policy in {
            self._plan.worker(name).policy
            for name in restarted.workers
            if self._kinds[name] == "trainer"
        }:
            if self._plan.of_kind("buffer"):  # they still have what the trainers had drawn
                continue
            consumed = restarted.ledgers[policy]["consumed"]
            self.rolled_back[policy] += consumed - self._kept[policy]
            self._kept[policy] = consumed


def _least(experiment: Experiment) -> dict[str, int]:
    """Kind to how many of it a run needs, where that is not all."""
    least = {"actor": experiment.actors.min, "policy": experiment.policies.min, "evaluator": 0}
    return {kind: number for kind, number in least.items() if number is not None}
