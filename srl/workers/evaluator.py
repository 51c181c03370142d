"""The evaluator: plays pinned versions beside the training, keeps their weights, and reports."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from srl.core.arrays import Arrays, subset
from srl.core.streams import ParameterSubscriber
from srl.core.telemetry import EvaluatedVersion, Telemetry
from srl.learning.versions import Version, write_weights
from srl.rollout.match import Match, Player
from srl.rollout.quarantine import Quarantine, Recovery


class Evaluator:
    """One match after another, each of the newest versions and over the same episodes.

    reads: parameters
    writes: weights it has played, in the run folder; what they are worth, in its telemetry
    waits for: a version that is new enough
    unblocked by: trainers
    """

    waiting = "wait_for_version"

    def __init__(
        self,
        name: str,
        recovery: Recovery,
        players: Sequence[Player],
        parameters: Mapping[str, ParameterSubscriber],
        *,
        episodes_per_lane: int,
        every: int,
        folder: Path,
    ) -> None:
        """Evaluate `players`, whose weights come by the `parameters` of the same name.

        By `recovery` their envs are built, and built again where they fail.
        """
        self.name = name
        self.telemetry = Telemetry()
        self._recovery = recovery
        self._players = players
        self._parameters = parameters
        self._episodes_per_lane = episodes_per_lane
        self._every = every
        self._folder = folder
        self._match: Match | None = None
        self._pinned = dict.fromkeys(parameters, -1)
        """Versions that are played, or were played last."""

    def open(self) -> None:
        """Nothing to prepare: the first version may not be there yet."""

    def step(self) -> bool:
        """Play one step; False while there is no version to play."""
        if self._match is None:
            if not self._is_due():
                return False
            self._pin()
        match = self._begun()
        with self.telemetry.time("play"):
            match.step()
        self.telemetry.counters["evaluation_steps"] += 1
        if match.is_done:
            with self.telemetry.time("keep"):
                self._finish(match)
        return True

    def pollables(self) -> Sequence[Any]:
        """Nothing to wait on: a version is a word in memory."""
        return [p for stream in self._parameters.values() for p in stream.pollables()]

    def close(self) -> None:
        """Close the env and leave the streams."""
        self._leave()
        for stream in self._parameters.values():
            stream.close()

    def save(self) -> Arrays:
        """Pinned versions with their weights, the env, and the episodes so far."""
        state: Arrays = {f"pinned.{p}": np.array(v, np.int64) for p, v in self._pinned.items()}
        if self._match is None:
            return state
        state["shape"] = self._shape(self._match)
        state |= {f"match.{name}": array for name, array in self._match.save().items()}
        for player in self._players:
            weights, rest = player.policy.weights(), player.policy.save()
            state |= {f"weights.{player.name}.{k}": np.array(v) for k, v in weights.items()}
            state |= {f"policy.{player.name}.{k}": v for k, v in rest.items()}
        return state

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `save` returned; a match whose envs do not come back starts over."""
        for policy in self._pinned:
            self._pinned[policy] = int(state.get(f"pinned.{policy}", -1))
        if "shape" not in state:
            return
        for player in self._players:
            player.policy.load_weights(subset(state, f"weights.{player.name}."))
            player.policy.load(subset(state, f"policy.{player.name}."))
        match = self._match = self._make_match()
        same = np.array_equal(state["shape"], self._shape(match))
        if not (same and match.load(subset(state, "match."))):
            self.telemetry.counters["evaluations_started_over"] += 1
            self._begin()

    def _is_due(self) -> bool:
        """Whether every policy has a version, and one of them is new enough."""
        latest = {policy: stream.latest() for policy, stream in self._parameters.items()}
        return min(latest.values()) >= 0 and any(
            self._pinned[policy] < 0 or version - self._pinned[policy] >= self._every
            for policy, version in latest.items()
        )

    def _pin(self) -> None:
        """Take over the newest versions and begin their match."""
        with self.telemetry.time("fetch"):
            for player in self._players:
                if player.name in self._parameters:
                    self._pinned[player.name], weights = self._parameters[player.name].fetch()
                    player.policy.load_weights(weights)
        self._begin()

    def _begin(self) -> None:
        """Begin in envs of their own, so that every version plays the same episodes."""
        self._leave()
        with self.telemetry.time("env"):
            self._match = self._make_match()
            self._match.begin()

    def _make_match(self) -> Match:
        env = self._recovery.make(self._recovery.origin(0, 0))
        return Match(
            env,
            self._players,
            episodes_per_lane=self._episodes_per_lane,
            quarantine=Quarantine(self._recovery, self.telemetry, 0, env.spec.num_envs),
        )

    def _finish(self, match: Match) -> None:
        """Keep every policy that counts, and say what it is worth."""
        self._leave()
        players = {player.name: player for player in self._players}
        for policy, returns in match.returns().items():
            self.telemetry.evaluations.append(
                keep_version(self._folder, players[policy], self._pinned[policy], returns)
            )
        self.telemetry.counters["evaluations"] += 1

    def _leave(self) -> None:
        match, self._match = self._match, None
        if match is not None:
            match.env.close()

    def _begun(self) -> Match:
        if self._match is None:
            raise AssertionError(f"{self.name} has no match")
        return self._match

    def _shape(self, match: Match) -> np.ndarray:
        return np.array([match.env.spec.num_envs, self._episodes_per_lane], np.int64)


def keep_version(
    folder: Path, player: Player, version: int, returns: Sequence[float]
) -> EvaluatedVersion:
    """Write the weights that were played, and say what they are worth.

    Where the disk has no room for them, they have no file.
    """
    played = Version(
        policy=player.name,
        version=version,
        eval_return=float(np.mean(returns)),
        eval_std=float(np.std(returns)),
        eval_episodes=len(returns),
    )
    try:
        played = write_weights(folder, played, player.policy.weights())
    except OSError:
        played = replace(played, created=time.time())
    return EvaluatedVersion(**{name: getattr(played, name) for name in EvaluatedVersion._fields})
