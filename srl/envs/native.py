"""What families of native vector envs share: one call steps all envs, and resets those that ended.

Where they can begin single episodes with a seed (`Reseeds`: ale-py, at 88 ms against 4.5 ms),
`env.reseed` decides whether they do, and episodes are then brought back; others are seeded once, at
their start (EnvPool ignores the seed of a reset). Axes: `E` envs.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from functools import partial
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from srl.core.env import (
    AgentSpec,
    EnvRequest,
    EnvSpec,
    Observation,
    ObservationRows,
    OutcomeRows,
    agent_sets,
    episode_seed,
)
from srl.core.errors import ConfigError, EnvError
from srl.core.names import nearest
from srl.envs.episodes import RESTORES_NOT, EpisodeLog

logger = logging.getLogger(__name__)

Options = TypeVar("Options")


@dataclass(frozen=True, slots=True)
class Stepped:
    """What all envs gave for one step; every array `[E, ...]`."""

    obs: Mapping[str, np.ndarray]
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    over: np.ndarray
    """bool: the episode is over and the next step resets; not so where only a life was lost."""


class Vector(Protocol):
    """A native vector env with Gymnasium's NEXT_STEP autoreset."""

    def start(self, seeds: np.ndarray) -> Mapping[str, np.ndarray]:
        """Begin episodes in all envs, each seeded; what is seen."""
        ...

    def step(self, actions: np.ndarray) -> Stepped:
        """Apply the actions `[E, *shape]`; an env whose episode is over resets instead."""
        ...

    def close(self) -> None:
        """Free everything."""
        ...


@runtime_checkable
class Reseeds(Protocol):
    """A native vector env that can begin the episodes of some of its envs with seeds."""

    def restart(self, which: np.ndarray, seeds: np.ndarray) -> Mapping[str, np.ndarray]:
        """Begin episodes in the envs `which` `[E]` bool with `seeds`, one for each of these.

        Returns what is seen, `[E, ...]`; what other envs show there means nothing.
        """
        ...


