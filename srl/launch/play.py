"""Plays a policy for people: one env, an episode after the other, drawn where that is asked for."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from srl.core.compute import Compute
from srl.core.env import Renders
from srl.core.errors import ConfigError
from srl.core.experiment import Experiment
from srl.core.telemetry import Telemetry
from srl.launch.evaluate import limited_threads
from srl.launch.graph.env_factory import evaluation_env
from srl.launch.graph.plan import Plan
from srl.rollout.match import Match, Player

FRAMES_PER_SECOND = 30.0
"""Of a film of an env that does not say."""

Frames = Callable[[np.ndarray], None]


@dataclass(frozen=True)
class PlayedEpisode:
    """One episode of the env."""

    number: int
    """Counted from 1."""
    returns: dict[str, float]
    """Agent to its raw return."""
    length: int

    def __str__(self) -> str:
        mean = sum(self.returns.values()) / len(self.returns)
        each = ", ".join(f"{agent} {value:g}" for agent, value in self.returns.items())
        several = f" ({each})" if len(self.returns) > 1 else ""
        return f"episode {self.number}: return {mean:g}{several}, {self.length} steps"


def play(
    experiment: Experiment[Any],
    plan: Plan,
    players: Sequence[Player],
    *,
    episodes: int,
    seed: int,
    sampled: bool,
    open_film: Callable[[float], Frames] | None = None,
    telemetry: Telemetry | None = None,
) -> Iterator[PlayedEpisode]:
    """Play, and yield every episode when it is over.

    Args:
        experiment: whose env and algorithm.
        plan: its plan.
        players: who plays.
        episodes: how many.
        seed: of the env, and of actions that are sampled.
        sampled: sample actions, instead of taking the most likely.
        open_film: given the frames a second, returns what takes the frames: one of the beginning
            of each episode, and one after each of its steps.
        telemetry: where the time of every step is counted, as `play`.

    Raises:
        ConfigError: where the env draws no pictures.
        EnvError: where the env does.
    """
    telemetry = telemetry or Telemetry()
    sets = tuple(route.agents for route in plan.routes)
    films = open_film is not None
    env = evaluation_env(experiment.env, seed, 1, sets, render=films)
    try:
        if films and not isinstance(env, Renders):
            raise ConfigError(
                f"env {experiment.env.name!r} draws no pictures: play it without --video, or give "
                "it a render(env) -> [H, W, 3] uint8"
            )
        match = Match(
            env,
            [_seeded(experiment, player, seed) for player in players],
            episodes_per_lane=episodes,
            sampled=sampled,
        )
        playing = telemetry.time("play")
        with playing:
            match.begin()
        show: Callable[[], None] = lambda: None  # noqa: E731
        if open_film is not None and isinstance(env, Renders):
            add = open_film(float(getattr(env, "frames_per_second", None) or FRAMES_PER_SECOND))
            show = lambda: add(env.render(0))  # noqa: E731
        show()
        names, number = list(env.spec.agents), 0
        with limited_threads(experiment.threads):
            while True:
                with playing:
                    moved = match.step()
                if not moved:
                    break
                show()
                played = _episodes_of(match, players)
                while number < min(len(lane) for lane in played.values()):
                    of = {agent: lane[number] for agent, lane in sorted(played.items())}
                    number += 1
                    yield PlayedEpisode(
                        number,
                        {names[agent]: episode.agent_return for agent, episode in of.items()},
                        max(episode.length for episode in of.values()),
                    )
    finally:
        env.close()


def _episodes_of(match: Match, players: Sequence[Player]) -> dict[int, list[Any]]:
    """Agent that counts to its episodes."""
    found = match.episodes()
    return {
        agent: found[player.name][column]
        for player in players
        if player.counts
        for column, agent in enumerate(player.agents)
    }


def _seeded(experiment: Experiment[Any], player: Player, seed: int) -> Player:
    """The player with random numbers of its own."""
    if not player.counts:
        return player
    policy = experiment.algorithm.make_policy(player.agent, seed=seed, compute=Compute())
    policy.load_weights(player.policy.weights())
    return replace(player, policy=policy)
