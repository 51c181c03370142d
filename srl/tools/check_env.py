"""srl check-env: does an env keep the contract, how fast is it, and what will a resume bring back?

The contract is `srl.testing.env_contract`; this plays the env, measures it and puts every sentence
of the contract under the name of what it is about. Axes: `E` envs (one, where time is measured).
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from srl import catalog
from srl.core.env import (
    ActionSpace,
    AgentSpec,
    Discrete,
    Env,
    EnvRequest,
    EnvSpec,
    MultiDiscrete,
    Observation,
    agent_sets,
)
from srl.core.errors import ConfigError, SrlError
from srl.core.experiment import EnvConfig, Experiment
from srl.core.masks import heed
from srl.core.names import load_object, nearest
from srl.launch.graph.env_factory import env_spec, make_env
from srl.testing.env_contract import Rows, Run, check_env, fixed_actions
from srl.tools.finding import Finding

MAX_SEEDING_SHARE = 0.05
"""Of an episode's time; above it, seeding only the start is worth what it costs."""

_BUDGET_SECONDS = 1.5
_CONTRACT_SECONDS = 15.0
_CONTRACT_RUNS = 10
"""How often the contract plays its steps, about."""
_LEAST_STEPS, _USUAL_STEPS, _MOST_STEPS = 50, 200, 5000
"""Steps the contract is played for: of slow envs, of short episodes, at most."""
_NUM_ACTIONS = 256
"""Random actions that are drawn, then played in turn."""

_CHECKS = {
    "playing": ("cannot be played",),
    "spec": (
        "spec.num_envs",
        "spec.restores is empty",
        "not a name",
        "category count",
        "see and do alike",
        "truth value a choice",
    ),
    "final observation": ("final observation",),
    "truncation flag": ("must be truncated", "not only terminated"),
    "autoreset": ("'first' must", "'valid' must", "reset step", "episodes together"),
    "finite values": ("finite", "number of categories"),
    "action masks": ("action mask",),
    "reproducible seeding": ("two builds",),
    "independent seeding": ("seeded apart",),
    "save and load": ("save()", "load()"),
    "sets of agents": ("sets of agents",),
}
"""Check to words of the contract's sentences about it; the first that matches has it."""


@dataclass(frozen=True)
class Speed:
    """What one env costs, in seconds, and how its episodes ended under random actions."""

    step: float
    seeded_reset: float
    unseeded_reset: float
    steps: int
    lengths: tuple[int, ...]
    """Steps of every episode that ended."""
    terminated: int
    truncated: int

    @property
    def episode_steps(self) -> float:
        """Mean steps of an episode; where none ended, the steps played."""
        return float(np.mean(self.lengths)) if self.lengths else float(self.steps)

    def share(self, reset: float) -> float:
        """Share of an episode's time that a reset of so many seconds takes."""
        return reset / max(reset + self.episode_steps * self.step, 1e-12)

    @property
    def seeding_share(self) -> float:
        """What seeding adds to a reset, as a share of an episode's time."""
        return self.share(self.seeded_reset) - self.share(self.unseeded_reset)


def find_env(name: str) -> EnvConfig:
    """The env of a name: an experiment's own, or FAMILY/NAME, module:Object, file.py:Object.

    Raises ConfigError where there is none of that name.
    """
    if name in catalog.EXPERIMENTS:
        return load_object(catalog.EXPERIMENTS[name])().env
    if ":" in name:
        return _experiment_env(name, load_object(name)) or EnvConfig(name=name)
    if "/" not in name:
        hint = nearest(name, list(catalog.EXPERIMENTS)) or "."
        raise ConfigError(
            f"there is no experiment {name!r}{hint} An env is FAMILY/NAME with a family of "
            f"{', '.join(catalog.ENVS)}, or module:Object, or file.py:Object"
        )
    return EnvConfig(name=name)


