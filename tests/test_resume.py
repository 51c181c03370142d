"""Every experiment that exists, interrupted anywhere and resumed, is the run that was not: bit for bit.

Inline, all that happens is a sequence of rounds. Some of them are drawn, Ctrl-C comes in each, and the
run that was resumed is compared with a whole one: every metric, every bit of the last checkpoint. What is
printed with a failure replays it: SRL_RESUME_SEED=N pytest "tests/test_resume.py::...".

New experiments, toys and workloads are covered by their names in the catalogue; envs that cannot be
brought back are named in NOT_RESTORED, with what `srl inspect` says of them.
"""

import os
import random
import signal
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest

import srl
from srl import catalog
from srl.api import find_experiment
from srl.core.errors import ConfigError
from srl.core.experiment import Experiment, Route
from srl.core.names import load_object
from srl.core.replay import ReplayConfig, Replays
from srl.envs.toy import TOYS
from srl.launch.graph.env_factory import env_spec
from srl.launch.inline import InlineLauncher
from srl.launch.inspect import inspect
from srl.tools.bench.workloads import WORKLOADS

HERE = Path(__file__).parent
SEED = int(os.environ.get("SRL_RESUME_SEED", random.SystemRandom().randrange(1_000_000)))
differences = load_object(f"{HERE / 'runs.py'}:differences")

FAMILIES = (
    "gym/FrozenLake-v1",
    "gym/Pendulum-v1",
    "gym/ALE/Pong-v5",
    "gym/MiniGrid-Empty-Random-5x5-v0",
    "atari/breakout",
    "envpool/Pong-v5",
    "pettingzoo/classic.rps_v2",
)
"""Envs without an experiment of their own: some of each family."""
STACKED = f"{HERE / 'stacked.py'}:Stacked"
EXPERIMENTS = tuple(
    dict.fromkeys(
        (
            *catalog.EXPERIMENTS,
            *(f"toy/{name}" for name in TOYS),
            STACKED,
            *(workload.experiment for workload in WORKLOADS.values()),
            *FAMILIES,
            *(f"{path}:experiment" for path in HERE.parent.glob("examples/*/experiment.py")),
        )
    )
)
OPTIONS: dict[str, dict[str, Any]] = {
    "gym/MiniGrid-Empty-Random-5x5-v0": {"env__wrappers": "srl.envs.gym:WithoutText"},
    "pong": {"env__options": '{"max_episode_frames": 60}'},  # some games end
    "pong-appo": {"env__options": '{"max_episode_frames": 60}'},
    "pong-rainbow": {"env__options": '{"max_episode_frames": 60}', "actors__count": 1},
    "pong-apex": {"env__options": '{"max_episode_frames": 60}', "actors__count": 1},
    "atari/breakout": {
        "env__options": '{"max_episode_frames": 60, "life_loss": true, "sticky_actions": 0.25}'
    },
    "gym/ALE/Pong-v5": {"env__options": '{"obs_type": "ram"}'},
    "half-cheetah": {"env__options": '{"max_episode_steps": 25}'},  # of 1000: some end
    "half-cheetah-sac": {"env__options": '{"max_episode_steps": 25}'},
    "half-cheetah-td3": {"env__options": '{"max_episode_steps": 25}'},
    "toy/match": {"env__options": '{"agents": 2, "central": true}'},
    "cartpole-ppg": {"algorithm__auxiliary_every": 3},
}
"""What an experiment needs, or shows more with."""

