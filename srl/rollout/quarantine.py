"""What becomes of envs that fail: rebuilt, counted, told, and parked where they keep failing."""

import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from srl.core.arrays import Arrays
from srl.core.env import Env, ObservationRows, Quarantines
from srl.core.errors import EnvError
from srl.core.fault import EnvFault
from srl.core.repro import EnvOrigin, Repro
from srl.core.telemetry import Note, Telemetry

log = logging.getLogger(__name__)

MAX_NOTES = 20
"""Failures of a worker that are told and kept, each with a repro file; later ones are counted."""


@dataclass(frozen=True)
class Recovery:
    """How the envs of an actor are built again, and how often."""

    origin: Callable[[int, int], EnvOrigin]
    """Of the envs of a group that were rebuilt so often: each time with other seeds."""
    make: Callable[[EnvOrigin], Env]
    """Build a batch of envs."""


def rebuilt_seed(seed: int, rebuilds: int) -> int:
    """Seed of a batch that was rebuilt so often: with its first one it would fail again."""
    return int(np.random.SeedSequence((seed, rebuilds)).generate_state(1, np.uint32)[0] >> 1)


class Quarantine:
    """The failures of the envs of one group. Axes: `E` envs."""

    def __init__(self, recovery: Recovery, telemetry: Telemetry, group: int, num_envs: int) -> None:
        self.rebuilds = 0
        """How often the whole batch was built again."""
        self.parked = np.zeros(num_envs, np.bool_)
        """`[E]`: envs that are not played any more."""
        self._recovery = recovery
        self._telemetry = telemetry
        self._group = group
        self._failed: list[list[int]] = [[] for _ in range(num_envs)]
        """Numbers of the episodes in which each env failed, of its last ones."""

    @property
    def origin(self) -> EnvOrigin:
        """How the batch of now was built."""
        return self._recovery.origin(self._group, self.rebuilds)

    def remake(self) -> Env:
        """The batch, as it was last built; raises what its construction raises."""
        return self._recovery.make(self.origin)

    def take(self, env: Env, faults: Sequence[EnvFault], error: BaseException) -> list[int]:
        """Count and tell the failures of single envs; returns those that are parked now."""
        parked = [e for f in faults if (e := f.env) is not None and self._count(e, f.episode)]
        self._telemetry.counters["env_rebuilds"] += len(faults) - len(parked)
        for fault in faults:
            self._tell(env, fault, error, is_parked=fault.env in parked)
        self._park(parked)
        return parked

    def take_batch(
        self, env: Env, fault: EnvFault, error: BaseException, episodes: np.ndarray
    ) -> bool:
        """Count and tell the failure of the whole batch, in these `episodes` `[E]`.

        Returns whether it is parked: only when each of its envs has failed too often.
        """
        often = [self._count(e, int(episode)) for e, episode in enumerate(episodes)]
        self._telemetry.counters["env_rebuilds"] += not all(often)
        self._tell(env, fault, error, is_parked=all(often))
        if all(often):
            self._park(range(len(often)))
        else:
            self.rebuilds += 1
        return all(often)

    def save(self) -> Arrays:
        """Everything, copied; empty where nothing has failed."""
        if not (self.rebuilds or any(self._failed)):
            return {}
        failed = [(e, episode) for e, of_env in enumerate(self._failed) for episode in of_env]
        return {
            "rebuilds": np.array(self.rebuilds, np.int64),
            "parked": self.parked.copy(),
            "failed": np.array(failed, np.int64).reshape(-1, 2),
        }

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `save` returned."""
        if state:
            self.rebuilds = int(state["rebuilds"])
            np.copyto(self.parked, state["parked"])
            for e, episode in state["failed"].tolist():
                self._failed[e].append(episode)

    def _count(self, e: int, episode: int) -> bool:
        """Count a failure of env `e`; whether it has failed too often in its last episodes."""
        config = self.origin.config
        lately = [n for n in self._failed[e] if n > episode - config.failure_window]
        self._failed[e] = [*lately, episode]
        return len(self._failed[e]) > config.max_failures

    def _park(self, envs: Sequence[int]) -> None:
        for e in envs:
            self.parked[e] = True
        self._telemetry.counters["envs_parked"] += len(envs)

    def _tell(self, env: Env, fault: EnvFault, error: BaseException, *, is_parked: bool) -> None:
        counters = self._telemetry.counters
        counters["env_failures"] += 1
        number = counters["env_failures"]
        if number > MAX_NOTES and not is_parked:
            return
        repro = Repro.of(fault, self.origin, env.spec)
        config = self.origin.config
        done = (
            f"it failed more than {config.max_failures} times in its last "
            f"{config.failure_window} episodes and is parked: its rows are not valid from now on"
            if is_parked
            else "it is rebuilt, and its unfinished episode is not learned from"
        )
        last = "; further failures here are only counted" if number == MAX_NOTES else ""
        self._telemetry.notes.append(
            Note(
                f"{fault.message}; {done} (srl repro errors/{repro.name}){last}",
                fault.traceback or "".join(traceback.format_exception(error)),
                ((repro.name, repro.to_json()),),
            )
        )


class Plays(Protocol):
    """Who plays one batch of envs, and goes on where some of them fail (`recover`)."""

    env: Env
    quarantine: Quarantine | None
    """Of its envs; without one, what they raise is raised."""
    last_error: BaseException | None
    """What an env raised last."""

    def forget(self, envs: np.ndarray, t: int) -> None:
        """Nothing came of row `t` in these envs, `[E]` bool: their episodes under way are lost."""
        ...

    def park(self, envs: Sequence[int]) -> None:
        """Play these envs no more."""
        ...

    def take_env(self, env: Env, row: int) -> None:
        """Go on with another batch, which shows its first observations at `row`."""
        ...

    def episodes_at(self, t: int) -> np.ndarray:
        """`[E]`: number of the episode of each env at row `t`."""
        ...

    def batch_fault(self, what: str, kind: str, t: int) -> EnvFault:
        """What is known of a failure of the whole batch."""
        ...


def repro_of(player: Plays, fault: EnvFault) -> Repro | None:
    """What a file needs to show a fault again; None where it is not known how envs are built."""
    if player.quarantine is None:
        return None
    return Repro.of(fault, player.quarantine.origin, player.env.spec)


def recover(player: Plays, error: BaseException, t: int, out: Sequence[ObservationRows]) -> None:
    """Envs failed when row `t` (-1: none, in a reset) was acted on; `out` is the row after it.

    Where the batch is sound but for some envs, these are blank already and begin anew by
    themselves. Else it is built again, and shows the first observations of new episodes.
    """
    found: BaseException | None = error
    while found is not None:
        quarantine = player.quarantine
        if quarantine is None:
            raise found
        player.last_error = found
        faults = found.faults if isinstance(found, EnvError) else ()
        if faults and isinstance(player.env, Quarantines):
            failed = {fault.env for fault in faults}
            envs = range(player.env.spec.num_envs)
            player.forget(np.array([e in failed for e in envs]), t)
            player.park(quarantine.take(player.env, faults, found))
            return
        found = _rebuild(player, quarantine, found, t, out)


def _rebuild(
    player: Plays,
    quarantine: Quarantine,
    error: BaseException,
    t: int,
    out: Sequence[ObservationRows],
) -> BaseException | None:
    """Build the batch again and reset it into `out`, or park it; what it raised, if it did."""
    num_envs = player.env.spec.num_envs
    told = str(error) if isinstance(error, EnvError) else repr(error)
    what = f"failed in {'reset' if t < 0 else 'step'}: {told}"
    fault = player.batch_fault(what, type(error).__name__, t)
    episodes = player.episodes_at(t)
    player.forget(np.ones(num_envs, np.bool_), t)
    if quarantine.take_batch(player.env, fault, error, episodes):
        player.park(range(num_envs))
        return None
    try:
        replace_env(player, quarantine.remake(), t + 1)
        player.env.reset(out)
    except (Exception, SystemExit) as again:  # noqa: BLE001 - user code may raise anything
        return again
    return None


def replace_env(player: Plays, env: Env, row: int) -> None:
    """Close the batch of now and go on with another, which shows its first observations at `row`."""
    try:
        player.env.close()
    except Exception:  # it failed before: nothing more is expected of it
        log.warning("%s failed to close", player.env.spec.name, exc_info=True)
    player.take_env(env, row)