def with_options(config: EnvConfig, arguments: Sequence[str]) -> tuple[EnvConfig, int]:
    """The env with command-line options applied, and the seed; raises ConfigError for a bad one."""
    given: dict[str, list[str]] = {}
    for word in arguments:
        name, equals, value = word.partition("=")
        if word.startswith("--"):
            given[name.replace("_", "-")] = [value] if equals else []
        elif not given:
            raise ConfigError(f"srl check-env takes one name, got {word!r} too")
        else:
            given[list(given)[-1]].append(word)
    wrappers = given.pop("--env.wrappers", list(config.wrappers))
    options = _one(given, "--env.options", config.options)
    reseed = _one(given, "--env.reseed", config.reseed)
    seed = _one(given, "--seed", "0")
    if given:
        known = ("--env.options", "--env.wrappers", "--env.reseed", "--seed")
        name = next(iter(given))
        raise ConfigError(f"unknown option {name}{nearest(name, list(known))}")
    if reseed not in ("episode", "start"):
        raise ConfigError(f"env.reseed must be episode or start, got {reseed!r}")
    if not seed.isdigit():
        raise ConfigError(f"seed must be a number, 0 or above, got {seed!r}")
    changed = replace(config, options=options, wrappers=tuple(wrappers), reseed=reseed)
    return changed, int(seed)


def check(
    config: EnvConfig, *, seed: int = 0, budget_seconds: float = _BUDGET_SECONDS
) -> Iterator[Finding]:
    """Build, play, measure and check the env.

    Raises ConfigError where it cannot be built.
    """
    spec = _spec_of(config)
    yield Finding("ok", "build", _in_words(spec))
    request = EnvRequest(
        name=config.name,
        options=config.keywords(),
        wrappers=config.wrappers,
        num_envs=2,
        seed=seed,
        first_env=0,
        reseed=config.reseed,
        sets=_alike(spec),
    )

    def make(request: EnvRequest) -> Env:
        return make_env(
            replace(config, reseed=request.reseed),
            request.seed,
            num_envs=request.num_envs,
            first_env=request.first_env,
            sets=request.sets,
        )

    try:
        speed = measure(make, request, spec, budget_seconds)
        steps = _steps_for(speed)
        problems = check_env(make, request, steps=steps)
        depends_on_seed = _depends_on_seed(make, request, spec)
    except Exception as error:  # noqa: BLE001 - user code may raise anything; this reports it
        words = str(error) if isinstance(error, SrlError) else f"it raised {error!r}"
        yield Finding("problem", "playing", words)
        return
    unseen = _unseen(speed, spec, steps)
    if not depends_on_seed:
        words = "no seed changes anything: the env is deterministic, or does not use its seed"
        unseen["independent seeding"] = words
    yield from _judge(problems, unseen, steps)
    yield from _doubts(speed)
    yield from _describe(speed, config)
    yield _resume(spec, problems)


def measure(
    make: Callable[[EnvRequest], Env], request: EnvRequest, spec: EnvSpec, budget_seconds: float
) -> Speed:
    """Play one env with random actions for half of the budget, reset it for the other half."""
    one = replace(request, num_envs=1, reseed="episode")
    agents = list(spec.agents.values())
    sets = agent_sets(one, len(agents))
    rows = [Rows.allocate(agents[members[0]], (1, 1, len(members)), 0) for members in sets]
    drawn = [fixed_actions(agent.action, one, _NUM_ACTIONS) for agent in agents]
    shown_to = [agents[members[0]] for members in sets]
    actions = [
        [np.stack([drawn[a][t] for a in members], 1) for members in sets]
        for t in range(_NUM_ACTIONS)
    ]
    with closing(make(one)) as env:
        tally = _play(env, shown_to, actions, rows, budget_seconds / 2)
        seeded = _time_resets(env, rows, budget_seconds / 4)
    with closing(make(replace(one, reseed="start"))) as env:
        unseeded = _time_resets(env, rows, budget_seconds / 4)
    return Speed(
        step=max(tally.seconds, 1e-9) / max(tally.steps, 1),
        seeded_reset=seeded,
        unseeded_reset=unseeded,
        steps=tally.steps,
        lengths=tuple(tally.lengths),
        terminated=tally.terminated,
        truncated=tally.truncated,
    )


@dataclass
class _Tally:
    """What was seen while playing; resets are not steps."""

    steps: int = 0
    seconds: float = 0.0
    lengths: list[int] = field(default_factory=list)
    terminated: int = 0
    truncated: int = 0