ROLLOUT, UPDATES, INTERRUPTIONS = 8, 8, 2
SMALL = {
    "launcher": "inline",
    "checkpoint__seconds": 1000.0,
    "evaluation__episodes": 0,
    "algorithm__rollout": ROLLOUT,
    "algorithm__epochs": 2,
    "algorithm__minibatch_size": 24,
}
REMEMBERED = {"algorithm__chunk": 4, "algorithm__memory_size": 8}
"""With a memory, which is refused without."""
REPLAY = {
    "capacity": 192,
    "batch": 4,
    "steps": 2,
    "warm_up": 32,
    "samples_per_insert": 1,
    "saved": True,
}
"""So small that the oldest rows are replaced."""
VARIANTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "normalisers": {
        "algorithm__normalise_observations": True,
        "algorithm__normalise_returns": True,
    },
    "schedules": {
        "algorithm__learning_rate_schedule": "linear",
        "algorithm__clip_schedule": "linear",
    },
    "lstm": {"algorithm__memory": "lstm"},
    "gru with burn-in": {"algorithm__memory": "gru", "algorithm__burn_in": 3},
    "gtrxl with burn-in": {
        "algorithm__memory": "gtrxl",
        "algorithm__memory_length": 3,
        "algorithm__burn_in": 2,
    },
    "evaluator": {"evaluation__count": 1, "evaluation__episodes": 2},
    "two actors, synchronous": {"actors__count": 2, "max_staleness": 0},
    "torch acts, ahead": {"acting": "torch", "max_staleness": 2},
    "rewards scaled and clipped": {"env__scale_rewards": 0.5, "env__clip_rewards": 0.4},
    "everything": {
        "algorithm__memory": "lstm",
        "algorithm__burn_in": 2,
        "algorithm__normalise_observations": True,
        "algorithm__normalise_returns": True,
        "algorithm__learning_rate_schedule": "linear",
        "algorithm__clip_schedule": "linear",
        "actors__count": 2,
        "evaluation__count": 1,
        "evaluation__episodes": 4,
        "evaluation__every": 2,
    },
    "rows in a file, by priorities": {
        "algorithm__replay__storage": "file",
        "algorithm__replay__kind": "prioritised",
    },
    "rows in the order they came": {"algorithm__replay__kind": "fifo"},
    "several policies": {},
    "frozen opponents": {},
    "seeded at start": {"env__reseed": "start"},
    "seeded every episode": {"env__reseed": "episode"},
}
SOON = {
    "normalisers": "toy/target",
    "schedules": "gym/FrozenLake-v1",
    "lstm": "toy/recall",
    "gru with burn-in": "toy/turns",
    "gtrxl with burn-in": "toy/recall",
    "evaluator": "toy/chain",
    "two actors, synchronous": "toy/masked",
    "torch acts, ahead": "toy/identity",
    "rewards scaled and clipped": "acrobot",
    "everything": "cartpole",
    "rows in a file, by priorities": "pendulum-td3",
    "rows in the order they came": "cartpole-dqn",
    "several policies": "toy/mortal",
    "frozen opponents": "toy/match",
    "seeded at start": "cartpole",
    "seeded every episode": "pong",
}
"""Which experiment shows a variant in `make test`; in `make slow` each does."""
LOST = "envs: episodes are not restored: envs are seeded at start only, and begin new ones"
LOST_EVALUATION = "an evaluation under way: a resumed run plays it from its beginning"
NOT_RESTORED = {
    "pong": LOST,
    "pong-appo": LOST,
    "pong-rainbow": LOST,
    "pong-apex": LOST,
    "atari/breakout": LOST,
    "envpool/Pong-v5": LOST,
    "envpool/CartPole-v1": LOST,
    "envpool/HalfCheetah-v5": LOST,
}
"""Native vector envs: they give no state away, and episodes begin without a seed of their own."""
SEEDED_SLOWLY = ("pong", "pong-appo", "pong-rainbow", "pong-apex", "atari/breakout")
"""Of these, those that can begin episodes with seeds: 88 ms a game, which is not their default."""


def lost_by(name: str, variant: str, env: str) -> list[str]:
    """What `srl inspect` must say is lost: nothing, unless it is named here."""
    # toys have a save of their own; any other env is brought back by the seed of its episode
    is_unseeded = variant == "seeded at start" and name != STACKED and "toy/" not in env
    is_seeded = variant == "seeded every episode" and name in SEEDED_SLOWLY
    if is_seeded or (name not in NOT_RESTORED and not is_unseeded):
        return ["nothing is lost"]
    words = NOT_RESTORED.get(name, LOST)
    return [words, LOST_EVALUATION] if "evaluation__count" in VARIANTS[variant] else [words]


@dataclass
class Rounds:
    """Rounds that the inline launcher has played, and those in which Ctrl-C comes."""

    played: int = 0
    interrupted: tuple[int, ...] = ()


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Rounds:
    counted, play = Rounds(), InlineLauncher._round

    def count(launcher: InlineLauncher) -> None:
        play(launcher)
        counted.played += 1
        if counted.played in counted.interrupted:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(InlineLauncher, "_round", count)
    return counted


