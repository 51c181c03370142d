"""srl repro: plays what a repro file holds, and says whether the env fails again as it did."""

import os
import sys
from contextlib import closing
from pathlib import Path

from srl.core.algorithm import Records
from srl.core.block import Block, route_layout
from srl.core.env import AgentSpec, Env
from srl.core.errors import ConfigError, EnvError
from srl.core.repro import Repro
from srl.core.spec import Spec
from srl.core.telemetry import Telemetry
from srl.launch.graph.env_factory import make_env
from srl.workers.watchdog import Hang, Watched, watch

REPRODUCED, NOT_REPRODUCED = 0, 1


def read_repro(path: Path) -> Repro:
    """The repro file at `path`; raises ConfigError where it is none."""
    try:
        return Repro.from_json(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{path} cannot be replayed: {error}") from error


def replay(path: Path, seconds: float | None = None) -> int:
    """Play the file, print what comes of it, and return the exit code.

    A call that takes longer than `seconds` (or what the run allowed) hangs; that ends the process.

    Returns:
        0 where the env failed as the file says, 1 where it did not, or otherwise.

    Raises:
        ConfigError: where the file cannot be read, or the env not be built.
    """
    repro = read_repro(path)
    if seconds is not None and seconds <= 0:
        raise ConfigError(f"--timeout-seconds must be above 0, got {seconds:g}")
    playing = _Playing(repro)

    def on_hang(hang: Hang) -> None:
        _say(hang.stack)
        code = playing.verdict("hang", hang.message)
        sys.stdout.flush()
        os._exit(code)

    watched = Watched("srl repro", playing.telemetry)
    patience = seconds or repro.config.timeout_seconds
    with watch([watched], patience, on_hang, is_alone=True):
        try:
            playing.play()
        except ConfigError:
            raise
        except EnvError as error:
            cause = error.__cause__ or error
            kind = error.faults[0].kind if error.faults else type(cause).__name__
            return playing.verdict(kind, str(error))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's own batch raises anything
            return playing.verdict(type(error).__name__, repr(error))
    _say("not reproduced: it did not fail")
    _say(
        "What an env keeps from one episode to the next, or takes from outside (a clock, another "
        "process), is not in the file."
    )
    return NOT_REPRODUCED


class _Playing:
    """One replay."""

    def __init__(self, repro: Repro) -> None:
        self.telemetry = Telemetry()
        self._repro = repro
        self._played = 0
        """Steps begun; 0 in the reset."""
        self._recorded = 0
        """Steps to play."""

    def play(self) -> None:
        """Build the env, begin the episode, take the actions; raises what the env does."""
        repro, timed = self._repro, self.telemetry.time("env")
        with timed:
            env = make_env(
                repro.config,
                repro.seed,
                num_envs=repro.num_envs,
                first_env=repro.first_env,
                sets=tuple((agent,) for agent in range(len(repro.actions))),
                first_episode=repro.episode,
            )
        with closing(env):
            actions, rows = repro.arrays(env.spec), _rows(env)
            self._recorded = len(actions[0])
            _say(f"the run said: {repro.message}")
            if repro.note:
                _say(f"note: it may not come again: {repro.note}")
            with timed:
                env.reset([block.observation_rows(agent, 0) for agent, block in rows])
            for t in range(self._recorded):
                self._played = t + 1
                with timed:
                    env.step(
                        [taken[t][:, None] for taken in actions],
                        [block.outcome_rows(0) for _, block in rows],
                        [block.observation_rows(agent, 0) for agent, block in rows],
                    )

    def verdict(self, kind: str, message: str) -> int:
        """Say whether this failure is the one of the file; the exit code."""
        _say(f"now: {message}")
        if self._played != self._recorded:
            _say(f"not reproduced: it fails at step {self._played} of {self._recorded}")
            return NOT_REPRODUCED
        if kind != self._repro.kind:
            _say(f"not reproduced: it was {self._repro.kind}, and now is {kind}")
            return NOT_REPRODUCED
        _say(f"reproduced: {kind}")
        return REPRODUCED


def _rows(env: Env) -> list[tuple[AgentSpec, Block]]:
    """A row of each agent, as its env writes it."""
    num_envs = env.spec.num_envs
    rows: list[tuple[AgentSpec, Block]] = []
    for agent in env.spec.agents.values():
        records = Records(Spec((agent.action.field,)))
        layout = route_layout(agent, records, rollout=1, lanes=num_envs, envs=num_envs)
        rows.append((agent, Block.allocate(layout)))
    return rows


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
