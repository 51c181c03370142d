"""Envs that break when somebody outside pulls a lever: a file that the next env to see it takes away.

`Single` is one env of a batch and breaks alone; `Batch` is stepped, and breaks, as a whole. The task is
the toy Identity's: name the symbol that is shown; with `real`, by a number from -1 to 1, of which each symbol has
its quarter.
"""

import itertools
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from srl.core.arrays import Arrays
from srl.core.env import Box, EnvRequest
from srl.envs.toy import Identity

LENGTH, SYMBOLS = 16, 4
"""Steps of an episode, and what may be shown."""
WAYS = {
    "single": ("step raise", "step nan", "step hang", "reset raise", "reset hang"),
    "batch": ("step raise", "step hang"),
}
"""Where and how each kind of env can be broken."""
_numbers = itertools.count()


@dataclass(frozen=True)
class Pulled:
    """A lever that an env has seen."""

    way: str
    """One of WAYS."""
    pid: int
    """Of the process that the env broke in."""
    at: float
    """Unix time."""


class Lever:
    """A folder with a file for each thing an env does: who finds one there breaks in doing it."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._files = {name: str(self._folder / name) for name in ("reset", "step")}

    def pull(self, way: str) -> None:
        """Have an env break in this way, the next that can."""
        where, how = way.split()
        new = self._folder / "new"
        new.write_text(how)
        new.replace(self._files[where])

    @property
    def is_pulled(self) -> bool:
        """Whether no env has broken yet, of those that were to."""
        return any(os.access(file, os.F_OK) for file in self._files.values())

    def pulled(self) -> list[Pulled]:
        """What broke so far."""
        found = []
        for path in self._folder.glob("taken-*"):
            where, pid = path.name.split("-")[1:3]
            pulled_at = path.stat().st_mtime
            found.append(Pulled(f"{where} {path.read_text()}", int(pid), pulled_at))
        return found

    def take(self, where: str) -> str:
        """As an env: how to break here; empty where nobody wants that."""
        file = self._files[where]
        if not os.access(file, os.F_OK):
            return ""
        taken = self._folder / f"taken-{where}-{os.getpid()}-{next(_numbers)}"
        try:
            os.rename(file, taken)  # of several that see it, one
        except FileNotFoundError:
            return ""
        os.utime(taken)
        return taken.read_text()

    def break_in(self, where: str) -> bool:
        """As an env: raise or hang here if that is wanted; True: show what is no number."""
        how = self.take(where)
        if how == "raise":
            raise RuntimeError(f"the lever was pulled: broken in {where}")
        if how == "hang":
            time.sleep(1e6)
        return how == "nan"


class Single(gymnasium.Env):
    """One env."""

    observation_space = spaces.Box(0, 1, (SYMBOLS,), np.float32)

    def __init__(self, folder: str = "", *, real: bool = False) -> None:
        """Break by the levers in `folder`."""
        self.action_space = (
            spaces.Box(-1, 1, (1,), np.float32) if real else spaces.Discrete(SYMBOLS)
        )
        self._is_real = real
        self._lever = Lever(folder)
        self._left, self._symbol = 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin an episode."""
        super().reset(seed=seed)
        self._lever.break_in("reset")
        self._left = LENGTH
        return self._show(), {}

    def step(self, action: Any) -> Any:
        """Reward the symbol, show the next."""
        is_nan = self._lever.break_in("step")
        self._left -= 1
        named = _quarter(action[0]) if self._is_real else action
        reward = float(named == self._symbol)
        return self._show(is_nan=is_nan), reward, False, self._left == 0, {}

    def _show(self, *, is_nan: bool = False) -> np.ndarray:
        self._symbol = int(self.np_random.integers(SYMBOLS))
        seen = np.zeros(SYMBOLS, np.float32)
        seen[self._symbol] = np.nan if is_nan else 1
        return seen


class Batch:
    """`E` envs that break together."""

    def __init__(self, request: EnvRequest) -> None:
        self._lever = Lever(request.options["folder"])
        options = {"length": LENGTH, "choices": SYMBOLS}
        self._envs = Identity.make_batch(replace(request, options=options))
        self.spec = self._envs.spec
        self._is_real = request.options.get("real", False)
        if self._is_real:
            box = Box((1,), (-1.0,), (1.0,))
            agents = {name: replace(a, action=box) for name, a in self.spec.agents.items()}
            self.spec = replace(self.spec, agents=agents)

    @classmethod
    def make_batch(cls, request: EnvRequest) -> "Batch":
        """Envs that break by the levers in the option `folder`."""
        return cls(request)

    def reset(self, out: Any) -> None:
        """Begin an episode everywhere."""
        self._envs.reset(out)

    def step(self, actions: Any, outcome: Any, out: Any) -> None:
        """Play one step everywhere."""
        self._lever.break_in("step")
        if self._is_real:
            actions = [_quarter(action[..., 0]) for action in actions]
        self._envs.step(actions, outcome, out)

    def save(self) -> Arrays:
        """Everything."""
        return self._envs.save()

    def load(self, state: Any, seen: Any) -> bool:
        """Everything."""
        return self._envs.load(state, seen)

    def close(self) -> None:
        """Nothing."""


def _quarter(action: Any) -> Any:
    """The symbol that a number from -1 to 1 names."""
    return np.clip((np.asarray(action) + 1) / 2 * SYMBOLS, 0, SYMBOLS - 1).astype(np.int64)


ENVS = {"single": f"{__name__}:{Single.__name__}", "batch": f"{__name__}:{Batch.__name__}"}
"""Kind to the name that a run knows it by."""
