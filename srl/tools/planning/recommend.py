"""Which setting would be fastest on a cluster, by the model.

First few settings that are far apart: numbers of actors grow fourfold until more of them bring nothing.
Then those around the best one, until none of them is better.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from srl.core.errors import ConfigError
from srl.core.experiment import Experiment
from srl.launch.graph.plan import Plan
from srl.tools.planning.cluster import Cluster, on_cluster
from srl.tools.planning.model import Costs, Prediction, predict

_GROUPS = (1, 2, 3, 4, 6, 8)
_FIRST_GROUPS = (1, 4)
_ACTORS_A_POLICY = (8, 64)
_ENOUGH = 0.98
"""Of the fastest: who reaches this is as fast, and the one that takes fewest cores is preferred."""
_GAIN = 1.005
"""By so much more must bring, or it brings nothing."""
_PATIENCE = 2
"""Numbers of actors that bring nothing before no more are tried."""
_OTHER = 0.7
"""Others that are shown have at most this part of the rate of the one before."""
_TRAINERS = 4
"""The most on CPUs; on GPUs as many as there are."""
_SHOWN = 5
"""The recommended one, and others."""
_ROUNDS = 12
_TOLD = 100
"""Settings between two lines about how far it is."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Setting:
    """What is looked for."""

    ranks: int
    inference: str
    policies: int
    actors: int
    groups: int
    batch: int


@dataclass(frozen=True)
class Candidate:
    """A setting, and what would come of it."""

    options: dict[str, str]
    """To be typed behind those of the experiment."""
    cores: int
    """Of all workers."""
    prediction: Prediction
    is_present: bool = False

    @property
    def rate(self) -> float:
        """Env steps a second."""
        return self.prediction.env_steps_per_second


def is_as_fast(candidate: Candidate, other: Candidate) -> bool:
    """Whether nobody would notice the difference."""
    return candidate.rate >= _ENOUGH * other.rate


def recommend(
    experiment: Experiment[Any], cluster: Cluster, one: Plan, costs: Costs, say: Say
) -> list[Candidate]:
    """The recommended setting, then others; empty where none fits. The present one is among them.

    The recommended one takes fewest cores of all that are about as fast as the fastest, and is the one most
    like the present setting of those.
    """
    search = _Search(experiment, cluster, one, costs, say)
    search.far_apart()
    search.around_the_best()
    say(f"compared {len(search.found)} settings")
    return search.shown()


def launcher_of(experiment: Experiment[Any], cluster: Cluster) -> str:
    """The one that a setting needs: a cluster has Ray, and several workers have a process each."""
    if not cluster.is_this_host:
        return "ray"
    return "local" if experiment.launcher == "inline" else experiment.launcher


