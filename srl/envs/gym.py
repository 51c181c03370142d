"""Gymnasium: any registered id, or the user's own `gymnasium.Env`, stepped in this process.

Each observation is written once, from the env's hands into the caller's row. Observations keep
their dtype, except that float64 becomes float32 (what networks read) and Discrete becomes int64.
Values are counted from 0 in rows; a space's `start` is added and removed here.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from srl.core.env import (
    ActionSpace,
    AgentSpec,
    Box,
    Discrete,
    EnvRequest,
    EnvSpec,
    MultiDiscrete,
    Observation,
    ObservationRows,
    OutcomeRows,
    agent_sets,
    episode_seed,
)
from srl.core.errors import ConfigError, EnvError
from srl.core.names import load_object, nearest

logger = logging.getLogger(__name__)

RESTORES = "every episode, by its seed at reset and its actions since, replayed and compared"
RESTORES_NOT = "episodes are not restored: envs are seeded at start only, and begin new ones"


class GymFamily:
    """Builds batches of Gymnasium envs."""

    @staticmethod
    def make_batch(request: EnvRequest) -> "GymEnv":
        """Build `request.name`, an id known to Gymnasium: `CartPole-v1`, `ALE/Pong-v5`."""
        if request.name.startswith("ALE/"):
            _register_atari()
        return GymEnv(partial(_make_registered, request), request)

    @staticmethod
    def wrap(make: Callable[..., gymnasium.Env], request: EnvRequest) -> "GymEnv":
        """Build the user's env: `make` is its class, or a function, called with the options."""
        return GymEnv(partial(_make_own, make, request), request)


