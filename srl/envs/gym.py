"""Gymnasium: any registered id, or the user's own `gymnasium.Env`, stepped in this process.

Each observation is written once, from the env's hands into the caller's row.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from srl.core.env import (
    MASK_NAME,
    EnvRequest,
    EnvSpec,
    ObservationRows,
    OutcomeRows,
    agent_sets,
    blank,
)
from srl.core.errors import ConfigError, EnvError
from srl.core.fault import EnvFault
from srl.core.masks import mask_size
from srl.core.names import load_object, nearest
from srl.envs.episodes import EpisodeLog, close_env, one_by_one
from srl.envs.spaces import (
    Leaf,
    action_of,
    agent_of,
    check_render,
    described,
    forbids_all,
    leaves_of,
    not_built,
    picture_of,
    same_observations,
    told,
    unfinite,
    with_render_mode,
    wrapped,
)

PLUGINS = {
    "ALE/": ("ale_py", "atari"),
    "MiniGrid-": ("minigrid", "minigrid"),
    "BabyAI-": ("minigrid", "minigrid"),
}
"""How an id begins, the package that registers it, and the extra that brings that."""


class GymFamily:
    """Builds batches of Gymnasium envs."""

    @staticmethod
    def make_batch(request: EnvRequest) -> "GymEnv":
        """Build `request.name`, an id known to Gymnasium: `CartPole-v1`, `ALE/Pong-v5`."""
        for prefix, (package, extra) in PLUGINS.items():
            if request.name.startswith(prefix):
                _register(package, extra)
        return GymEnv(partial(_make_registered, request), request)

    @staticmethod
    def wrap(make: Callable[..., gymnasium.Env], request: EnvRequest) -> "GymEnv":
        """Build the user's env: `make` is its class, or a function, called with the options."""
        return GymEnv(partial(_make_own, make, request), request)