class _Search:
    """What was tried, and what came of it."""

    def __init__(
        self, experiment: Experiment[Any], cluster: Cluster, one: Plan, costs: Costs, say: Say
    ) -> None:
        self.experiment, self.cluster, self.one = experiment, cluster, one
        self.costs, self.say = costs, say
        self.found: dict[Setting, Candidate | None] = {}
        self.present = Setting(
            experiment.num_ranks,
            experiment.inference_substrate,
            experiment.policies.count,
            experiment.actors.count,
            experiment.actors.groups,
            experiment.algorithm.batch_size,
        )
        on_gpu = experiment.trainers.device != "cpu"
        self.most_ranks = max(self.present.ranks, int(cluster.gpus) if on_gpu else _TRAINERS)
        # a host takes more workers than it has cores, but that is not recommended
        self.most_cores = max(cluster.cores, _cores(experiment, one))

    def far_apart(self) -> None:
        """The present setting, and numbers that grow until they bring nothing."""
        self._try(self.present)
        best = 0.0
        for ranks in _doubling(self.most_ranks):
            rate = self._with_trainers(ranks)
            if best and rate < _GAIN * best:
                break
            best = max(best, rate)

    def around_the_best(self) -> None:
        """Settings that differ in one number from the best, which they may become."""
        for _ in range(_ROUNDS):
            best = self._best()
            if best is None:
                return
            for setting in self._neighbours(best):
                self._try(setting)
            if self._best() == best:
                return

    def shown(self) -> list[Candidate]:
        """The best, the best with the batch as it is, others that take fewer cores, and the present one."""
        fit = {setting: c for setting, c in self.found.items() if c is not None}
        best = self._best()
        if best is None:
            return []
        shown = [fit[best]]
        unchanged = self._best(lambda setting: setting.batch == self.present.batch)
        for other in sorted(fit.values(), key=lambda c: (-c.rate, c.cores, len(c.options))):
            if other.cores < shown[-1].cores and other.rate < _OTHER * shown[-1].rate:
                shown.append(other)
        shown = shown[:_SHOWN]
        shown += [fit[s] for s in (unchanged, self.present) if s in fit and fit[s] not in shown]
        return [shown[0], *sorted(shown[1:], key=lambda c: -c.rate)]

    def _best(self, suits: Callable[[Setting], bool] = lambda _: True) -> Setting | None:
        """Of those that suit: as fast as the fastest, with fewest cores, most like the present one."""
        fit = {s: c for s, c in self.found.items() if c is not None and suits(s)}
        if not fit:
            return None
        least = _ENOUGH * max(c.rate for c in fit.values())
        good = [setting for setting, c in fit.items() if c.rate >= least]
        return min(good, key=lambda s: (fit[s].cores, *self._distance(s), -fit[s].rate))

    def _distance(self, setting: Setting) -> tuple[int, ...]:
        """From the present setting: what changes learning first."""
        is_other = setting.batch != self.present.batch
        has_others = setting.groups != self.present.groups
        candidate = self.found[setting]
        return is_other, has_others, len(candidate.options) if candidate else 0

    def _with_trainers(self, ranks: int) -> float:
        """Try settings with so many trainers; returns the highest rate."""
        groups = sorted({*_FIRST_GROUPS, self.present.groups})
        walks = [
            ("shm", n, each, keeps)
            for n, each, keeps in itertools.product(groups, _ACTORS_A_POLICY, (True, False))
        ]
        if self.experiment.policies.device == "cpu":
            walks += [("inline", self.present.groups, 0, keeps) for keeps in (True, False)]
        return max(self._walk(ranks, *walk) for walk in walks)

    def _walk(self, ranks: int, inference: str, groups: int, each: int, keeps: bool) -> float:
        """More and more actors, until more bring nothing; returns the highest rate.

        Args:
            ranks: trainers.
            inference: where actions are computed.
            groups: of an actor.
            each: actors a policy worker; 0: there is none.
            keeps: whether the batch stays as it is, or grows so that all groups can work.
        """
        best, in_vain = 0.0, 0
        for actors in self._numbers(ranks):
            policies = max(1, actors // each) if each else 1
            batch = self._batch(ranks, 0 if keeps else actors * groups)
            rate = self._try(Setting(ranks, inference, policies, actors, groups, batch))
            in_vain = 0 if rate > _GAIN * best else in_vain + 1
            best = max(best, rate)
            if in_vain == _PATIENCE:
                break
        return best

    def _numbers(self, ranks: int) -> list[int]:
        """Of actors: as many for every trainer, four times as many each time, up to all cores."""
        most = int(self.cluster.cores) // _threads(self.experiment, "actors") - ranks
        found = [ranks]
        while found[-1] * 4 <= most:
            found.append(found[-1] * 4)
        return sorted({*found, _multiple(most, ranks), _multiple(most * 3 // 4, ranks)})

    def _neighbours(self, setting: Setting) -> Iterator[Setting]:
        ranks, actors, policies = setting.ranks, setting.actors, setting.policies
        keeps = setting.batch == self._batch(ranks, 0)

        def changed(**facts: Any) -> Setting:
            new = replace(setting, **facts)
            groups = 0 if keeps else new.actors * new.groups
            return replace(new, batch=self._batch(new.ranks, groups))

        for part in (1 / 2, 3 / 4, 7 / 8, 5 / 4, 3 / 2, 2):
            yield changed(actors=_multiple(round(actors * part), ranks))
        yield changed(actors=_multiple(actors - ranks, ranks))
        for groups in _beside(sorted({*_GROUPS, setting.groups}), setting.groups):
            yield changed(groups=groups)
        if setting.inference != "inline":
            for number in (policies // 2, policies * 3 // 4, policies - 1, policies * 2):
                yield changed(policies=max(1, number))
        for other in (ranks // 2, ranks * 2):
            if 0 < other <= self.most_ranks:
                yield changed(ranks=other, actors=_multiple(actors, other))
        for groups in (0, actors * setting.groups):
            yield replace(setting, batch=self._batch(ranks, groups))
        yield replace(setting, groups=self.present.groups)

    def _batch(self, ranks: int, groups: int) -> int:
        """Rows of a batch: as asked for, or as many as so many groups need to work at a time."""
        route = self.one.learning[0]
        rows = route.lanes * route.rollout
        ahead = self.experiment.max_staleness + 1
        blocks = max(self.present.batch // rows, -(-groups // ahead), ranks)
        return -(-blocks // ranks) * ranks * rows

    def _try(self, setting: Setting) -> float:
        """Env steps a second of a setting; 0 where it does not fit."""
        if setting not in self.found:
            if not len(self.found) % _TOLD:
                so_far = f", {len(self.found)} so far" if self.found else ""
                self.say(f"comparing settings{so_far} ...")
            self.found[setting] = self._candidate(setting)
        candidate = self.found[setting]
        return candidate.rate if candidate is not None else 0.0

    def _candidate(self, setting: Setting) -> Candidate | None:
        is_present = setting == self.present
        try:
            changed = self._with(setting)
            cores = _cores(changed, self.one)
            if cores > self.most_cores and setting.actors > 1:
                return None
            prediction = predict(on_cluster(changed, self.cluster, self.one), self.costs)
        except ConfigError:
            return None
        before, after = _facts(self.experiment), _facts(changed)
        options = {name: value for name, value in after.items() if value != before[name]}
        return Candidate(options, cores, prediction, is_present)

    def _with(self, setting: Setting) -> Experiment[Any]:
        """The experiment in a setting; raises ConfigError where it cannot be."""
        old, route, present = self.experiment, self.one.learning[0], self.present
        is_auto = (setting.inference, setting.policies) == (present.inference, present.policies)
        return replace(
            old,
            launcher=launcher_of(old, self.cluster),
            inference=old.inference if is_auto else setting.inference,
            trainers=replace(old.trainers, count=setting.ranks),
            policies=replace(old.policies, count=setting.policies),
            actors=replace(
                old.actors,
                count=setting.actors,
                groups=setting.groups,
                envs=route.envs * setting.groups,
            ),
            algorithm=replace(old.algorithm, batch_size=setting.batch),
        )


def _facts(experiment: Experiment[Any]) -> dict[str, str]:
    """Option to its value, of all that a setting may change."""
    facts = {
        "launcher": experiment.launcher,
        "trainers.count": experiment.trainers.count,
        "inference": experiment.inference,
        "policies.count": experiment.policies.count,
        "actors.count": experiment.actors.count,
        "actors.groups": experiment.actors.groups,
        "actors.envs": experiment.actors.envs,
        "algorithm.batch-size": experiment.algorithm.batch_size,
    }
    return {name: str(value) for name, value in facts.items()}


def _cores(experiment: Experiment[Any], one: Plan) -> int:
    """Of all workers: each has those of its threads."""
    cores = experiment.actors.count * _threads(experiment, "actors")
    cores += len(one.learning) * experiment.num_ranks * _threads(experiment, "trainers")
    if experiment.inference_substrate != "inline":
        each = _threads(experiment, "policies")
        cores += len(one.routes) * experiment.policies.count * each
    return cores + experiment.evaluation.count * experiment.threads


def _threads(experiment: Experiment[Any], section: str) -> int:
    return getattr(experiment, section).threads or experiment.threads


def _multiple(count: int, ranks: int) -> int:
    """So many actors, or fewer, that every trainer has as many; at least one each."""
    return max(1, count // ranks) * ranks


def _beside(numbers: Sequence[int], number: int) -> list[int]:
    """The numbers before and after one."""
    at = numbers.index(number)
    return [*numbers[max(0, at - 1) : at], *numbers[at + 1 : at + 2]]


def _doubling(most: int) -> list[int]:
    """1, 2, 4 and so on, and the most."""
    found = [1]
    while found[-1] * 2 <= most:
        found.append(found[-1] * 2)
    return sorted({*found, max(1, most)})