def small(name: str, variant: str) -> Experiment[Any]:
    """An experiment that learns a few small batches.

    Skips what needs a package that is not here, and variants that the algorithm does not have.
    """
    own = {"seed": SEED % 1000} | SMALL | OPTIONS.get(name, {})
    arguments = arguments_of({k: v for k, v in own.items() if k.startswith("env__")})
    try:
        experiment = find_experiment(name, arguments)
        agents = len(env_spec(experiment.env).agents)
    except ConfigError as error:
        if "pip install" not in str(error):
            raise
        pytest.skip(str(error))
    known = {f"algorithm__{field.name}" for field in fields(experiment.algorithm)}
    if isinstance(experiment.algorithm, Replays):
        own |= {f"algorithm__replay__{option}": value for option, value in REPLAY.items()}
        known |= {f"algorithm__replay__{field.name}" for field in fields(ReplayConfig)}
    wanted = VARIANTS[variant]
    lacking = [k for k in wanted if k.startswith("algorithm__") and k not in known]
    if lacking:
        pytest.skip(f"the algorithm has no {lacking}")
    if wanted.get("algorithm__memory", getattr(experiment.algorithm, "memory", "none")) != "none":
        own |= REMEMBERED
    envs = 2 * experiment.actors.groups
    own = own | {
        "actors__envs": envs,
        "algorithm__batch_size": ROLLOUT * envs * agents,
        "stop__env_steps": UPDATES * ROLLOUT * envs,
    }
    fitting = {k: v for k, v in (own | wanted).items() if k in known or "algorithm__" not in k}
    return find_experiment(name, arguments_of(fitting))


def arguments_of(options: dict[str, Any]) -> list[str]:
    pairs = [(f"--{k.replace('__', '.').replace('_', '-')}", str(v)) for k, v in options.items()]
    return [word for pair in pairs for word in pair]


def with_routes(experiment: Experiment[Any], variant: str, folder: Path) -> Experiment[Any]:
    """A policy an agent; or one for the first agent, which plays against itself, frozen."""
    if variant not in ("several policies", "frozen opponents"):
        return experiment
    names = list(env_spec(experiment.env).agents)
    if len(names) == 1:
        pytest.skip("there is one agent")
    routes = tuple(Route(agents=name, policy=name) for name in names)
    if variant == "frozen opponents":
        source = str(srl.train(experiment, out=str(folder)).folder)
        routes = (routes[0], Route(policy="frozen", frozen=(source, source)))
    batch = ROLLOUT * experiment.actors.envs
    return replace(
        experiment, routes=routes, algorithm=replace(experiment.algorithm, batch_size=batch)
    )


def lost_of(folder: Path) -> list[str]:
    """What `srl inspect` says is not restored."""
    text = inspect(folder).partition("\nnot restored:\n")[2].partition("\nholds:\n")[0]
    return [line.removeprefix("  ") for line in text.splitlines()]


def is_soon(name: str, variant: str) -> bool:
    """Whether a case is part of `make test`; of Atari's games `pong` shows the same there."""
    if variant == "as it is":
        return name not in ("pong-appo", "pong-rainbow", "pong-apex")
    return SOON[variant] == name


CASES = [
    pytest.param(
        name,
        variant,
        id=f"{name.removeprefix(f'{HERE.parent}/')}, {variant}",
        marks=[] if is_soon(name, variant) else [pytest.mark.slow],
    )
    for variant in VARIANTS
    for name in EXPERIMENTS
]


@pytest.mark.parametrize(("name", "variant"), CASES)
def test_run_interrupted_anywhere_and_resumed_is_the_same(
    name: str, variant: str, rounds: Rounds, tmp_path: Path
) -> None:
    experiment = with_routes(small(name, variant), variant, tmp_path / "opponent")
    rounds.played = 0
    whole = srl.train(experiment, out=str(tmp_path / "whole"))
    assert whole.summary["status"] == "completed"
    assert whole.summary["version"] >= UPDATES // 2
    total = rounds.played
    drawn = random.Random(f"{SEED} {name} {variant}").sample(range(1, total), INTERRUPTIONS)
    rounds.played, rounds.interrupted = 0, tuple(drawn)
    print(f"interrupted in rounds {drawn} of {total}: SRL_RESUME_SEED={SEED} replays it")

    resumed = srl.train(experiment, out=str(tmp_path / "run"))
    assert resumed.summary["status"] == "interrupted"
    lost = lost_of(resumed.folder)
    while resumed.summary["status"] == "interrupted":
        resumed = srl.resume(resumed.folder)

    assert resumed.summary["status"] == "completed"
    apart = differences(whole.folder, resumed.folder)
    expected = lost_by(name, variant, experiment.env.name)
    assert lost == expected
    if expected == ["nothing is lost"]:
        assert apart == []
    else:
        assert apart, "it was restored: take it out of NOT_RESTORED"


def test_every_family_of_envs_is_among_them() -> None:
    assert set(catalog.ENVS) <= {name.partition("/")[0] for name in EXPERIMENTS}


def test_every_experiment_that_is_excluded_is_there() -> None:
    assert NOT_RESTORED.keys() <= set(EXPERIMENTS)