class WithoutText(gymnasium.ObservationWrapper):
    """A wrapper that drops what is text from a Dict observation (MiniGrid's `mission`)."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, spaces.Dict):
            raise ConfigError(f"WithoutText needs a Dict observation, this one is {space}")
        kept = {k: part for k, part in space.items() if not isinstance(part, spaces.Text)}
        kept = {k: part for k, part in kept.items() if type(part).__name__ != "MissionSpace"}
        self.observation_space = spaces.Dict(kept)
        self._kept = tuple(kept)

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        """What is left."""
        return {key: observation[key] for key in self._kept}


class MaskFromInfo(gymnasium.Wrapper):
    """A wrapper for envs that tell allowed actions by `info["action_mask"]` (Taxi).

    The observation becomes a Dict of `obs` (or of its own keys, where it is a Dict) and
    `action_mask`.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        action, _ = action_of(env.action_space)
        size, space = mask_size(action), env.observation_space
        if size is None:
            raise ConfigError(f"MaskFromInfo needs discrete actions, these are {env.action_space}")
        self._is_dict = isinstance(space, spaces.Dict)
        parts = dict(space.spaces) if isinstance(space, spaces.Dict) else {"obs": space}
        mask = spaces.Box(0, 1, (size,), np.int8)
        self.observation_space = spaces.Dict({**parts, MASK_NAME: mask})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin an episode; what is seen, with the mask."""
        obs, info = self.env.reset(seed=seed, options=options)
        return self._with_mask(obs, info), info

    def step(self, action: Any) -> Any:
        """Act; what came of it, and what is seen, with the mask."""
        obs, *outcome, info = self.env.step(action)
        return self._with_mask(obs, info), *outcome, info

    def _with_mask(self, obs: Any, info: dict[str, Any]) -> dict[str, Any]:
        if MASK_NAME not in info:
            raise EnvError(f"info has no {MASK_NAME!r}: MaskFromInfo cannot be put around this env")
        parts = dict(obs) if self._is_dict else {"obs": obs}
        return {**parts, MASK_NAME: np.asarray(info[MASK_NAME], np.int8)}


class GymEnv:
    """`E` Gymnasium environments of one agent each; implements `srl.core.env.Env`, `Quarantines`."""

    def __init__(self, make: Callable[[], gymnasium.Env], request: EnvRequest) -> None:
        agent_sets(request, 1)
        wrappers = [load_object(name) for name in request.wrappers]
        self._make = lambda: wrapped(make(), wrappers)
        self._envs: list[gymnasium.Env] = [self._make() for _ in range(request.num_envs)]
        check_render(self._envs[0], request)
        self.frames_per_second = self._envs[0].metadata.get("render_fps")
        for env in self._envs:
            if (env.observation_space, env.action_space) != (
                self._envs[0].observation_space,
                self._envs[0].action_space,
            ):
                raise ConfigError(f"the envs {request.name!r} of one batch differ in their spaces")
        self._leaves = tuple(leaves_of("obs", (), self._envs[0].observation_space))
        action, self._to_env = action_of(self._envs[0].action_space)
        self._log = EpisodeLog(request, {"actions": action.field})
        self._agent = agent_of(self._leaves, action)
        self.spec = EnvSpec(
            name=request.name,
            num_envs=request.num_envs,
            agents={"agent_0": self._agent},
            restores=self._log.restores,
            max_steps=_time_limit(self._envs[0]),
        )

    def reset(self, out: Sequence[ObservationRows]) -> None:
        """Begin an episode in every env and write its first observations."""
        rows = self._rows_of(out[0])
        for mask in (out[0].first, out[0].valid, out[0].acting):
            mask.fill(True)
        self._log.clear()
        for e in range(self.spec.num_envs):
            if e in self._log.parked:
                blank(e, out)
                continue
            try:
                self._begin(e, rows)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - user code may raise anything
                self._log.fail(e, f"failed in reset: {told(error)}", error)
        self._check(rows, out)

    def step(
        self,
        actions: Sequence[np.ndarray],
        outcome: Sequence[OutcomeRows],
        out: Sequence[ObservationRows],
    ) -> None:
        """Apply `actions[0]` `[E, 1, *shape]`; an env that ended is reset instead."""
        taken = actions[0][:, 0].copy()
        rows, ended = self._rows_of(out[0]), self._log.ended
        rewards = outcome[0].reward[:, 0]
        first, valid = out[0].first, out[0].valid
        first.fill(False)
        valid.fill(True)
        out[0].acting.fill(True)
        outcome[0].terminated.fill(False)
        outcome[0].truncated.fill(False)
        self._log.remember([taken])
        for e, (env, action) in enumerate(zip(self._envs, self._to_env(taken), strict=True)):
            try:
                if ended[e]:
                    if e in self._log.parked:
                        blank(e, out, outcome)
                        continue
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
            except (Exception, SystemExit) as error:  # noqa: BLE001 - user code may raise anything
                where = "reset" if ended[e] else "step"
                self._log.fail(e, f"failed in {where}: {told(error)}", error)
        if not np.isfinite(rewards).all():
            for e in np.flatnonzero(~np.isfinite(rewards)).tolist():
                self._log.fail(e, f"gave the reward {rewards[e]}")
        self._check(rows, out, outcome)

    def park(self, env: int) -> None:
        """Close one env for good."""
        self._log.park(env)
        close_env(self._envs[env], env, self.spec.name)

    def locate(self, variables: Mapping[str, Any], what: str) -> EnvFault:
        """The env that hangs in a method of this."""
        return self._log.locate(variables, what)

    def render(self, env: int) -> np.ndarray:
        """A picture of one env."""
        return picture_of(self._envs[env], self.spec.name)

    def save(self) -> dict[str, np.ndarray]:
        """Per env `[E]`: seed, episode, steps since, ended; and all actions since, joined."""
        return self._log.save()

    def load(self, state: Mapping[str, np.ndarray], seen: Sequence[ObservationRows]) -> bool:
        """Replay the saved episodes; where that fails every env is due a reset, and it is False.

        After False call `reset` for new first observations; a `step` would reset as well.
        """
        shown = {name: np.zeros_like(array) for name, array in seen[0].obs.items()}
        rows = [(leaf, shown[leaf.observation.name][:, 0]) for leaf in self._leaves]
        if self._log.load(state, one_by_one(partial(self._play_again, rows))) and same_observations(
            shown, seen[0].obs
        ):
            return True
        self._log.give_up()
        return False

    def close(self) -> None:
        """Close every env; one that fails to is logged, not fatal."""
        for e, env in enumerate(self._envs):
            close_env(env, e, self.spec.name)
        self._envs = []

    def _rows_of(self, out: ObservationRows) -> list[tuple[Leaf, np.ndarray]]:
        return [(leaf, out.obs[leaf.observation.name][:, 0]) for leaf in self._leaves]

    def _begin(self, e: int, rows: list[tuple[Leaf, np.ndarray]]) -> None:
        """Reset env `e` into its next episode; write its first observation."""
        seed = self._log.begin(e)
        if e in self._log.broken:
            close_env(self._envs[e], e, self.spec.name)
            self._envs[e] = self._make()
            self._log.broken.discard(e)
        obs, _ = self._envs[e].reset(seed=seed)
        for leaf, row in rows:
            leaf.write(row, e, obs)
        self._log.ended[e] = False

    def _play_again(
        self, rows: list[tuple[Leaf, np.ndarray]], e: int, seed: int, actions: list[np.ndarray]
    ) -> list[bool]:
        """Reset and step env `e` as it was; write what it shows last."""
        env = self._envs[e]
        obs, _ = env.reset(seed=seed)
        ends = [False]
        for action in self._to_env(actions[0]):
            obs, _, terminated, truncated, _ = env.step(action)
            ends.append(bool(terminated or truncated))
        for leaf, row in rows:
            leaf.write(row, e, obs)
        return ends

    def _check(
        self,
        rows: list[tuple[Leaf, np.ndarray]],
        out: Sequence[ObservationRows],
        outcome: Sequence[OutcomeRows] = (),
    ) -> None:
        """Raise EnvError for envs that failed: values not finite, masks that allow nothing, too."""
        for leaf, row in rows:
            for found in unfinite(leaf, row):
                self._log.fail(*found)
        if mask := self._agent.action_mask:
            shown = out[0].obs[mask.name][:, 0]
            for found in forbids_all(self._agent, shown, out[0].valid[:, 0]):
                self._log.fail(*found)
        for e in self._log.failed():
            blank(e, out, outcome)
        self._log.check()


def _make_registered(request: EnvRequest) -> gymnasium.Env:
    name = request.name
    try:
        options = with_render_mode(gymnasium.make, request)
        return gymnasium.make(name, disable_env_checker=True, **options)
    except gymnasium.error.DependencyNotInstalled as error:
        entry = str(gymnasium.spec(name).entry_point)
        extra = next((x for x in ("atari", "mujoco") if x in entry), None)
        advice = f"pip install 'really-scalable-rl[{extra}]'" if extra else str(error)
        raise ConfigError(f"env {name!r} needs a package that is missing: {advice}") from error
    except gymnasium.error.UnregisteredEnv as error:
        hint = nearest(name, list(gymnasium.registry))
        raise ConfigError(f"Gymnasium knows no env {name!r}{hint} ({error})") from error
    except (Exception, SystemExit) as error:  # user code may raise anything
        raise not_built(request, error) from error


def _make_own(make: Callable[..., gymnasium.Env], request: EnvRequest) -> gymnasium.Env:
    try:
        env = make(**with_render_mode(make, request))
    except (Exception, SystemExit) as error:  # user code may raise anything
        raise not_built(request, error) from error
    if not isinstance(env, gymnasium.Env):
        raise ConfigError(f"env {request.name!r} is {described(env)}, not a gymnasium.Env")
    return env


def _register(package: str, extra: str) -> None:
    try:
        gymnasium.register_envs(import_module(package))
    except ImportError as error:
        raise ConfigError(
            f"this env needs {package}: pip install 'really-scalable-rl[{extra}]'"
        ) from error


def _time_limit(env: gymnasium.Env) -> int | None:
    """Steps after which Gymnasium's own TimeLimit truncates; None for an env without it."""
    limits = []
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.wrappers.TimeLimit):
            limits.append(env._max_episode_steps)
        env = env.env
    return min(limits, default=None)