def _play(
    env: Env,
    agents: list[AgentSpec],
    actions: list[list[np.ndarray]],
    rows: list[Rows],
    budget_seconds: float,
) -> _Tally:
    """Play for a while; `agents` is what those of each set see and do."""
    seen = [of_set.seen[1] for of_set in rows]
    outcomes = [of_set.outcomes[0] for of_set in rows]
    env.reset(seen)
    tally, length, ends = _Tally(), 0, (False, False)
    until = time.perf_counter() + budget_seconds
    while (began := time.perf_counter()) < until:
        drawn = actions[(tally.steps + len(tally.lengths)) % len(actions)]
        env.step(
            [heed(agent, a, of.obs) for agent, a, of in zip(agents, drawn, seen, strict=True)],
            outcomes,
            seen,
        )
        taken = time.perf_counter() - began
        if seen[0].first.any():  # the step before ended the episode, this one reset the env
            tally.lengths.append(length)
            tally.terminated += ends[0]
            tally.truncated += ends[1]
            length = 0
            continue
        length += 1
        tally.steps += 1
        tally.seconds += taken
        ends = (
            any(outcome.terminated.any() for outcome in outcomes),
            any(outcome.truncated.any() for outcome in outcomes),
        )
    return tally


def _time_resets(env: Env, rows: list[Rows], budget_seconds: float) -> float:
    """Mean seconds of a reset, the first one not counted: it may load things, and it seeds."""
    seen = [of_set.seen[1] for of_set in rows]
    env.reset(seen)
    resets, began = 0, time.perf_counter()
    while resets == 0 or time.perf_counter() - began < budget_seconds:
        env.reset(seen)
        resets += 1
    return (time.perf_counter() - began) / resets


def _judge(problems: Sequence[str], unseen: Mapping[str, str], steps: int) -> Iterator[Finding]:
    """Every check by name: its problems, or that there is none, or why that is not known."""
    by_check: dict[str, list[str]] = {name: [] for name in _CHECKS}
    for problem in problems:
        about = (n for n, words in _CHECKS.items() if any(word in problem for word in words))
        by_check.setdefault(next(about, "contract"), []).append(problem)
    # A broken spec, or an env that cannot be played, ends the contract before all else.
    ended_early = by_check["playing"] or by_check["spec"]
    for name, found in by_check.items():
        if found:
            yield from (Finding("problem", name, problem) for problem in found)
        elif ended_early:
            continue
        elif name in unseen:
            if unseen[name]:
                yield Finding("note", name, unseen[name])
        else:
            yield Finding(
                "ok", name, f"{steps} steps of random actions" if name == "playing" else ""
            )


def _depends_on_seed(make: Callable[[EnvRequest], Env], request: EnvRequest, spec: EnvSpec) -> bool:
    """Whether another seed leads to other observations or rewards."""
    actions = [fixed_actions(agent.action, request, _LEAST_STEPS) for agent in spec.agents.values()]
    run = Run(make, request, actions)
    other = replace(run, request=replace(request, seed=request.seed + 1))
    played = zip(run.play(fill=0), other.play(fill=0), strict=True)
    return any(mine.difference(others) for mine, others in played)


def _unseen(speed: Speed, spec: EnvSpec, steps: int) -> dict[str, str]:
    """Checks that say nothing about this env, and why; empty words where that goes without."""
    unseen = {}
    if not any(agent.action_mask for agent in spec.agents.values()):
        unseen["action masks"] = ""
    if len(spec.agents) == 1:
        unseen["sets of agents"] = ""
    if "not restored" in spec.restores:
        unseen["save and load"] = f"not checked: {spec.restores}"
    if not speed.truncated:
        unseen["truncation flag"] = "not seen: random actions led to no truncated episode"
    if not speed.lengths or max(speed.lengths) >= steps:
        words = f"not surely seen: an episode may be longer than the {steps} steps that were played"
        unseen |= dict.fromkeys(("final observation", "truncation flag", "autoreset"), words)
    return unseen


def _doubts(speed: Speed) -> Iterator[Finding]:
    """What looks wrong, and may be right."""
    if len(speed.lengths) >= 3 and len(set(speed.lengths)) == 1 and not speed.truncated:
        yield Finding(
            "note",
            "truncation flag",
            f"all {len(speed.lengths)} episodes were terminated after {speed.lengths[0]} steps: "
            "if that is a time limit, it must be truncated, not terminated",
        )


