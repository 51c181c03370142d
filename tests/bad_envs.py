"""Envs that are broken on purpose.

`Faulty` goes wrong in a chosen way after a chosen number of steps. `Failing` does so in chosen
episodes, as a function of seed and actions alone; `Breaking` is a batch that does. `BROKEN` are envs that break the
contract, each in one way, and what must be said about each.
"""

import re
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from srl.algorithms.ppo import PPOConfig
from srl.core.env import AgentSpec, Discrete, EnvRequest, EnvSpec, Observation, episode_seed
from srl.core.experiment import ActorsConfig, EnvConfig, Experiment, StopConfig
from srl.envs.toy import Identity


class Faulty(gymnasium.Env):
    """Shows noise; each episode has ten steps. `fault` happens once `after` steps are done."""

    observation_space = spaces.Box(-10, 10, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, fault: str = "none", after: int = 0) -> None:
        self._fault = fault
        self._after = after
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        second = episode_seed(0, 1_000_000, 1)  # of the first env of every evaluation
        if self._is_due("reset") or (self._fault == "evaluation" and seed == second):
            raise RuntimeError("the simulator is on fire")
        self._left = 10
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        self._left -= 1
        if self._is_due("step"):
            raise RuntimeError("the simulator is on fire")
        if self._is_due("exit"):
            raise SystemExit(0)
        reward = float("nan") if self._is_due("reward") else 1.0
        return self._observation(), reward, False, self._left == 0, {}

    def _observation(self) -> Any:
        observation = self.np_random.standard_normal(3).clip(-10, 10).astype(np.float32)
        if self._is_due("nan"):
            observation[1] = np.nan
        if self._is_due("shape"):
            return observation[:2]
        return observation.astype(np.float64) if self._is_due("dtype") else observation

    def _is_due(self, fault: str) -> bool:
        return fault == self._fault and self._steps >= self._after


class Failing(gymnasium.Env):
    """Shows [step, episode since it was built], or, if it `counts` none, 0; has `length` steps.

    In episodes whose seed is one `of`, or a multiple of `every`, it fails in its step `at` (0: in the
    reset); `how` says in which way.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(
        self,
        of: tuple[int, ...] = (),
        every: int = 0,
        at: int = 2,
        how: str = "raise",
        length: int = 4,
        counts: bool = True,
    ) -> None:
        self._counts = counts
        self._of, self._every, self._at, self._how, self._length = of, every, at, how, length
        self._episode = -1
        self._fails = False
        self.is_closed = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self._fails = seed in self._of or (self._every > 0 and seed % self._every == 0)
        self._count, self._episode = 0, self._episode + self._counts
        self._fail()
        return np.array([0, self._episode], np.float32), {}

    def step(self, action: Any) -> Any:
        self._count += 1
        self._fail()
        is_nan = self._is_due and self._how == "nan"
        seen = np.array([np.nan if is_nan else self._count, self._episode], np.float32)
        reward = float("inf") if self._is_due and self._how == "reward" else float(self._count)
        return seen, reward, self._count == self._length, False, {}

    def close(self) -> None:
        self.is_closed = True

    @property
    def _is_due(self) -> bool:
        return self._fails and self._count == self._at

    def _fail(self) -> None:
        if self._is_due and self._how == "raise":
            raise RuntimeError("out of fuel")
        if self._is_due and self._how == "hang":
            time.sleep(1000)
        if self._is_due and self._how == "hold":  # the interpreter: no other thread runs
            re.match(r"(a+)+$", "a" * 60 + "b")


class Parent(Failing):
    """Has a process of its own, as simulators do; its pid is a file in `folder`."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._child = subprocess.Popen(["sleep", "600"])
        (Path(folder) / str(self._child.pid)).touch()

    def close(self) -> None:
        self._child.kill()
        self._child.wait(10)


class Breaking:
    """A batch of the toy Identity that raises in its step `at`, counted from when it was built."""

    def __init__(self, request: EnvRequest) -> None:
        self._at = request.options.get("at", 70)
        self._env = Identity.make_batch(replace(request, options={}))
        self.spec = self._env.spec
        self.request = request
        self.steps = 0

    @classmethod
    def make_batch(cls, request: EnvRequest) -> "Breaking":
        return cls(request)

    def reset(self, out: Any) -> None:
        self._env.reset(out)

    def step(self, actions: Any, outcome: Any, out: Any) -> None:
        self.steps += 1
        if self.steps == self._at:
            raise RuntimeError("the batch fell over")
        self._env.step(actions, outcome, out)

    def save(self) -> dict[str, np.ndarray]:
        return {**self._env.save(), "steps": np.array(self.steps)}

    def load(self, state: Any, seen: Any) -> bool:
        self.steps = int(state["steps"])
        return self._env.load(state, seen)

    def close(self) -> None:
        pass


def experiment() -> Experiment[PPOConfig]:
    """Faulty, a few thousand steps of it."""
    return Experiment(
        name="faulty",
        env=EnvConfig(name=f"{__file__}:Faulty"),
        algorithm=PPOConfig(rollout=8, batch_size=64, epochs=1, hidden=(8,)),
        actors=ActorsConfig(count=1, envs=8, groups=1),
        stop=StopConfig(env_steps=4000),
    )


