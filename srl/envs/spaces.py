"""What families of Gymnasium-style envs share: spaces to rows and back.

Observations keep their dtype, except that float64 becomes float32 (what networks read) and Discrete
becomes int64. Values are counted from 0 in rows; a space's `start` is added and removed here.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from srl.core.env import (
    ActionSpace,
    AgentSpec,
    Box,
    Discrete,
    EnvRequest,
    MultiDiscrete,
    Observation,
)
from srl.core.errors import ConfigError, EnvError
from srl.core.masks import mask_problem, nothing_allowed


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
            f"observation {self.observation.name!r} is {described(obs)}, its space {self.space}"
        )

    def _fits(self, obs: Any) -> bool:
        try:
            return obs.shape == self.shape and obs.dtype == self.dtype
        except AttributeError:
            return False


def leaves_of(name: str, path: tuple[Any, ...], space: spaces.Space) -> Iterator[Leaf]:
    """The leaves of an observation space, in its own order, named `obs.key.sub`."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from leaves_of(f"{name}.{key}", (*path, key), part)
        return
    if isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from leaves_of(f"{name}.{index}", (*path, index), part)
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
            "MultiBinary, and Dict and Tuple of them: convert it with a wrapper, or drop text with "
            "srl.envs.gym:WithoutText"
        )
    dtype, shape = np.dtype(space.dtype), tuple(int(n) for n in space.shape or ())
    if isinstance(space, spaces.Discrete):
        stored = "int64"
    else:
        stored = "float32" if dtype == np.float64 else dtype.name
    counted_from = () if start is None else tuple(int(n) for n in np.ravel(start))
    observation = Observation(name, shape, stored, categories, path, counted_from)
    yield Leaf(observation, path, space, shape, dtype, start, dtype.kind == "f")


def agent_of(
    leaves: Sequence[Leaf], action: ActionSpace, central: Sequence[Leaf] = ()
) -> AgentSpec:
    """What an agent sees and does; refuses an action mask that does not fit its actions."""
    seen, shared = (tuple(leaf.observation for leaf in part) for part in (leaves, central))
    agent = AgentSpec(seen, action, shared)
    if problem := mask_problem(agent):
        raise ConfigError(f"{problem}: rename it, or make it so")
    return agent


def action_of(space: spaces.Space) -> tuple[ActionSpace, Callable[[np.ndarray], np.ndarray]]:
    """The action space, and what turns a row's actions `[N, *shape]` into the env's own."""
    if isinstance(space, spaces.Discrete):
        start, dtype = space.start, space.dtype
        return Discrete(int(space.n), int(start)), lambda taken: (taken + start).astype(dtype)
    if isinstance(space, spaces.MultiDiscrete):
        offset, shape, dtype = space.start, space.nvec.shape, space.dtype
        action = MultiDiscrete(
            tuple(int(n) for n in space.nvec.flat),
            tuple(int(n) for n in offset.flat),
            tuple(int(n) for n in shape),
        )
        return action, lambda taken: (taken.reshape(-1, *shape) + offset).astype(dtype)
    if isinstance(space, spaces.Box):
        low, high, dtype = space.low, space.high, space.dtype
        bounds = (tuple(float(x) for x in bound.flat) for bound in (low, high))
        action = Box(tuple(int(n) for n in space.shape), *bounds)
        return action, lambda taken: np.clip(taken, low, high).astype(dtype)
    raise ConfigError(
        f"the action space is {space}; SRL knows Discrete, MultiDiscrete and Box: "
        "convert it with a wrapper"
    )


def unfinite(leaf: Leaf, row: np.ndarray) -> list[tuple[int, str]]:
    """The envs of `row` `[E, *shape]` with a value that is not finite, and what to say of each."""
    if not leaf.is_float or np.isfinite(row).all():
        return []
    sound = np.isfinite(row).reshape(len(row), -1).all(1)
    what = f"showed {leaf.observation.name!r} with a value that is not finite"
    return [(int(e), f"{what}: {row[e]}") for e in np.flatnonzero(~sound)]


def forbids_all(agent: AgentSpec, row: np.ndarray, acts: np.ndarray) -> Iterator[tuple[int, str]]:
    """The envs whose masks, of `row` `[E, n]`, leave nothing to who `acts` `[E]`; what to say."""
    if agent.action_mask is not None:
        for e in np.flatnonzero(nothing_allowed(agent.action, row) & acts):
            yield int(e), f"showed {agent.action_mask.name!r}: every action is masked out"


def same_observations(shown: Mapping[str, np.ndarray], seen: Mapping[str, np.ndarray]) -> bool:
    """Whether an env that was played again shows what was seen before."""
    return all(np.array_equal(shown[name], seen[name]) for name in shown)


def wrapped(env: Any, wrappers: Sequence[Callable[[Any], Any]]) -> Any:
    """The env in its wrappers, the last one outermost."""
    for wrapper in wrappers:
        try:
            env = wrapper(env)
        except (Exception, SystemExit) as error:  # user code may raise anything
            raise ConfigError(
                f"the wrapper {wrapper} cannot be put around the env: {error!r}; wrappers are "
                "called with the env alone, so wrap one that needs more in a function of your own"
            ) from error
    return env


def with_render_mode(make: Callable[..., Any], request: EnvRequest) -> dict[str, Any]:
    """The request's options, and that pictures are wanted where `make` can be told so."""
    options = dict(request.options)
    if request.render and _takes(make, "render_mode"):
        options["render_mode"] = "rgb_array"
    return options


def _takes(make: Callable[..., Any], name: str) -> bool:
    try:
        parameters = inspect.signature(make).parameters
    except (TypeError, ValueError):
        return False
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def check_render(env: Any, request: EnvRequest) -> None:
    """Raise ConfigError where pictures are wanted and the env draws none."""
    if request.render and getattr(env, "render_mode", None) != "rgb_array":
        raise ConfigError(
            f"env {request.name!r} draws no pictures: it does not take render_mode='rgb_array'"
        )


def picture_of(env: Any, name: str) -> np.ndarray:
    """What a Gymnasium-style env draws; raises EnvError where that is no picture."""
    try:
        frame = env.render()
    except (Exception, SystemExit) as error:  # user code may raise anything
        raise EnvError(f"env {name!r} failed in render: {error}") from error
    if not (isinstance(frame, np.ndarray) and frame.dtype == np.uint8 and frame.shape[2:] == (3,)):
        raise EnvError(f"env {name!r} drew {described(frame)}, not a picture uint8[H, W, 3]")
    return frame


def not_built(request: EnvRequest, error: BaseException) -> ConfigError:
    """The env raised while it was made."""
    return ConfigError(
        f"env {request.name!r} cannot be built with the options {dict(request.options)}: {error!r}"
    )


def told(error: BaseException) -> str:
    """What an exception says: an EnvError in its own words."""
    return str(error) if isinstance(error, EnvError) else repr(error)


def described(value: Any) -> str:
    """The value in a few words: an array's dtype and shape, or anything else's text."""
    if isinstance(value, np.ndarray | np.generic) and value.ndim:
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.dtype} {value}"
    return f"{type(value).__name__} {str(value)[:80]}"
