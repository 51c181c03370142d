"""PettingZoo's parallel envs, `pettingzoo/butterfly.pistonball_v6`: several agents, one lane each.

The name is the module under `pettingzoo`; options go to its `parallel_env`. Agents are those of
`possible_agents`, in that order, and all of them must be there at a reset.

An agent that ends before the others is out of the game until the env resets. The row that ended it
is `terminated` or `truncated` for it alone. The row after it shows its final observation, and like
all rows after that, which show zeros, it is neither `valid` nor `acting`, and its reward is 0. The
step after the last agent ended resets the env: `first` is True for all. The agents that ended last
are `acting` on their final row, as everywhere; those that were out before are not.

The option `central`, which no env is told of, hands the env's `state()` to a central critic.
"""

import pkgutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from srl.core.env import (
    AgentSpec,
    EnvRequest,
    EnvSpec,
    ObservationRows,
    OutcomeRows,
    agent_sets,
    blank,
)
from srl.core.errors import ConfigError, EnvError
from srl.core.fault import EnvFault
from srl.core.names import load_object, nearest
from srl.envs.episodes import EpisodeLog, close_env, one_by_one
from srl.envs.spaces import (
    Leaf,
    action_of,
    agent_of,
    check_render,
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

MOVED = {"mpe": "mpe2"}
"""Folders of PettingZoo that became packages of their own."""


class PettingZooFamily:
    """Builds batches of PettingZoo's parallel envs."""

    @staticmethod
    def make_batch(request: EnvRequest) -> "PettingZooEnv":
        """Build `request.name`, a folder and module of PettingZoo: `butterfly.pistonball_v6`."""
        return PettingZooEnv(_parallel_env(request.name), request)

    @staticmethod
    def wrap(make: Callable[..., Any], request: EnvRequest) -> "PettingZooEnv":
        """Build the user's parallel env: `make` is its class, or a function."""
        return PettingZooEnv(make, request)


@dataclass(frozen=True)
class _Agent:
    """One agent: its name, where its rows are, and what its spaces are made of."""

    name: str
    of_set: int
    column: int
    leaves: tuple[Leaf, ...]
    spec: AgentSpec
    to_env: Callable[[np.ndarray], np.ndarray]


class PettingZooEnv:
    """`E` parallel envs of `A` agents each; implements `srl.core.env.Env`, `Quarantines`."""

    def __init__(self, make: Callable[..., Any], request: EnvRequest) -> None:
        wrappers = [load_object(name) for name in request.wrappers]
        options = with_render_mode(make, request)
        has_central = options.pop("central", False)
        self._make = lambda: wrapped(make(**options), wrappers)
        try:
            self._envs = [self._make() for _ in range(request.num_envs)]
            names = [str(name) for name in self._envs[0].possible_agents]
        except ConfigError:
            raise
        except (Exception, SystemExit) as error:  # user code may raise anything
            raise not_built(request, error) from error
        check_render(self._envs[0], request)
        self.frames_per_second = getattr(self._envs[0], "metadata", {}).get("render_fps")
        places = {
            index: (s, column)
            for s, members in enumerate(agent_sets(request, len(names)))
            for column, index in enumerate(members)
        }
        self._central = _central(self._envs[0], request) if has_central else ()
        self._agents = [
            _agent(name, self._envs[0], self._central, *places[index])
            for index, name in enumerate(names)
        ]
        self._log = EpisodeLog(
            request, {f"actions.{a.name}": a.spec.action.field for a in self._agents}
        )
        self.spec = EnvSpec(
            name=request.name,
            num_envs=request.num_envs,
            agents={agent.name: agent.spec for agent in self._agents},
            restores=self._log.restores,
        )
        self._alive = np.zeros((request.num_envs, len(names)), np.bool_)

    def reset(self, out: Sequence[ObservationRows]) -> None:
        """Begin an episode in every env and write its first observations."""
        for rows in out:
            for mask in (rows.first, rows.valid, rows.acting):
                mask.fill(True)
        self._log.clear()
        for e in range(self.spec.num_envs):
            if e in self._log.parked:
                blank(e, out)
                continue
            try:
                self._begin(e, out)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - user code may raise anything
                self._log.fail(e, f"failed in reset: {told(error)}", error)
        self._check(out)

    def step(
        self,
        actions: Sequence[np.ndarray],
        outcome: Sequence[OutcomeRows],
        out: Sequence[ObservationRows],
    ) -> None:
        """Apply `actions[s]` `[E, A_s, *shape]`; an env whose agents all ended is reset instead."""
        agents, ended = self._agents, self._log.ended
        taken = [actions[a.of_set][:, a.column].copy() for a in agents]
        moves = [agent.to_env(mine) for agent, mine in zip(agents, taken, strict=True)]
        self._log.remember(taken)
        for ends, rows in zip(outcome, out, strict=True):
            for array in (ends.reward, ends.terminated, ends.truncated, rows.first):
                array.fill(0)
        for e in range(self.spec.num_envs):
            where = "reset" if ended[e] else "step"
            try:
                if e in self._log.parked:
                    blank(e, out, outcome)
                    continue
                if ended[e]:
                    self._begin(e, out)
                    self._mark(e, out, first=True)
                    continue
                obs, rewards, terminated, truncated = self._advance(e, [m[e] for m in moves])
                for agent in agents:
                    if agent.name in terminated:
                        at, ends = (e, agent.column), outcome[agent.of_set]
                        ends.reward[at] = rewards[agent.name]
                        ends.terminated[at] = terminated[agent.name]
                        ends.truncated[at] = truncated[agent.name]
                self._show(e, obs, [rows.obs for rows in out])
                self._show_state(e, out)
                self._mark(e, out, first=False, acting=terminated if ended[e] else ())
            except (Exception, SystemExit) as error:  # noqa: BLE001 - user code may raise anything
                self._log.fail(e, f"failed in {where}: {told(error)}", error)
        for agent in agents:
            reward = outcome[agent.of_set].reward[:, agent.column]
            if not np.isfinite(reward).all():
                for e in np.flatnonzero(~np.isfinite(reward)).tolist():
                    self._log.fail(e, f"gave agent {agent.name!r} the reward {reward[e]}")
        self._check(out, outcome)

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
        """Per env `[E]`: seed, episode, steps since, ended; and each agent's actions since."""
        return self._log.save()

    def load(self, state: Mapping[str, np.ndarray], seen: Sequence[ObservationRows]) -> bool:
        """Replay the saved episodes; where that fails every env is due a reset, and it is False.

        After False call `reset` for new first observations; a `step` would reset as well.
        """
        shown = [{n: np.zeros_like(array) for n, array in rows.obs.items()} for rows in seen]
        if self._log.load(state, one_by_one(partial(self._play_again, shown))) and all(
            same_observations(mine, rows.obs) for mine, rows in zip(shown, seen, strict=True)
        ):
            return True
        self._log.give_up()
        return False

    def close(self) -> None:
        """Close every env; one that fails to is logged, not fatal."""
        for e, env in enumerate(self._envs):
            close_env(env, e, self.spec.name)
        self._envs = []

    def _begin(self, e: int, out: Sequence[ObservationRows]) -> None:
        """Reset env `e` into its next episode; write its first observations."""
        seed = self._log.begin(e)
        if e in self._log.broken:
            close_env(self._envs[e], e, self.spec.name)
            self._envs[e] = self._make()
            self._log.broken.discard(e)
        self._show(e, self._restart(e, seed), [rows.obs for rows in out])
        self._show_state(e, out)
        self._log.ended[e] = False

    def _restart(self, e: int, seed: int | None) -> Mapping[str, Any]:
        """Reset env `e`; what its agents see."""
        self._alive[e] = False
        obs, _ = self._envs[e].reset(seed=seed)
        missing = [agent.name for agent in self._agents if agent.name not in obs]
        if missing:
            raise EnvError(f"agents {missing} are not there after a reset")
        self._alive[e] = True
        return obs

    def _advance(self, e: int, moves: list[Any]) -> tuple[Any, Any, dict[str, bool], Any]:
        """Step env `e`; observations, rewards and ends of the agents that were alive."""
        alive = [(index, self._agents[index].name) for index in np.flatnonzero(self._alive[e])]
        obs, rewards, terminations, truncations, _ = self._envs[e].step(
            {name: moves[index] for index, name in alive}
        )
        terminated = {name: bool(terminations[name]) for _, name in alive}
        truncated = {name: bool(truncations[name]) for _, name in alive}
        for index, name in alive:
            if truncated[name] and not terminated[name] and name not in obs:
                raise EnvError(f"the final observation of truncated agent {name!r} is missing")
            self._alive[e, index] = not (terminated[name] or truncated[name])
        left, here = self._alive[e], self._envs[e].agents
        gone = [a.name for a, lives in zip(self._agents, left, strict=True) if lives]
        gone = [name for name in gone if name not in here]
        if gone:
            raise EnvError(f"agents {gone} left without being terminated or truncated")
        self._log.ended[e] = not left.any()
        shown = {name: obs[name] for _, name in alive if name in obs}
        return shown, rewards, terminated, truncated

    def _show(
        self, e: int, obs: Mapping[str, Any], rows: Sequence[Mapping[str, np.ndarray]]
    ) -> None:
        """Write what each agent of env `e` sees; zeros for those that are out of the game."""
        for agent in self._agents:
            for leaf in agent.leaves:
                row = rows[agent.of_set][leaf.observation.name][:, agent.column]
                if agent.name in obs:
                    leaf.write(row, e, obs[agent.name])
                else:
                    row[e] = 0

    def _show_state(self, e: int, out: Sequence[ObservationRows]) -> None:
        """Write what the whole env `e` shows to a central critic."""
        if self._central:
            state = self._envs[e].state()
            for leaf in self._central:
                for rows in out:
                    leaf.write(rows.central[leaf.observation.name], e, state)

    def _mark(
        self, e: int, out: Sequence[ObservationRows], *, first: bool, acting: Any = ()
    ) -> None:
        """Write the masks of env `e`; besides the living, the agents named in `acting` act."""
        for agent, alive in zip(self._agents, self._alive[e], strict=True):
            at, rows = (e, agent.column), out[agent.of_set]
            rows.first[at] = first
            rows.valid[at] = alive
            rows.acting[at] = alive or agent.name in acting

    def _play_again(
        self,
        shown: Sequence[Mapping[str, np.ndarray]],
        e: int,
        seed: int,
        actions: list[np.ndarray],
    ) -> list[bool]:
        """Reset and step env `e` as it was; write what its agents see last."""
        obs, ends = self._restart(e, seed), [False]
        moves = [agent.to_env(mine) for agent, mine in zip(self._agents, actions, strict=True)]
        for t in range(len(actions[0])):
            obs, _, _, _ = self._advance(e, [mine[t] for mine in moves])
            ends.append(self._log.ended[e])
        self._show(e, obs, shown)
        return ends

    def _check(self, out: Sequence[ObservationRows], outcome: Sequence[OutcomeRows] = ()) -> None:
        """Raise EnvError for envs that failed: values not finite, masks that allow nothing, too."""
        for agent in self._agents:
            rows, column = out[agent.of_set], agent.column
            found = [
                bad
                for leaf in agent.leaves
                for bad in unfinite(leaf, rows.obs[leaf.observation.name][:, column])
            ]
            if mask := agent.spec.action_mask:
                acts = rows.valid[:, column] & rows.acting[:, column]
                found += forbids_all(agent.spec, rows.obs[mask.name][:, column], acts)
            for e, what in found:
                self._log.fail(e, f"{what} (agent {agent.name!r})")
        for leaf in self._central:
            for found in unfinite(leaf, out[0].central[leaf.observation.name]):
                self._log.fail(*found)
        for e in self._log.failed():
            self._alive[e] = False
            blank(e, out, outcome)
        self._log.check()


def _agent(name: str, env: Any, central: Sequence[Leaf], of_set: int, column: int) -> _Agent:
    leaves = tuple(leaves_of("obs", (), env.observation_space(name)))
    action, to_env = action_of(env.action_space(name))
    return _Agent(name, of_set, column, leaves, agent_of(leaves, action, central), to_env)


def _central(env: Any, request: EnvRequest) -> tuple[Leaf, ...]:
    """What the env shows to a central critic."""
    space = getattr(env, "state_space", None)
    if space is None:
        raise ConfigError(f"env {request.name!r} has no state_space: leave the option central")
    return tuple(leaves_of("state", (), space))


def _parallel_env(name: str) -> Callable[..., Any]:
    """What makes the env of that name."""
    folder, _, module = name.partition(".")
    try:
        import_module("pettingzoo")
    except ImportError as error:
        raise ConfigError(
            "this env needs PettingZoo: pip install 'really-scalable-rl[pettingzoo]'"
        ) from error
    path = f"pettingzoo.{name}"
    try:
        if folder in MOVED:
            path = f"{MOVED[folder]}.{module}"
        with warnings.catch_warnings():  # of PettingZoo's own old ways to name an env
            warnings.simplefilter("ignore", DeprecationWarning)
            found = import_module(path)
    except ModuleNotFoundError as error:
        if error.name == MOVED.get(folder):
            raise ConfigError(
                f"{name!r} is in a package of its own: pip install {error.name}"
            ) from error
        if error.name is None or not path.startswith(error.name):
            raise ConfigError(
                f"env {name!r} needs {error.name!r}, which is missing: "
                f"pip install 'pettingzoo[{folder}]'"
            ) from error
        raise ConfigError(f"PettingZoo has no env {name!r}{_nearest_module(name)}") from error
    except (
        Exception,
        SystemExit,
    ) as error:  # PettingZoo raises ImportError and others for old versions
        raise ConfigError(f"env {name!r} cannot be loaded: {error}") from error
    make = getattr(found, "parallel_env", None)
    if make is None:
        raise ConfigError(
            f"env {name!r} has no parallel_env: its agents take turns, which "
            "this family does not play"
        )
    return make


def _nearest_module(name: str) -> str:
    """The nearest env of PettingZoo, as a question."""
    known = []
    for folder in ("atari", "butterfly", "classic", "sisl"):
        package = import_module(f"pettingzoo.{folder}")
        found = pkgutil.iter_modules(package.__path__)
        known += [f"{folder}.{m.name}" for m in found if m.name[-1].isdigit()]
    return nearest(name, known)