class NativeEnv:
    """A batch of one native vector env; implements `srl.core.env.Env`."""

    def __init__(
        self, vector: Vector, agent: AgentSpec, request: EnvRequest, *, max_steps: int | None = None
    ) -> None:
        agent_sets(request, 1)
        if request.wrappers:
            raise ConfigError(
                f"env {request.name!r} is stepped natively and takes no wrappers: "
                f"{request.wrappers}"
            )
        self._pictures = [
            o.name for o in agent.observations if o.dtype == "uint8" and len(o.shape) in (2, 3)
        ]
        if request.render and not self._pictures:
            raise ConfigError(f"env {request.name!r} draws no pictures, and shows none either")
        self._shown: Mapping[str, np.ndarray] = {}
        self._vector: Vector | None = vector
        self._request = request
        self._floats = [o.name for o in agent.observations if np.dtype(o.dtype).kind == "f"]
        self._log: EpisodeLog | None = None
        """Of envs whose episodes begin with seeds."""
        if isinstance(vector, Reseeds) and request.reseed == "episode":
            self._log = EpisodeLog(request, {"actions": agent.action.field})
        self.spec = EnvSpec(
            name=request.name,
            num_envs=request.num_envs,
            agents={"agent_0": agent},
            restores=RESTORES_NOT if self._log is None else self._log.restores,
            max_steps=max_steps,
        )
        self._seed = np.full(request.num_envs, -1)
        self._episode = np.full(request.num_envs, request.first_episode - 1)
        self._over = np.ones(request.num_envs, np.bool_)
        self._started = False
        self._last: np.ndarray | None = None

    def reset(self, out: Sequence[ObservationRows]) -> None:
        """Begin an episode in every env and write its first observations."""
        request = self._request
        self._episode += 1
        envs = range(request.num_envs)
        seeds = [episode_seed(request.seed, request.first_env + e, self._episode[e]) for e in envs]
        self._seed = np.array(seeds)
        self._last = None
        try:
            obs = self._open().start(self._seed)
        except Exception as error:  # native code may raise anything
            raise self._error(0, f"failed in reset: {error!r}") from error
        self._show(out[0], obs)
        self._over = np.zeros_like(self._over)
        self._started = True
        if self._log is not None:
            self._log.clear()
            for e in envs:
                self._log.begin(e)
            self._log.ended = self._over.tolist()
        out[0].first.fill(True)
        out[0].valid.fill(True)
        out[0].acting.fill(True)

    def step(
        self,
        actions: Sequence[np.ndarray],
        outcome: Sequence[OutcomeRows],
        out: Sequence[ObservationRows],
    ) -> None:
        """Apply `actions[0]` `[E, 1, *shape]`; an env that ended is reset instead."""
        rows, ends = out[0], outcome[0]
        if not self._started:
            for array in (ends.reward, ends.terminated, ends.truncated):
                array.fill(0)
            self.reset(out)
            return
        self._last = actions[0][:, 0]
        begun = self._over
        try:
            stepped = self._open().step(self._last)
            obs = stepped.obs if self._log is None else self._logged(self._log, begun, stepped)
        except Exception as error:  # native code may raise anything
            raise self._error(0, f"failed in step: {error!r}") from error
        self._episode += begun
        ends.reward[:, 0] = np.where(begun, 0, stepped.reward)
        ends.terminated[:, 0] = stepped.terminated & ~begun
        ends.truncated[:, 0] = stepped.truncated & ~begun
        rows.first[:, 0] = begun
        rows.valid[:, 0] = ~stepped.over
        rows.acting.fill(True)
        self._over = stepped.over
        self._show(rows, obs)
        if not np.isfinite(ends.reward).all():
            e = int(np.isfinite(ends.reward[:, 0]).argmin())
            raise self._error(e, f"gave the reward {ends.reward[e, 0]}")

    def render(self, env: int) -> np.ndarray:
        """The newest picture that is seen, grey, four times as large."""
        seen = self._shown[self._pictures[0]][env]
        grey = seen if seen.ndim == 2 else seen[-1]
        return np.repeat(grey.repeat(4, axis=0).repeat(4, axis=1)[..., None], 3, axis=2)

    def save(self) -> dict[str, np.ndarray]:
        """The number of each env's episode `[E]`; of those with seeds, what plays them again."""
        return {"episode": self._episode.copy()} if self._log is None else self._log.save()

    def load(self, state: Mapping[str, np.ndarray], seen: Sequence[ObservationRows]) -> bool:
        """Replay episodes that have seeds; else, and where that fails, every env begins a new one."""
        if state["episode"].shape == self._episode.shape:
            self._episode = state["episode"].copy()
        self._started = False
        if self._log is None or "seed" not in state:
            return False
        shown: dict[str, np.ndarray] = {}
        if self._log.load(state, partial(self._play_again, shown)) and all(
            np.array_equal(shown[name].reshape(row.shape), row) for name, row in seen[0].obs.items()
        ):
            self._seed, self._over = state["seed"].copy(), state["ended"].copy()
            self._shown, self._last, self._started = shown, None, True
            return True
        self._log.give_up()
        return False

    def close(self) -> None:
        """Free everything; may be called twice."""
        vector, self._vector = self._vector, None
        if vector is not None:
            vector.close()

    def _open(self) -> Vector:
        if self._vector is None:
            raise EnvError(f"env {self.spec.name!r} was closed")
        return self._vector

    def _logged(
        self, log: EpisodeLog, begun: np.ndarray, stepped: Stepped
    ) -> Mapping[str, np.ndarray]:
        """Log the step, and begin the episodes of the envs `begun` again, with seeds; what is seen."""
        log.remember([np.array(self._last)])
        log.ended = stepped.over.tolist()
        if not begun.any():
            return stepped.obs
        for e in np.flatnonzero(begun).tolist():
            self._seed[e] = log.begin(e)
        return self._restarted(begun, self._seed, stepped.obs)

    def _restarted(
        self, which: np.ndarray, seeds: np.ndarray, obs: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Begin episodes in some envs, with their `seeds` of all `[E]`; `obs`, with what these show."""
        vector = self._open()
        if not isinstance(vector, Reseeds):
            raise AssertionError(f"{self.spec.name} cannot begin episodes with seeds")
        shown = {name: values.copy() for name, values in obs.items()}
        for name, values in vector.restart(which, seeds[which]).items():
            shown[name][which] = values[which]
        return shown

    def _play_again(
        self, shown: dict[str, np.ndarray], seeds: list[int], actions: list[list[np.ndarray]]
    ) -> list[list[bool]]:
        """Play all episodes so that they end together: shorter ones begin later."""
        vector, by_seed = self._open(), np.array(seeds)
        steps = np.array([len(taken) for taken in actions[0]])
        longest = int(steps.max())
        begins = longest - steps
        ends = [[False] for _ in seeds]
        moves = np.zeros((longest, len(seeds), *actions[0][0].shape[1:]), actions[0][0].dtype)
        for e, taken in enumerate(actions[0]):
            moves[begins[e] :, e] = taken
        obs = vector.start(by_seed)
        for t in range(longest):
            stepped = vector.step(moves[t])
            obs = stepped.obs
            for e in np.flatnonzero(begins <= t).tolist():
                ends[e].append(bool(stepped.over[e]))
            if (begins == t + 1).any():
                obs = self._restarted(begins == t + 1, by_seed, obs)
        shown.update(obs)
        return ends

    def _show(self, rows: ObservationRows, obs: Mapping[str, np.ndarray]) -> None:
        self._shown = obs
        for name, values in obs.items():
            row = rows.obs[name]
            np.copyto(row[:, 0], values.reshape(row[:, 0].shape), casting="same_kind")
        for name in self._floats:
            row = rows.obs[name][:, 0]
            if not np.isfinite(row).all():
                e = int(np.isfinite(row).reshape(len(row), -1).all(1).argmin())
                what = f"showed {name!r} with a value that is not finite: {row[e]}"
                raise self._error(e, what)

    def _error(self, e: int, what: str) -> EnvError:
        last = "none" if self._last is None else self._last[e]
        return EnvError(
            f"env {self.spec.name!r} {what}; it is env {self._request.first_env + e} of the run "
            f"(lane {e} of its batch), seed {self._seed[e]} at its start, episode "
            f"{self._episode[e]}, last action {last}"
        )


def stacked_picture(name: str, stack: int, size: tuple[int, ...]) -> Observation:
    """A grey picture of which a policy is shown the `stack` newest, `[stack, *size]`.

    The env writes one picture `size` a row; without a stack that is one channel, `[1, *size]`.
    """
    return Observation(name, size if stack > 1 else (1, *size), "uint8", stack=stack)


def read_options(kind: Callable[..., Options], request: EnvRequest) -> Options:
    """The request's options as the dataclass `kind`; refuses those it lacks, or of another type."""
    known: dict[str, Field[Any]] = {entry.name: entry for entry in fields(kind)}  # pyright: ignore[reportArgumentType]
    for name, value in request.options.items():
        if name not in known:
            hint = nearest(name, list(known)) or f": it has {', '.join(known)}"
            raise ConfigError(f"env {request.name!r} has no option {name!r}{hint}")
        default = known[name].default
        if default is not MISSING and type(value) is not type(default):
            numbers = isinstance(default, float) and type(value) is int
            if not numbers:
                raise ConfigError(
                    f"env {request.name!r}: {name} is {value!r}, must be a {type(default).__name__}"
                )
    return kind(**request.options)
