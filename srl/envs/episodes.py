"""Where the episodes of a batch of Python envs are, so that each can be played again or given up.

Axes: `E` envs. Every list has one entry an env.
"""

import logging
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from srl.core.env import EnvRequest, episode_seed
from srl.core.errors import EnvError
from srl.core.fault import EnvFault, joined
from srl.core.spec import Field

logger = logging.getLogger(__name__)

RESTORES = "every episode, by its seed at reset and its actions since, replayed and compared"
RESTORES_NOT = "episodes are not restored: envs are seeded at start only, and begin new ones"

PlayAgain = Callable[[int, int, list[np.ndarray]], list[bool]]
"""Reset env `e` with a seed, take each agent's actions `[N, *shape]`; which of N + 1 rows ended."""
PlayAllAgain = Callable[[list[int], list[list[np.ndarray]]], Iterable[list[bool]]]
"""The same for all envs: the seed of each (-1: leave it), and each agent's actions, by env."""


class EpisodeLog:
    """Seeds of the episodes under way, the actions taken since, and which envs have failed."""

    def __init__(self, request: EnvRequest, actions: Mapping[str, Field]) -> None:
        """`actions`: the name of each agent's actions in a saved state, and what one of them is."""
        self._request = request
        self._fields = dict(actions)
        self.replays = request.reseed == "episode"
        self.restores = RESTORES if self.replays else RESTORES_NOT
        self.seed = [-1] * request.num_envs
        self.episode = [request.first_episode - 1] * request.num_envs
        self.ended = [True] * request.num_envs
        self.broken: set[int] = set()
        """Envs that failed, and must be built anew before their next episode; they have ended."""
        self.parked: set[int] = set()
        """Envs that are not played any more; they have ended."""
        self._faults: list[EnvFault] = []
        self._cause: BaseException | None = None
        # Actions of the last steps, an array [E, *shape] an agent; env e began at log[began[e]].
        self._log: list[list[np.ndarray]] = []
        self._began = [0] * request.num_envs
        self._trim_at = 1024

    def begin(self, e: int) -> int | None:
        """Count a new episode of env `e`; the seed to reset it with, None where it has one."""
        self.episode[e] += 1
        self._began[e] = len(self._log)
        if not self.replays and self.seed[e] >= 0:
            return None
        self.seed[e] = self._seed_of_episode(e)
        return self.seed[e]

    def clear(self) -> None:
        """Forget all actions: every env is about to begin an episode."""
        self._log.clear()
        self._began = [0] * len(self._began)

    def remember(self, taken: list[np.ndarray]) -> None:
        """Log each agent's actions `[E, *shape]`; now and then forget those no episode needs."""
        self._log.append(taken)
        if len(self._log) < self._trim_at:
            return
        for e in self.parked:
            self._began[e] = len(self._log)
        oldest = min(self._began)
        del self._log[:oldest]
        self._began = [began - oldest for began in self._began]
        self._trim_at = 2 * len(self._log) + 1024

    def save(self) -> dict[str, np.ndarray]:
        """Per env `[E]`: seed, episode, steps since, ended; and all actions since, joined."""
        began = [len(self._log) if e in self.parked else n for e, n in enumerate(self._began)]
        state = {
            "seed": np.array(self.seed, np.int64),
            "episode": np.array(self.episode, np.int64),
            "steps": len(self._log) - np.array(began, np.int64),
            "ended": np.array(self.ended, np.bool_),
        }
        for agent, (name, field) in enumerate(self._fields.items()):
            log = np.array([taken[agent] for taken in self._log], field.dtype)
            log = log.reshape(-1, len(self.seed), *field.shape)
            state[name] = np.concatenate([log[n:, e] for e, n in enumerate(began)])
        return state

    def load(self, state: Mapping[str, np.ndarray], play: PlayAllAgain) -> bool:
        """Bring every env to where it was saved; False where one cannot be, or ends elsewhere."""
        if len(state["seed"]) != len(self.seed):
            return False
        self.episode = state["episode"].tolist()
        if not self.replays or min(self.episode) < 0:
            return False
        steps = state["steps"].tolist()
        parts = [np.split(state[name], np.cumsum(steps)[:-1]) for name in self._fields]
        try:
            for e, ends in enumerate(play(state["seed"].tolist(), parts)):
                is_due = state["seed"][e] < 0  # it had failed
                if not is_due and (any(ends[:-1]) or ends[-1] != state["ended"][e]):
                    return False
        except (Exception, SystemExit):  # user code may raise anything
            logger.warning("replaying %s failed", self._request.name, exc_info=True)
            return False
        logs = [
            np.zeros((max(steps), len(steps), *field.shape), field.dtype)
            for field in self._fields.values()
        ]
        for log, part in zip(logs, parts, strict=True):
            for e, taken in enumerate(part):
                log[len(log) - len(taken) :, e] = taken
        self.seed, self.ended = state["seed"].tolist(), state["ended"].tolist()
        self._log = [list(taken) for taken in zip(*logs, strict=True)]
        self._began = [max(steps) - n for n in steps]
        return True

    def give_up(self) -> None:
        """Every env is due a reset, with a seed."""
        self.ended = [True] * len(self.ended)
        self.seed = [-1] * len(self.seed)

    def park(self, e: int) -> None:
        """Env `e` is not played any more."""
        self.parked.add(e)
        self._lose(e)

    def fail(self, e: int, what: str, error: BaseException | None = None) -> None:
        """Env `e` failed, in the call under way: its episode is lost, and it must be built anew."""
        if e in self.failed():
            return  # what came of it later in this call means nothing
        told = "" if error is None else "".join(traceback.format_exception(error))
        kind = "EnvError" if error is None else type(error).__name__
        self._faults.append(replace(self.fault(e, what, kind), traceback=told))
        self._cause = self._cause or error
        self.broken.add(e)
        self._lose(e)

    def failed(self) -> list[int]:
        """Envs that failed in the call under way."""
        return [fault.env for fault in self._faults if fault.env is not None]

    def check(self) -> None:
        """End the call: raise EnvError where envs failed in it."""
        if self._faults:
            faults, cause = tuple(self._faults), self._cause
            self._faults, self._cause = [], None
            raise EnvError(joined(faults), faults) from cause

    def fault(self, e: int, what: str, kind: str) -> EnvFault:
        """What is wrong with env `e`, and what is needed to see it again."""
        request, step = self._request, len(self._log) - self._began[e]
        last = [str(taken[e]) for taken in self._log[-1]] if step else ["none"]
        since = self._log[len(self._log) - step :]
        actions = {
            name: np.array([taken[agent][e : e + 1] for taken in since], field.dtype).reshape(
                -1, 1, *field.shape
            )
            for agent, (name, field) in enumerate(self._fields.items())
        }
        is_seeded = self.episode[e] >= 0 and self.seed[e] == self._seed_of_episode(e)
        return EnvFault(
            env=e,
            kind=kind,
            what=what,
            message=(
                f"env {request.name!r} {what}; it is env {request.first_env + e} of the run (lane "
                f"{e} of its batch), seed {self.seed[e]}, episode {self.episode[e]}, step {step}, "
                f"last action {', '.join(last)}"
            ),
            seed=self.seed[e],
            episode=self.episode[e],
            step=step,
            actions=actions,
            note="" if is_seeded else "env.reseed is start: the episode has no seed of its own",
        )

    def locate(self, variables: Mapping[str, Any], what: str) -> EnvFault:
        """The env that hangs in a method whose variable `e` is its number."""
        return self.fault(int(variables.get("e", 0)), what, "hang")

    def _lose(self, e: int) -> None:
        self.ended[e], self.seed[e], self._began[e] = True, -1, len(self._log)

    def _seed_of_episode(self, e: int) -> int:
        request = self._request
        return episode_seed(request.seed, request.first_env + e, self.episode[e])


def one_by_one(play: PlayAgain) -> PlayAllAgain:
    """Play the episodes of envs that do not depend on each other, one after the other."""

    def play_all(seeds: list[int], actions: list[list[np.ndarray]]) -> Iterator[list[bool]]:
        for e, seed in enumerate(seeds):
            yield play(e, seed, [by_env[e] for by_env in actions]) if seed >= 0 else []

    return play_all


def close_env(env: Any, e: int, name: str) -> None:
    """Close env `e` of the batch `name`; one that fails to is logged: nobody needs it any more."""
    try:
        env.close()
    except (Exception, SystemExit):  # user code may raise anything
        logger.warning("env %d of %s failed to close", e, name, exc_info=True)
