"""Atari 2600 by ale-py's `AtariVectorEnv`: every game it knows, `atari/pong`, stepped by C++ threads.

Preprocessing is that of Mnih et al. (2015): 30 no-ops at most before an episode, an action repeated
for 4 frames, the maximum of the last two of them, 84×84 grey pixels as uint8. A policy is shown the 4
newest such frames `[stack, 84, 84]`, oldest first, zeros before the first of an episode; rows hold
one frame each, copied once, from ale-py's hands into the caller's row. FIRE is pressed at a reset
where the game has it. Rewards are raw: `env.clip_rewards` clips what is learned from.

An episode is a game. With `life_loss` the row that loses a life is `terminated`, so that no value
is bootstrapped over it, but nothing restarts: the row after it is `valid`, not `first`, and its
stack holds frames of the life before. A game that ends is followed by its final observation, a row
that is not `valid`; that tells the two apart.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from srl.core.env import AgentSpec, Discrete, EnvRequest
from srl.core.errors import ConfigError
from srl.core.names import nearest
from srl.envs.native import NativeEnv, Stepped, read_options, stacked_picture

NOT_SOLO = {"combat", "joust", "maze_craze", "warlords"}
"""Games for several players: ale-py brings them, but ends the process when it is asked for one."""


@dataclass(frozen=True, kw_only=True)
class AtariOptions:
    """The options of every game."""

    life_loss: bool = False
    """Flag `terminated` where a life is lost; the game goes on."""
    stack: int = 4
    """Frames that a policy is shown together."""
    frameskip: int = 4
    """Frames an action is repeated for."""
    noops: int = 30
    """The most no-ops before an episode; their number is random."""
    full_action_space: bool = False
    """All 18 actions instead of those the game uses."""
    sticky_actions: float = 0.0
    """Probability, a frame, that the action before is repeated (Machado et al. 2018: 0.25)."""
    max_episode_frames: int = 108_000
    """Frames, of those an agent acts on, after which a game is truncated."""
    num_threads: int = 1
    """C++ threads of a batch; 0: one a core."""

    def __post_init__(self) -> None:
        """Refuse what cannot be played."""
        least = {"stack": 1, "frameskip": 1, "noops": 0, "max_episode_frames": 1, "num_threads": 0}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise ConfigError(f"Atari: {name} is {getattr(self, name)}, must be at least {low}")
        if not 0 <= self.sticky_actions <= 1:
            raise ConfigError(f"Atari: sticky_actions is {self.sticky_actions}, not a probability")


class AtariFamily:
    """Builds batches of Atari games by name."""

    @staticmethod
    def make_batch(request: EnvRequest) -> NativeEnv:
        """Build `request.name`, a game as ale-py spells it: `pong`, `ms_pacman`."""
        options = read_options(AtariOptions, request)
        games = _AtariVector(request, options)
        picture = stacked_picture("obs", options.stack, (84, 84))
        agent = AgentSpec((picture,), Discrete(games.num_actions))
        max_steps = -(-options.max_episode_frames // options.frameskip)
        return NativeEnv(games, agent, request, max_steps=max_steps)


class _AtariVector:
    """All games of a batch; implements `srl.envs.native.Vector` and `Reseeds`."""

    def __init__(self, request: EnvRequest, options: AtariOptions) -> None:
        try:
            from ale_py import roms  # pyright: ignore[reportMissingImports] - an optional extra
            from ale_py.vector_env import (  # pyright: ignore[reportMissingImports]
                AtariVectorEnv,
            )
        except ImportError as error:
            raise ConfigError(
                "Atari envs need ale-py: pip install 'really-scalable-rl[atari]'"
            ) from error
        games = sorted(set(roms.get_all_rom_ids()) - NOT_SOLO)
        if request.name not in games:
            hint = nearest(request.name.lower(), games) or f": there are {', '.join(games)}"
            raise ConfigError(f"there is no Atari game {request.name!r}{hint}")
        self._envs: Any = AtariVectorEnv(
            request.name,
            request.num_envs,
            num_threads=options.num_threads,
            max_num_frames_per_episode=options.max_episode_frames,
            repeat_action_probability=options.sticky_actions,
            full_action_space=options.full_action_space,
            stack_num=1,
            frameskip=options.frameskip,
            noop_max=options.noops,
            reward_clipping=False,
            # Both of ale-py's own ways lose something: one restarts the game, the other does not
            # tell a lost life from a lost game. Lives are counted here.
            episodic_life=False,
            life_loss_info=False,
        )
        self.num_actions = int(self._envs.single_action_space.n)
        self._life_loss = options.life_loss
        self._lives = np.zeros(request.num_envs, np.int32)

    def start(self, seeds: np.ndarray) -> Mapping[str, np.ndarray]:
        """Begin a game in all envs, each seeded."""
        obs, info = self._envs.reset(seed=seeds)
        self._lives = info["lives"]
        return {"obs": obs[:, 0]}

    def restart(self, which: np.ndarray, seeds: np.ndarray) -> Mapping[str, np.ndarray]:
        """Begin a game in some envs, each seeded."""
        obs, info = self._envs.reset(seed=seeds, options={"reset_mask": which})
        self._lives = np.where(which, info["lives"], self._lives)
        return {"obs": obs[:, 0]}

    def step(self, actions: np.ndarray) -> Stepped:
        """Play a step in every game; one that is over begins again instead."""
        obs, reward, terminated, truncated, info = self._envs.step(np.ascontiguousarray(actions))
        over, lives = terminated | truncated, info["lives"]
        if self._life_loss:
            # Some games stay at 0 lives for a while before they are over (as in OpenAI Baselines).
            terminated = terminated | ((lives < self._lives) & (lives > 0))
        self._lives = lives
        return Stepped({"obs": obs[:, 0]}, reward, terminated, truncated, over)

    def close(self) -> None:
        """End the threads."""
        self._envs.close()
        self._envs = None
