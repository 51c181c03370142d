"""The repro file of an env that failed: what `srl repro` needs to make it fail again. Plain JSON."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from srl.core.env import EnvSpec
from srl.core.errors import ConfigError
from srl.core.experiment import EnvConfig
from srl.core.fault import EnvFault

FORMAT = 1
MAX_NUMBERS = 200_000
"""Numbers of all actions that a file holds at most: of longer episodes, the last ones."""


@dataclass(frozen=True, kw_only=True)
class EnvOrigin:
    """How a batch of envs was built."""

    config: EnvConfig
    seed: int
    first_env: int
    """Number, in the run, of its first env."""


@dataclass(frozen=True, kw_only=True)
class Repro:
    """An env, or a whole batch, and what it was told from its reset on until it failed."""

    config: EnvConfig
    is_batch: bool
    """It failed as a whole; else it was one of a batch."""
    num_envs: int
    seed: int
    """Of the request that it was built with."""
    first_env: int
    episode: int
    kind: str
    what: str
    message: str
    reset_seed: int
    """What the env was last seeded with; for people, it follows from the others."""
    step: int
    actions: dict[str, Any]
    """Agent, in the env's order, to its actions `[T, num_envs, ...]`, nested lists."""
    note: str
    """Why it may not fail again; empty where its seed and its actions are all there is."""

    @classmethod
    def of(cls, fault: EnvFault, origin: EnvOrigin, spec: EnvSpec) -> "Repro":
        """The file of a fault of an env of that origin."""
        taken = list(fault.actions.values())
        numbers = sum(actions.size for actions in taken)
        keep = fault.step if numbers <= MAX_NUMBERS else MAX_NUMBERS * fault.step // numbers
        cut = f"only the last {keep} of {fault.step} actions are here" if keep < fault.step else ""
        is_batch = fault.env is None
        return cls(
            config=origin.config,
            is_batch=is_batch,
            num_envs=spec.num_envs if is_batch else 1,
            seed=origin.seed,
            first_env=origin.first_env + (fault.env or 0),
            episode=fault.episode,
            kind=fault.kind,
            what=fault.what,
            message=fault.message,
            reset_seed=fault.seed,
            step=fault.step,
            actions={
                agent: actions[len(actions) - keep :].tolist()
                for agent, actions in zip(spec.agents, taken, strict=True)
            },
            note="; ".join(filter(None, (fault.note, cut))),
        )

    @property
    def name(self) -> str:
        """What the file is called."""
        if self.is_batch:
            last = self.first_env + self.num_envs - 1
            return f"repro-envs-{self.first_env}-{last}-seed-{self.seed}.json"
        return f"repro-env-{self.first_env}-episode-{self.episode}.json"

    def to_json(self) -> str:
        """The text of the file."""
        data = asdict(self)
        data["env"] = data.pop("config")
        return json.dumps({"format": FORMAT, **data}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Repro":
        """What `to_json` wrote; raises ConfigError where the text is anything else."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"it is not JSON ({error})") from error
        if not isinstance(data, dict) or "format" not in data:
            raise ConfigError("it is no repro file: it has no format")
        if data["format"] != FORMAT:
            raise ConfigError(f"its format is {data['format']!r}, this version reads {FORMAT}")
        kinds: dict[str, type] = {
            "env": dict,
            "actions": dict,
            "is_batch": bool,
            **dict.fromkeys(("kind", "what", "message", "note"), str),
            **dict.fromkeys(
                ("num_envs", "seed", "first_env", "episode", "reset_seed", "step"), int
            ),
        }
        for name, kind in kinds.items():
            if type(data.get(name)) is not kind:
                raise ConfigError(f"{name!r} must be of type {kind.__name__}")
        if data["num_envs"] < 1 or min(data["seed"], data["first_env"], data["episode"]) < 0:
            raise ConfigError("num_envs, seed, first_env and episode must not be negative")
        fields = {name: data[name] for name in kinds if name != "env"}
        return cls(config=_config(data["env"]), **fields)

    def arrays(self, spec: EnvSpec) -> list[np.ndarray]:
        """Each agent's actions, `[T, num_envs, *shape]`; raises ConfigError where they do not fit."""
        if list(self.actions) != list(spec.agents):
            raise ConfigError(f"it has actions of {list(self.actions)}, not of {list(spec.agents)}")
        arrays = []
        for name, agent in spec.agents.items():
            field = agent.action.field
            try:
                actions = np.array(self.actions[name], field.dtype)
                arrays.append(actions.reshape(-1, self.num_envs, *field.shape))
            except (ValueError, TypeError, OverflowError) as error:
                raise ConfigError(f"the actions of {name!r} do not fit: {error}") from error
        if len({len(array) for array in arrays}) > 1:
            raise ConfigError("the agents have different numbers of actions")
        return arrays


def _config(data: Mapping[str, Any]) -> EnvConfig:
    if not isinstance(data.get("wrappers", []), list):
        raise ConfigError("'wrappers' must be a list")
    try:
        return EnvConfig(**{**data, "wrappers": tuple(data.get("wrappers", ()))})
    except TypeError as error:
        raise ConfigError(f"'env' is not that of an experiment: {error}") from error
