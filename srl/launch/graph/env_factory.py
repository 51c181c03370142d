"""Builds envs by name: a family of the catalogue, or a user's own object."""

from contextlib import closing
from dataclasses import replace
from importlib import import_module
from inspect import getattr_static
from typing import Any

from srl import catalog
from srl.core.env import Env, EnvFactory, EnvRequest, EnvSpec
from srl.core.errors import ConfigError
from srl.core.experiment import EnvConfig
from srl.core.names import load_object, nearest
from srl.core.repro import EnvOrigin
from srl.core.telemetry import Telemetry
from srl.rollout.quarantine import Recovery, rebuilt_seed
from srl.workers.watchdog import Watched, end_with, watch

Sets = tuple[tuple[int, ...], ...] | None
_FIRST_ENV = 1_000_000  # seeds that no actor uses
_LANES = 20
_BUILD_SECONDS = 300.0
"""What it may take to build one: some compile, or load, a lot."""


def make_env(
    config: EnvConfig,
    seed: int,
    *,
    num_envs: int,
    first_env: int,
    sets: Sets,
    render: bool = False,
    first_episode: int = 0,
) -> Env:
    """`num_envs` envs, numbered from `first_env` in the run, their agents split into `sets`."""
    request = EnvRequest(
        name=config.name,
        options=config.keywords(),
        wrappers=config.wrappers,
        num_envs=num_envs,
        seed=seed,
        first_env=first_env,
        reseed=config.reseed,
        sets=sets,
        render=render,
        first_episode=first_episode,
    )
    family, slash, name = config.name.partition("/")
    is_known = bool(slash) and family in catalog.ENVS
    if ":" in config.name and not is_known:
        return _make_from_object(load_object(config.name), request)
    if not is_known:
        known = [f"{family}/..." for family in catalog.ENVS]
        raise ConfigError(
            f"unknown env {config.name!r}{nearest(config.name, known)} Write FAMILY/NAME with a "
            f"family of {', '.join(catalog.ENVS)}, or module:Object, or file.py:Object"
        )
    factory: EnvFactory = load_object(catalog.ENVS[family])()
    return factory.make_batch(replace(request, name=name))


def import_family(name: str) -> None:
    """Import our module of an env's family, ahead of its use; of a user's own env, nothing."""
    family, slash, _ = name.partition("/")
    if slash and family in catalog.ENVS:
        import_module(catalog.ENVS[family].partition(":")[0])


def evaluation_lanes(episodes: int) -> tuple[int, int]:
    """How many envs play that many episodes, and how many each of them."""
    num_envs = max(n for n in range(1, _LANES + 1) if episodes % n == 0)
    return num_envs, episodes // num_envs


def evaluation_env(
    config: EnvConfig, seed: int, num_envs: int, sets: Sets, *, render: bool = False
) -> Env:
    """The envs of an evaluation: those of one seed begin with the same episodes each time."""
    return make_env(config, seed, num_envs=num_envs, first_env=_FIRST_ENV, sets=sets, render=render)


def recovery_of(
    config: EnvConfig, seed: int, *, num_envs: int, first_env: int = _FIRST_ENV, sets: Sets
) -> Recovery:
    """How a worker builds the envs of its groups, `num_envs` each from `first_env` on, and rebuilds."""

    def origin(group: int, rebuilds: int) -> EnvOrigin:
        now = rebuilt_seed(seed, rebuilds) if rebuilds else seed
        return EnvOrigin(config=config, seed=now, first_env=first_env + group * num_envs)

    def make(of: EnvOrigin) -> Env:
        return make_env(of.config, of.seed, num_envs=num_envs, first_env=of.first_env, sets=sets)

    return Recovery(origin, make)


def env_spec(config: EnvConfig) -> EnvSpec:
    """What the env is, found out by building one of it; ends this process where that takes for ever."""
    watched = Watched("the probe", Telemetry())
    on_hang = end_with(2, f": env {config.name!r} was being built, and nothing was started")
    with (
        watch([watched], _BUILD_SECONDS, on_hang, is_alone=True),
        watched.telemetry.time("env"),
        closing(make_env(config, 0, num_envs=1, first_env=0, sets=None)) as env,
    ):
        return env.spec


def is_env(found: Any) -> bool:
    """Whether an object is surely an env: a batched one, or a class of Gymnasium envs."""
    import gymnasium

    is_class = isinstance(found, type) and issubclass(found, gymnasium.Env)
    return is_class or hasattr(found, "make_batch")


def _make_from_object(found: Any, request: EnvRequest) -> Env:
    """A batched env (it has `make_batch`), or anything that makes a Gymnasium env when called."""
    if hasattr(found, "make_batch"):
        method = getattr_static(found, "make_batch")
        is_unbound = isinstance(found, type) and not isinstance(method, classmethod | staticmethod)
        factory: Any = found() if is_unbound else found
        return factory.make_batch(request)
    return load_object(catalog.ENVS["gym"]).wrap(found, request)