class GymEnv:
    """`E` Gymnasium environments of one agent each; implements `srl.core.env.Env`."""

    def __init__(self, make: Callable[[], gymnasium.Env], request: EnvRequest) -> None:
        agent_sets(request, 1)
        wrappers = [load_object(name) for name in request.wrappers]
        self._envs = [_wrapped(make(), wrappers) for _ in range(request.num_envs)]
        for env in self._envs:
            if (env.observation_space, env.action_space) != (
                self._envs[0].observation_space,
                self._envs[0].action_space,
            ):
                raise ConfigError(f"the envs {request.name!r} of one batch differ in their spaces")
        self._request = request
        self._leaves = tuple(_leaves_of("obs", (), self._envs[0].observation_space))
        action, self._to_env = _action_of(self._envs[0].action_space)
        agent = AgentSpec(tuple(leaf.observation for leaf in self._leaves), action)
        self._replays = request.reseed == "episode"
        self.spec = EnvSpec(
            name=request.name,
            num_envs=request.num_envs,
            agents={"agent_0": agent},
            restores=RESTORES if self._replays else RESTORES_NOT,
        )
        self._action = action.field
        self._seed = [-1] * request.num_envs
        self._episode = [-1] * request.num_envs
        self._ended = [True] * request.num_envs
        # Actions of the last steps, each [E, *shape]; env e's episode began at log[began[e]].
        self._log: list[np.ndarray] = []
        self._began = [0] * request.num_envs
        self._trim_at = 1024

    def reset(self, out: Sequence[ObservationRows]) -> None:
        """Begin an episode in every env and write its first observations."""
        rows = self._rows_of(out[0])
        self._log.clear()
        e = 0
        try:
            for e in range(self.spec.num_envs):
                self._begin(e, rows)
        except (Exception, SystemExit) as error:  # user code may raise anything
            raise self._error(e, f"failed in reset: {_told(error)}") from error
        self._check_finite(rows)
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
        taken = actions[0][:, 0].copy()
        rows, ended = self._rows_of(out[0]), self._ended
        rewards = outcome[0].reward[:, 0]
        first, valid = out[0].first, out[0].valid
        first.fill(False)
        valid.fill(True)
        out[0].acting.fill(True)
        outcome[0].terminated.fill(False)
        outcome[0].truncated.fill(False)
        self._remember(taken)
        e = 0
        try:
            for e, (env, action) in enumerate(zip(self._envs, self._to_env(taken), strict=True)):
                if ended[e]:
                    self._begin(e, rows)
                    rewards[e] = 0
                    first[e] = True
                    continue
                obs, reward, terminated, truncated, _ = env.step(action)
                for leaf, row in rows:
                    leaf.write(row, e, obs)
                rewards[e] = reward
                if terminated or truncated:
                    ended[e] = True
                    outcome[0].terminated[e] = terminated
                    outcome[0].truncated[e] = truncated
                    valid[e] = False
        except (Exception, SystemExit) as error:  # user code may raise anything
            where = "reset" if ended[e] else "step"
            raise self._error(e, f"failed in {where}: {_told(error)}") from error
        self._check_finite(rows)
        if not np.isfinite(rewards).all():
            e = int(np.isfinite(rewards).argmin())
            raise self._error(e, f"gave the reward {rewards[e]}")

    def save(self) -> dict[str, np.ndarray]:
        """Per env `[E]`: seed, episode, steps since, ended; and all actions since, joined."""
        envs = range(self.spec.num_envs)
        log = np.array(self._log, self._action.dtype)
        log = log.reshape(-1, self.spec.num_envs, *self._action.shape)
        return {
            "seed": np.array(self._seed, np.int64),
            "episode": np.array(self._episode, np.int64),
            "steps": len(self._log) - np.array(self._began, np.int64),
            "ended": np.array(self._ended, np.bool_),
            "actions": np.concatenate([log[self._began[e] :, e] for e in envs]),
        }

    def load(self, state: Mapping[str, np.ndarray], seen: Sequence[ObservationRows]) -> bool:
        """Replay the saved episodes; where that fails every env is due a reset, and it is False.

        After False call `reset` for new first observations; a `step` would reset as well.
        """
        if len(state["seed"]) == self.spec.num_envs:
            self._episode = [int(episode) for episode in state["episode"]]
            if self._replays and min(self._episode) >= 0 and self._replay(state, seen[0]):
                return True
        self._ended = [True] * self.spec.num_envs
        self._seed = [-1] * self.spec.num_envs
        return False

    def close(self) -> None:
        """Close every env; one that fails to is logged, not fatal."""
        envs, self._envs = self._envs, []
        for e, env in enumerate(envs):
            try:
                env.close()
            except Exception:  # user code may raise anything; the run is over
                logger.warning("env %d of %s failed to close", e, self.spec.name, exc_info=True)

    def _rows_of(self, out: ObservationRows) -> "list[tuple[Leaf, np.ndarray]]":
        return [(leaf, out.obs[leaf.observation.name][:, 0]) for leaf in self._leaves]

    def _begin(self, e: int, rows: "list[tuple[Leaf, np.ndarray]]") -> None:
        """Reset env `e` into its next episode; write its first observation."""
        request = self._request
        self._episode[e] += 1
        self._began[e] = len(self._log)
        seed = None
        if self._replays or self._seed[e] < 0:
            seed = episode_seed(request.seed, request.first_env + e, self._episode[e])
            self._seed[e] = seed
        obs, _ = self._envs[e].reset(seed=seed)
        for leaf, row in rows:
            leaf.write(row, e, obs)
        self._ended[e] = False

    def _remember(self, taken: np.ndarray) -> None:
        """Log the actions `[E, *shape]`; now and then forget those no episode needs."""
        self._log.append(taken)
        if len(self._log) < self._trim_at:
            return
        oldest = min(self._began)
        del self._log[:oldest]
        self._began = [began - oldest for began in self._began]
        self._trim_at = 2 * len(self._log) + 1024

    def _replay(self, state: Mapping[str, np.ndarray], seen: ObservationRows) -> bool:
        """Reset and step every env as saved; False where it raises or shows something else."""
        steps = state["steps"].tolist()
        parts = np.split(state["actions"], np.cumsum(steps)[:-1])
        log = np.zeros((max(steps), self.spec.num_envs, *self._action.shape), self._action.dtype)
        shown = {name: np.zeros_like(array) for name, array in seen.obs.items()}
        try:
            for e, (env, part) in enumerate(zip(self._envs, parts, strict=True)):
                log[len(log) - len(part) :, e] = part
                obs, _ = env.reset(seed=int(state["seed"][e]))
                ends = [False]
                for action in self._to_env(part):
                    obs, _, terminated, truncated, _ = env.step(action)
                    ends.append(bool(terminated or truncated))
                if any(ends[:-1]) or ends[-1] != state["ended"][e]:
                    return False
                for leaf in self._leaves:
                    leaf.write(shown[leaf.observation.name][:, 0], e, obs)
        except Exception:  # user code may raise anything
            logger.warning("replaying %s failed", self.spec.name, exc_info=True)
            return False
        self._seed = state["seed"].tolist()
        self._ended = state["ended"].tolist()
        self._log, self._began = list(log), [len(log) - n for n in steps]
        return all(np.array_equal(shown[name], seen.obs[name]) for name in shown)

    def _check_finite(self, rows: "list[tuple[Leaf, np.ndarray]]") -> None:
        for leaf, row in rows:
            if leaf.is_float and not np.isfinite(row).all():
                e = int(np.isfinite(row).reshape(len(row), -1).all(1).argmin())
                name = leaf.observation.name
                raise self._error(e, f"showed {name!r} with a value that is not finite: {row[e]}")

    def _error(self, e: int, what: str) -> EnvError:
        step = len(self._log) - self._began[e]
        last = self._log[-1][e] if step else "none"
        return EnvError(
            f"env {self.spec.name!r} {what}; it is env {self._request.first_env + e} of the run "
            f"(lane {e} of its batch), seed {self._seed[e]}, episode {self._episode[e]}, "
            f"step {step}, last action {last}"
        )


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of a nested observation: where it is found and what it must be."""

    observation: Observation
    path: tuple[Any, ...]
    space: spaces.Space
    shape: tuple[int, ...]
    dtype: np.dtype
    start: Any
    """What is taken off a categorical value, so that it counts from 0; None for numbers."""
    is_float: bool

    def write(self, row: np.ndarray, e: int, obs: Any) -> None:
        """Write this part of `obs` into `row[e]`; raises EnvError where its space forbids it."""
        for key in self.path:
            obs = obs[key]
        if self.start is None:
            if self._fits(obs):
                row[e] = obs
                return
        elif (self.shape == () or self._fits(obs)) and self.space.contains(obs):
            row[e] = obs - self.start
            return
        raise EnvError(
            f"observation {self.observation.name!r} is {_described(obs)}, its space {self.space}"
        )

    def _fits(self, obs: Any) -> bool:
        try:
            return obs.shape == self.shape and obs.dtype == self.dtype
        except AttributeError:
            return False


def _leaves_of(name: str, path: tuple[Any, ...], space: spaces.Space) -> Iterator[Leaf]:
    """The leaves of an observation space, in its own order, named `obs.key.sub`."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from _leaves_of(f"{name}.{key}", (*path, key), part)
        return
    if isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from _leaves_of(f"{name}.{index}", (*path, index), part)
        return
    categories: tuple[int, ...] = ()
    start: Any = None
    if isinstance(space, spaces.Discrete):
        categories, start = (int(space.n),), int(space.start)
    elif isinstance(space, spaces.MultiDiscrete):
        categories, start = tuple(int(n) for n in space.nvec.flat), space.start
    elif not isinstance(space, spaces.Box | spaces.MultiBinary):
        raise ConfigError(
            f"observation {name!r} has the space {space}; SRL knows Box, Discrete, MultiDiscrete, "
            "MultiBinary, and Dict and Tuple of them: convert it with a wrapper"
        )
    dtype, shape = np.dtype(space.dtype), tuple(int(n) for n in space.shape or ())
    if isinstance(space, spaces.Discrete):
        stored = "int64"
    else:
        stored = "float32" if dtype == np.float64 else dtype.name
    counted_from = () if start is None else tuple(int(n) for n in np.ravel(start))
    observation = Observation(name, shape, stored, categories, path, counted_from)
    yield Leaf(observation, path, space, shape, dtype, start, dtype.kind == "f")