def _describe(speed: Speed, config: EnvConfig) -> Iterator[Finding]:
    """Episodes and speed."""
    if speed.lengths:
        words = (
            f"{len(speed.lengths)} ended ({speed.terminated} terminated, {speed.truncated} "
            f"truncated) after {min(speed.lengths)} to {max(speed.lengths)} steps"
        )
    else:
        words = f"none ended within {speed.steps} steps of random actions"
    yield Finding("ok", "episodes", words)
    yield Finding(
        "ok",
        "speed",
        f"one env makes {1 / speed.step:,.0f} steps/s ({_duration(speed.step)} a step); a reset "
        f"takes {_duration(speed.seeded_reset)} seeded, {_duration(speed.unseeded_reset)} unseeded",
    )
    at_most = "" if speed.lengths else "at most "
    share = f"a seeded reset takes {at_most}{speed.share(speed.seeded_reset):.1%} of an episode"
    added = f"seeding adds {max(speed.seeding_share, 0):.1%}"
    if speed.seeding_share <= MAX_SEEDING_SHARE:
        yield Finding("ok", "reset", f"{share}; {added}")
    elif config.reseed == "start":
        yield Finding("ok", "reset", f"{share}; {added}, which --env.reseed start avoids")
    else:
        words = f"{share}; {added} (with random actions): --env.reseed start avoids it, but then "
        yield Finding("note", "reset", words + "episodes are not restored by a resume")


def _resume(spec: EnvSpec, problems: Sequence[str]) -> Finding:
    if any(words in problem for problem in problems for words in _CHECKS["save and load"]):
        return Finding("note", "resume", "nothing can be relied on: save and load are broken")
    words = f"with --launcher inline {spec.restores}; with local, episodes under way begin anew"
    return Finding("note" if "not restored" in spec.restores else "ok", "resume", words)


def _steps_for(speed: Speed) -> int:
    """Steps for the contract: enough for three episodes, as far as time allows."""
    affordable = _CONTRACT_SECONDS / (speed.step * _CONTRACT_RUNS * 2)
    wanted = max(3 * max(speed.lengths, default=_MOST_STEPS), _USUAL_STEPS)
    return int(max(min(wanted, affordable, _MOST_STEPS), _LEAST_STEPS))


def _one(given: dict[str, list[str]], option: str, default: str) -> str:
    values = given.pop(option, [default])
    if len(values) != 1:
        raise ConfigError(f"{option} takes one value, got {len(values)}")
    return values[0]


def _spec_of(config: EnvConfig) -> EnvSpec:
    try:
        return env_spec(config)
    except SrlError:
        raise
    except Exception as error:  # user code may raise anything
        raise ConfigError(f"env {config.name!r} cannot be built: {error!r}") from error


def _experiment_env(name: str, found: Any) -> EnvConfig | None:
    """The env of an experiment, where that is what the object is or returns."""
    if isinstance(found, Experiment):
        return found.env
    if isinstance(found, type) or hasattr(found, "make_batch") or not callable(found):
        return None
    try:
        made: Any = found()
    except TypeError:  # it needs options: it makes an env
        return None
    except Exception as error:  # user code may raise anything
        raise ConfigError(f"calling {name!r} failed: {error!r}") from error
    if isinstance(made, Experiment):
        return made.env
    if hasattr(made, "close"):
        made.close()
    return None


def _alike(spec: EnvSpec) -> tuple[tuple[int, ...], ...]:
    """Sets of agents that see and do alike."""
    members: dict[AgentSpec, list[int]] = {}
    for index, agent in enumerate(spec.agents.values()):
        members.setdefault(agent, []).append(index)
    return tuple(tuple(indices) for indices in members.values())


def _in_words(spec: EnvSpec) -> str:
    agents = list(spec.agents.values())
    first = agents[0]
    number = "one agent" if len(agents) == 1 else f"{len(agents)} agents, the first"
    central = f"; a central critic sees {_shown_in_words(first.central)}" if first.central else ""
    shown = _shown_in_words(first.observations)
    return f"{number} sees {shown} and does {_action_in_words(first.action)}{central}"


def _shown_in_words(observations: Sequence[Observation]) -> str:
    return ", ".join(
        f"{o.name} {o.dtype}{list(o.shape)}" + (f" (the {o.stack} newest)" if o.stack > 1 else "")
        for o in observations
    )


def _action_in_words(action: ActionSpace) -> str:
    match action:
        case Discrete(n):
            return f"one of {n}"
        case MultiDiscrete(nvec):
            return f"one of each {list(nvec)}"
        case _:
            return f"real numbers {list(action.shape)}"


def _duration(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms"