class Walk(gymnasium.Env):
    """A random walk from 0, over after 6 steps; one thing about it may be wrong."""

    observation_space = spaces.Box(-9, 9, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, fault: str = "") -> None:
        self.fault = fault

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.count, self.place = 0, np.zeros(1, np.float32)
        return self.place.copy(), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        self.place += self.np_random.normal(size=1).astype(np.float32)
        ended, place = self.count == 6, self.place.copy()
        if self.fault == "dtype" and self.count == 3:
            place = place.astype(np.float64)
        if self.fault == "nan" and self.count == 3:
            place[:] = np.nan
        if self.fault == "resets itself" and ended:
            place = np.zeros(1, np.float32)
        return place, 0.0, ended, False, {}


class Guarded(gymnasium.Wrapper):
    """A Walk with an action mask; `none` after 3 steps, or of the wrong `size`."""

    def __init__(self, fault: str = "", size: int = 2) -> None:
        super().__init__(Walk())
        self.fault, self.size = fault, size
        mask = spaces.MultiBinary(size)
        self.observation_space = spaces.Dict({"place": Walk.observation_space, "action_mask": mask})

    def reset(self, **kwargs: Any) -> Any:
        place, info = self.env.reset(**kwargs)
        return self._seen(place), info

    def step(self, action: int) -> Any:
        assert self.shown[action], "an action was forbidden"
        place, *outcome = self.env.step(action)
        return self._seen(place), *outcome

    def _seen(self, place: Any) -> dict[str, Any]:
        self.shown = np.zeros(self.size, np.int8)
        count = self.unwrapped.count
        if (count < 3 or self.fault != "none") and count < 6:  # an end needs no action
            self.shown[self.np_random.integers(self.size)] = 1
        return {"place": place, "action_mask": self.shown}


class AllEndsTerminate(gymnasium.Wrapper):
    """The wrapper of an older API: it knows one kind of end."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated or truncated, False, info


def limited(fault: str = "") -> gymnasium.Env:
    """Pendulum with a limit of 8 steps, which is flagged as told."""
    env = gymnasium.make("Pendulum-v1", max_episode_steps=8)
    return AllEndsTerminate(env) if fault == "terminates" else env


class Batch:
    """A walk a lane with an action mask; one thing about it may be wrong."""

    def __init__(self, request: EnvRequest) -> None:
        shown = (Observation("obs", (1,), "float32"), Observation("action_mask", (2,), "bool"))
        agent = AgentSpec(shown, Discrete(2))
        self.spec = EnvSpec("batch", request.num_envs, {"agent_0": agent}, "not restored")
        self.fault, self.request = request.options.get("fault", ""), request

    @classmethod
    def make_batch(cls, request: EnvRequest) -> "Batch":
        return cls(request)

    def reset(self, out: Any) -> None:
        request, envs = self.request, range(self.request.num_envs)
        is_shared = self.fault == "shared seed"
        seeds = [request.seed + (0 if is_shared else request.first_env + e) for e in envs]
        self.rngs = [np.random.default_rng(seed) for seed in seeds]
        self.count = 0
        self._show(out[0], first=True)

    def step(self, actions: Any, outcome: Any, out: Any) -> None:
        self.count += 1
        same_step = self.fault == "same step"
        ends = self.count == 6
        outcome[0].reward[:] = 0
        outcome[0].terminated[:] = ends
        outcome[0].truncated[:] = False
        if self.count == 7:
            self.count = 0
        first = self.count == 0
        if ends and same_step:
            self.count, first = 0, True
        self._show(out[0], first=first)
        out[0].valid[:] = same_step or not ends

    def _show(self, rows: Any, first: bool) -> None:
        rows.obs["obs"][:, 0, 0] = [rng.normal() for rng in self.rngs]
        rows.obs["action_mask"][:] = self.fault != "mask" or self.count != 3
        rows.first[:] = first
        rows.valid[:] = True
        rows.acting[:] = True

    def save(self) -> dict[str, np.ndarray]:
        return {}

    def load(self, state: Any, seen: Any) -> bool:
        return False

    def close(self) -> None:
        pass


BROKEN = {
    "wrong dtype": ("Walk", "dtype", "observation 'obs' is float64[1], its space Box"),
    "NaN": ("Walk", "nan", "showed 'obs' with a value that is not finite"),
    "lost final observation": (
        "Walk",
        "resets itself",
        "the final observation of an episode must be shown",
    ),
    "final observation lost by the batch": ("Batch", "same step", "the final observation is lost"),
    "shared seed": ("Batch", "shared seed", "envs 0 and 1 of a batch must be seeded apart"),
    "truncation flagged as termination": (
        "limited",
        "terminates",
        "at its limit of 8 steps must be truncated, not only terminated",
    ),
    "all-false mask": ("Guarded", "none", "showed 'obs.action_mask': every action is masked out"),
    "all-false mask of the batch": (
        "Batch",
        "mask",
        "the action mask must allow something where an agent acts",
    ),
}
"""What is wrong: the env of this file, its fault, and the sentence."""