def _action_of(space: spaces.Space) -> tuple[ActionSpace, Callable[[np.ndarray], Sequence[Any]]]:
    """The action space, and what turns a row's actions `[N, *shape]` into the env's own."""
    if isinstance(space, spaces.Discrete):
        start, dtype = space.start, space.dtype
        return Discrete(int(space.n), int(start)), lambda taken: list((taken + start).astype(dtype))
    if isinstance(space, spaces.MultiDiscrete):
        offset, shape, dtype = space.start, space.nvec.shape, space.dtype
        action = MultiDiscrete(
            tuple(int(n) for n in space.nvec.flat),
            tuple(int(n) for n in offset.flat),
            tuple(int(n) for n in shape),
        )
        return action, lambda taken: list((taken.reshape(-1, *shape) + offset).astype(dtype))
    if isinstance(space, spaces.Box):
        low, high, dtype = space.low, space.high, space.dtype
        bounds = (tuple(float(x) for x in bound.flat) for bound in (low, high))
        action = Box(tuple(int(n) for n in space.shape), *bounds)
        return action, lambda taken: list(np.clip(taken, low, high).astype(dtype))
    raise ConfigError(
        f"the action space is {space}; SRL knows Discrete, MultiDiscrete and Box: "
        "convert it with a wrapper"
    )


