"""What families of native vector envs share: one call steps all envs, and resets those that ended.

They are seeded once, at their start, because a seeded reset is slow (Atari: 88 ms against 4.5 ms)
or ignored (EnvPool). Axes: `E` envs.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, Protocol, TypeVar

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
from srl.envs.episodes import RESTORES_NOT

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
        self.spec = EnvSpec(
            name=request.name,
            num_envs=request.num_envs,
            agents={"agent_0": agent},
            restores=RESTORES_NOT,
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
        self._over.fill(False)
        self._started = True
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
        try:
            stepped = self._open().step(self._last)
        except Exception as error:  # native code may raise anything
            raise self._error(0, f"failed in step: {error!r}") from error
        begun = self._over
        self._episode += begun
        ends.reward[:, 0] = np.where(begun, 0, stepped.reward)
        ends.terminated[:, 0] = stepped.terminated & ~begun
        ends.truncated[:, 0] = stepped.truncated & ~begun
        rows.first[:, 0] = begun
        rows.valid[:, 0] = ~stepped.over
        rows.acting.fill(True)
        self._over = stepped.over
        self._show(rows, stepped.obs)
        if not np.isfinite(ends.reward).all():
            e = int(np.isfinite(ends.reward[:, 0]).argmin())
            raise self._error(e, f"gave the reward {ends.reward[e, 0]}")

    def render(self, env: int) -> np.ndarray:
        """The newest picture that is seen, grey, four times as large."""
        seen = self._shown[self._pictures[0]][env]
        grey = seen if seen.ndim == 2 else seen[-1]
        return np.repeat(grey.repeat(4, axis=0).repeat(4, axis=1)[..., None], 3, axis=2)

    def save(self) -> dict[str, np.ndarray]:
        """The number of each env's episode `[E]`: what comes next begins new ones."""
        return {"episode": self._episode.copy()}

    def load(self, state: Mapping[str, np.ndarray], seen: Sequence[ObservationRows]) -> bool:
        """Always False: episodes go on counting, and every env begins a new one."""
        if state["episode"].shape == self._episode.shape:
            self._episode = state["episode"].copy()
        self._started = False
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
