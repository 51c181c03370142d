"""EnvPool: its envs by their own names, `envpool/CartPole-v1`, `envpool/Pong-v5`, in C++ threads.

Options are EnvPool's own (`num_threads`, `max_episode_steps`, `stack_num`, `reward_clip`, ...) with
its defaults, but for `num_threads`, which is 1. It ignores the seed of a reset, so envs get theirs
when they are made. Where it stacks grey pictures (`stack_num`), rows hold one of them each, and a
policy is shown the newest, zeros before the first of an episode (EnvPool itself would show copies of
the first). `episodic_life` ends the episode without restarting the game.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from srl.core.env import AgentSpec, EnvRequest
from srl.core.errors import ConfigError
from srl.core.names import nearest
from srl.envs.native import NativeEnv, Stepped, stacked_picture
from srl.envs.spaces import Leaf, action_of, leaves_of, not_built

OURS = ("num_envs", "batch_size", "seed", "env_seed", "env_type", "gym_reset_return_info")


class EnvPoolFamily:
    """Builds batches of EnvPool's envs."""

    @staticmethod
    def make_batch(request: EnvRequest) -> NativeEnv:
        """Build `request.name`, an id known to EnvPool."""
        pool = _EnvPoolVector(request)
        return NativeEnv(pool, pool.agent, request, max_steps=pool.max_steps)


class _EnvPoolVector:
    """One pool at a time, made anew at every start; implements `srl.envs.native.Vector`."""

    def __init__(self, request: EnvRequest) -> None:
        try:
            envpool: Any = import_module("envpool")
        except ImportError as error:
            raise ConfigError(
                "EnvPool's envs need it: pip install 'really-scalable-rl[envpool]'"
            ) from error
        known: Sequence[str] = envpool.list_all_envs()
        if request.name not in known:
            raise ConfigError(
                f"EnvPool knows no env {request.name!r}{nearest(request.name, list(known))}"
            )
        for name in OURS:
            if name in request.options:
                raise ConfigError(f"env {request.name!r}: SRL sets {name} itself")
        options: dict[str, Any] = {"num_threads": 1} | dict(request.options)
        try:
            spec: Any = _quietly(lambda: envpool.make_spec(request.name, **options))
        except (Exception, SystemExit) as error:  # native code may raise anything
            raise not_built(request, error) from error
        if spec.config.max_num_players != 1:
            raise ConfigError(f"env {request.name!r} has several players: SRL plays EnvPool's solo")
        observation = _quietly(lambda: spec.gymnasium_observation_space)
        stack = _stack_of(spec, observation)
        if stack > 1:
            options["stack_num"] = 1
        self._make = lambda seeds: envpool.make(
            request.name, env_type="gymnasium", num_envs=len(seeds), seed=seeds, **options
        )
        self._leaves: tuple[Leaf, ...] = tuple(leaves_of("obs", (), observation))
        action, self._to_env = action_of(_quietly(lambda: spec.gymnasium_action_space))
        seen = tuple(leaf.observation for leaf in self._leaves)
        if stack > 1:
            seen = (stacked_picture("obs", stack, observation.shape[1:]),)
        self.agent = AgentSpec(seen, action)
        self.max_steps = int(spec.config.max_episode_steps) or None
        self._pool: Any = None

    def start(self, seeds: np.ndarray) -> Mapping[str, np.ndarray]:
        """Make a pool whose envs have these seeds; what they see."""
        self.close()
        self._pool = _quietly(lambda: self._make(seeds.tolist()))
        return self._parts(_quietly(self._pool.reset)[0])

    def step(self, actions: np.ndarray) -> Stepped:
        """Play a step in every env; one that is over begins again instead."""
        obs, reward, terminated, truncated, _ = self._pool.step(self._to_env(actions))
        over = terminated | truncated
        return Stepped(self._parts(obs), reward, terminated, truncated, over)

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _parts(self, obs: Any) -> Mapping[str, np.ndarray]:
        """Each leaf's values `[E, *shape]`, categories counted from 0."""
        parts = {}
        for leaf in self._leaves:
            part = obs
            for key in leaf.path:
                part = part[key]
            parts[leaf.observation.name] = part if leaf.start is None else part - leaf.start
        return parts


def _stack_of(spec: Any, observation: Any) -> int:
    """Grey pictures that make up an observation `[stack, height, width]`; 1 where it is no such."""
    stack = int(getattr(spec.config, "stack_num", 1))
    shape = getattr(observation, "shape", None) or ()
    return stack if (len(shape), shape[:1], observation.dtype) == (3, (stack,), "uint8") else 1


def _quietly(make: Callable[[], Any]) -> Any:
    """Call `make`; EnvPool's float64 bounds make Gymnasium warn of lost precision."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return make()