def _make_registered(request: EnvRequest) -> gymnasium.Env:
    name = request.name
    try:
        return gymnasium.make(name, disable_env_checker=True, **request.options)
    except gymnasium.error.DependencyNotInstalled as error:
        entry = str(gymnasium.spec(name).entry_point)
        extra = next((x for x in ("atari", "mujoco") if x in entry), None)
        advice = f"pip install 'srl[{extra}]'" if extra else str(error)
        raise ConfigError(f"env {name!r} needs a package that is missing: {advice}") from error
    except gymnasium.error.UnregisteredEnv as error:
        hint = nearest(name, list(gymnasium.registry))
        raise ConfigError(f"Gymnasium knows no env {name!r}{hint} ({error})") from error
    except (Exception, SystemExit) as error:  # user code may raise anything
        raise _not_built(request, error) from error


def _make_own(make: Callable[..., gymnasium.Env], request: EnvRequest) -> gymnasium.Env:
    try:
        env = make(**request.options)
    except (Exception, SystemExit) as error:  # user code may raise anything
        raise _not_built(request, error) from error
    if not isinstance(env, gymnasium.Env):
        raise ConfigError(f"env {request.name!r} is {_described(env)}, not a gymnasium.Env")
    return env


def _not_built(request: EnvRequest, error: BaseException) -> ConfigError:
    return ConfigError(
        f"env {request.name!r} cannot be built with the options {dict(request.options)}: {error!r}"
    )


def _register_atari() -> None:
    try:
        import ale_py  # pyright: ignore[reportMissingImports] - an optional extra
    except ImportError as error:
        raise ConfigError("Atari envs need ale-py: pip install 'srl[atari]'") from error
    gymnasium.register_envs(ale_py)


def _wrapped(env: gymnasium.Env, wrappers: list[Any]) -> gymnasium.Env:
    for wrapper in wrappers:
        try:
            env = wrapper(env)
        except (Exception, SystemExit) as error:
            raise ConfigError(
                f"the wrapper {wrapper} cannot be put around the env: {error!r}; wrappers are "
                "called with the env alone, so wrap one that needs more in a function of your own"
            ) from error
    return env


def _told(error: BaseException) -> str:
    return str(error) if isinstance(error, EnvError) else repr(error)


def _described(value: Any) -> str:
    """The value in a few words: an array's dtype and shape, or anything else's text."""
    if isinstance(value, np.ndarray | np.generic) and value.ndim:
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.dtype} {value}"
    return f"{type(value).__name__} {str(value)[:80]}"
