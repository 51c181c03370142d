"""The contract of `srl.core.env.Env`, checked by playing: for SRL's own envs and for users'.

An env that passes can be put into a graph: rows, masks, seeds and state are what the rest of the
system relies on. Axes: `T` rows played, `E` envs, `A` agents.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np

from srl.core.env import (
    ActionSpace,
    AgentSpec,
    Box,
    Discrete,
    Env,
    EnvRequest,
    ObservationRows,
    OutcomeRows,
    agent_sets,
)
from srl.core.errors import SrlError
from srl.core.masks import heed, mask_problem, nothing_allowed

MakeEnv = Callable[[EnvRequest], Env]
Sets = tuple[tuple[int, ...], ...]


def check_env(make: MakeEnv, request: EnvRequest, *, steps: int = 200) -> list[str]:
    """Play the env and say, a sentence each, where it breaks the contract; empty where nowhere.

    What happens at an episode's end is seen only if one ends within `steps` steps.

    Args:
        make: builds the env: the `make_batch` of a family or of the user's own object.
        request: what to build; two envs at least, for seeding to be compared.
        steps: steps played a run; about ten runs are made.
    """
    try:
        with closing(make(request)) as env:
            problems = list(_spec_problems(env, request))
            agents = list(env.spec.agents.values())
            restores = "not restored" not in env.spec.restores
            max_steps = env.spec.max_steps
            env.close()
        if problems:
            return problems
        run = Run(make, request, [fixed_actions(agent.action, request, steps) for agent in agents])
        played = run.play(fill=0)
        problems += _row_problems(played, agents)
        problems += _limit_problems(played, max_steps)
        problems += _repeat_problems(run, played)
        problems += _seed_problems(run)
        problems += _restore_problems(run, played) if restores else []
        problems += _set_problems(run, played)
    except SrlError as error:
        return [f"it cannot be played: {error}"]
    return problems


@dataclass(frozen=True)
class Played:
    """What one agent saw and got: every array `[T + 1, E, ...]`, outcomes `[T, E]`."""

    obs: dict[str, np.ndarray]
    """What is shown to it, and of its whole env to a central critic."""
    first: np.ndarray
    valid: np.ndarray
    acting: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays by name."""
        masks = {"first": self.first, "valid": self.valid, "acting": self.acting}
        ends = {"terminated": self.terminated, "truncated": self.truncated}
        return self.obs | masks | {"reward": self.reward} | ends

    def difference(self, other: "Played", start: int = 0) -> str | None:
        """The first array, and row of it, that differs from row `start` on; None if none does."""
        for name, mine in self.arrays.items():
            unequal = mine[start:] != other.arrays[name][start:]
            if unequal.any():
                row = start + int(unequal.reshape(len(unequal), -1).any(1).argmax())
                return f"{name!r} differs at row {row}"
        return None

    def of_env(self, e: int) -> "Played":
        """The same, of one env."""
        parts = {name: array[:, [e]] for name, array in self.arrays.items()}
        obs = {name: parts.pop(name) for name in self.obs}
        return Played(obs=obs, **parts)


@dataclass(frozen=True)
class Rows:
    """The rows of one set of agents, `[T + 1, E, A, ...]`, as its actor would hold them."""

    seen: list[ObservationRows]
    outcomes: list[OutcomeRows]

    @staticmethod
    def allocate(agent: AgentSpec, shape: tuple[int, int, int], fill: int) -> "Rows":
        """Rows full of `fill`, so that what an env forgets to write shows."""

        def filled(lead: tuple[int, ...], dtype: str) -> np.ndarray:
            return np.full(lead, fill, dtype)

        lead = shape[1:]
        seen = [
            ObservationRows(
                {o.name: filled(lead + o.shape, o.dtype) for o in agent.observations},
                filled(lead, "bool"),
                filled(lead, "bool"),
                filled(lead, "bool"),
                {o.name: filled((lead[0], *o.shape), o.dtype) for o in agent.central},
            )
            for _ in range(shape[0] + 1)
        ]
        flags = ("float32", "bool", "bool")
        outcomes = [OutcomeRows(*(filled(lead, d) for d in flags)) for _ in range(shape[0])]
        return Rows(seen, outcomes)

    def played_by(self, column: int) -> Played:
        """What the agent in `column` of the set saw and got."""
        outcomes = ("reward", "terminated", "truncated")
        masks = ("first", "valid", "acting")
        return Played(
            obs={
                name: np.stack([row.obs[name][:, column] for row in self.seen])
                for name in self.seen[0].obs
            }
            | {n: np.stack([row.central[n] for row in self.seen]) for n in self.seen[0].central},
            **{m: np.stack([getattr(row, m)[:, column] for row in self.seen]) for m in masks},
            **{o: np.stack([getattr(r, o)[:, column] for r in self.outcomes]) for o in outcomes},
        )


@dataclass(frozen=True)
class Run:
    """How to play: the same actions, whatever is built; where a mask forbids one, the next allowed."""

    make: MakeEnv
    request: EnvRequest
    actions: list[np.ndarray]
    """An agent's actions each, `[T, E, *shape]`."""

    @property
    def sets(self) -> Sets:
        """The sets in which agents are handed over."""
        return agent_sets(self.request, len(self.actions))

    def play(self, fill: int) -> list[Played]:
        """Build, reset, play all actions; what each agent saw and got."""
        with closing(self.make(self.request)) as env:
            rows = self.rows(env, fill)
            env.reset([of_set.seen[0] for of_set in rows])
            self.continue_from(env, rows, 0)
        return self.gather(rows)

    def rows(self, env: Env, fill: int) -> list[Rows]:
        """Rows for every set."""
        agents = list(env.spec.agents.values())
        lead = self.actions[0].shape[:2]
        return [Rows.allocate(agents[s[0]], (*lead, len(s)), fill) for s in self.sets]

    def continue_from(self, env: Env, rows: list[Rows], start: int) -> None:
        """Play the actions from row `start` on."""
        for t in range(start, len(self.actions[0])):
            self.step(env, rows, t)

    def step(self, env: Env, rows: list[Rows], t: int) -> None:
        """Play the actions of row `t`."""
        agents = list(env.spec.agents.values())
        drawn = [np.stack([self.actions[a][t] for a in members], 1) for members in self.sets]
        env.step(
            [
                heed(agents[members[0]], actions, of_set.seen[t].obs)
                for members, actions, of_set in zip(self.sets, drawn, rows, strict=True)
            ],
            [of_set.outcomes[t] for of_set in rows],
            [of_set.seen[t + 1] for of_set in rows],
        )

    def gather(self, rows: list[Rows]) -> list[Played]:
        """What each agent saw and got, in the env's order of agents."""
        columns = [(a, s, c) for s, of in enumerate(self.sets) for c, a in enumerate(of)]
        return [rows[s].played_by(c) for _, s, c in sorted(columns)]


def fixed_actions(space: ActionSpace, request: EnvRequest, steps: int) -> np.ndarray:
    """Actions `[T, E, *shape]`, the same at every call."""
    rng = np.random.default_rng(0)
    lead = (steps, request.num_envs)
    if isinstance(space, Discrete):
        return rng.integers(0, space.n, lead)
    if isinstance(space, Box):
        low, high = np.maximum(space.low, -1), np.minimum(space.high, 1)
        draws = rng.uniform(np.minimum(low, high), high, (*lead, len(space.low)))
        return draws.reshape(*lead, *space.shape).astype(np.float32)
    return rng.integers(0, space.nvec, (*lead, len(space.nvec)))


def _spec_problems(env: Env, request: EnvRequest) -> Iterator[str]:
    spec = env.spec
    if spec.num_envs != request.num_envs:
        yield f"spec.num_envs is {spec.num_envs}, {request.num_envs} were asked for"
    if not spec.restores:
        yield "spec.restores is empty: say in a sentence what save brings back"
    agents = list(spec.agents.values())
    for members in agent_sets(request, len(agents)):
        if any(agents[a] != agents[members[0]] for a in members):
            yield f"agents {members} are in one set, but do not see and do alike"
    for name, agent in spec.agents.items():
        if problem := mask_problem(agent):
            yield f"{problem} (agent {name!r})"
        for o in (*agent.observations, *agent.central):
            if np.dtype(o.dtype).name != o.dtype:
                yield f"observation {o.name!r} of {name!r} has the dtype {o.dtype!r}, not a name"
            if o.categories and len(o.categories) != int(np.prod(o.shape)):
                yield f"observation {o.name!r} of {name!r} needs a category count an element"


def _row_problems(played: Sequence[Played], agents: Sequence[AgentSpec]) -> Iterator[str]:
    """Masks, rewards and values of every row."""
    for number, (agent, rows) in enumerate(zip(agents, played, strict=True)):
        rules = _mask_rules(rows)
        begins = played[0].first
        rules["agents of one env must begin their episodes together"] = rows.first == begins
        if mask := agent.action_mask:
            acts = rows.valid & rows.acting
            none = nothing_allowed(agent.action, rows.obs[mask.name])
            rules["the action mask must allow something where an agent acts"] = ~(acts & none)
        for o in (*agent.observations, *agent.central):
            values = rows.obs[o.name]
            rules[f"observation {o.name!r} must be finite"] = np.isfinite(values)
            if o.categories:
                inside = (values >= 0) & (values < np.reshape(o.categories, o.shape))
                rules[f"observation {o.name!r} must be below its number of categories"] = inside
        for rule, holds in rules.items():
            if not holds.all():
                place = np.argwhere(~holds)[0]
                where = f"env {place[-1]}" if holds.ndim == 1 else f"row {place[0]}, env {place[1]}"
                yield f"{rule}: agent {number}, {where}"
        if _final_is_first(rows):
            yield (
                "the final observation of an episode must be shown before the next one begins: "
                f"all that agent {number} saw at ends are first observations of the next episode"
            )


def _mask_rules(rows: Played) -> dict[str, np.ndarray]:
    """What must hold of an agent's masks and rewards, and where it does: `[T, E]` or `[E]` bool.

    A row that is not valid is either the final observation of an episode, after which the env is
    reset, or belongs to an agent that is out of the game and does not act until the env is reset.
    A terminated row followed by a valid one that begins nothing is a life lost: the game goes on.
    """
    before, after = rows.valid[:-1], rows.valid[1:]
    ended, begins = rows.terminated | rows.truncated, rows.first[1:]
    lost = ended & begins & before
    life_lost = rows.terminated & ~rows.truncated & after & ~begins
    return {
        "'first' must be True on the rows after reset()": rows.first[0],
        "'valid' must be True on the rows after reset()": rows.valid[0],
        "the final observation is lost, the row after an end is the first of the next episode": (
            ~lost
        ),
        "'first' must be True exactly on the row after a reset": (
            np.where(begins, ~before, before | ~rows.acting[:-1]) | lost
        ),
        "'valid' must be False exactly on the row after an end": (
            np.where(before, after == (~ended | life_lost), after == begins) | lost
        ),
        "the reward of a reset step must be 0": (rows.reward == 0) | before,
        "a reset step must be neither terminated nor truncated": ~ended | before,
        "rewards must be finite": np.isfinite(rows.reward),
    }


def _final_is_first(rows: Played) -> bool:
    """Whether every final observation equals the first one after it, though observations vary."""
    ends = np.argwhere(~rows.valid[:-1] & rows.first[1:])
    if len(ends) < 3:  # by chance, where there are few
        return False
    t, e = ends.T
    return all((v[t, e] == v[t + 1, e]).all() for v in rows.obs.values()) and any(
        (v[1:] != v[:-1])[rows.valid[1:] & ~rows.first[1:]].any() for v in rows.obs.values()
    )


def _limit_problems(played: Sequence[Played], max_steps: int | None) -> Iterator[str]:
    """An episode that ends at the env's time limit is truncated, whatever else it is."""
    if max_steps is None:
        return
    for number, rows in enumerate(played):
        length = np.zeros(rows.valid.shape[1], np.int64)
        for t, (terminated, truncated) in enumerate(
            zip(rows.terminated, rows.truncated, strict=True)
        ):
            length = np.where(rows.first[t], 0, length) + rows.valid[t]
            wrong = terminated & ~truncated & (length == max_steps) & ~rows.valid[t + 1]
            if wrong.any():
                yield (
                    f"an episode that ends at its limit of {max_steps} steps must be truncated, "
                    f"not only terminated: agent {number}, row {t}, env {int(wrong.argmax())}"
                )
                return


def _repeat_problems(run: Run, played: list[Played]) -> Iterator[str]:
    """Two builds agree; their rows held different values before, so unwritten ones show."""
    for number, (before, again) in enumerate(zip(played, run.play(fill=1), strict=True)):
        if difference := before.difference(again):
            yield (
                f"two builds with the same seed and actions must agree, and write every row: "
                f"of agent {number}, {difference}"
            )


def _seed_problems(run: Run) -> Iterator[str]:
    """Two envs of a batch, given the same actions, differ; unless nothing here is random."""
    if run.request.num_envs < 2:
        return
    alike = replace(run, actions=[np.repeat(a[:, :1], a.shape[1], 1) for a in run.actions])
    other = replace(alike, request=replace(run.request, seed=run.request.seed + 1))
    played, elsewhere = alike.play(fill=0), other.play(fill=0)
    is_random = any(a.difference(b) for a, b in zip(played, elsewhere, strict=True))
    if is_random and not any(a.of_env(0).difference(a.of_env(1)) for a in played):
        yield "envs 0 and 1 of a batch must be seeded apart: given the same actions they agree"


def _restore_problems(run: Run, played: list[Played]) -> Iterator[str]:
    """A fresh env that loads a state goes on as the saved one did; saving changes nothing."""
    last = len(run.actions[0]) - 1
    ends = np.flatnonzero(~played[0].valid.all(1))
    moments = {0, last // 2, last} | {int(end) for end in ends[:1] if end <= last}
    states: dict[int, dict[str, np.ndarray]] = {}
    with closing(run.make(run.request)) as env:
        rows = run.rows(env, fill=0)
        env.reset([of_set.seen[0] for of_set in rows])
        for t in range(last + 1):
            if t in moments:
                states[t] = {name: array.copy() for name, array in env.save().items()}
            run.step(env, rows, t)
    for before, after in zip(played, run.gather(rows), strict=True):
        if difference := before.difference(after):
            yield f"save() must change nothing: afterwards {difference}"
            return
    for t, state in states.items():
        with closing(run.make(run.request)) as env:
            if not env.load(state, [of_set.seen[t] for of_set in rows]):
                yield f"load() must bring back the state saved at row {t}, as spec.restores says"
                continue
            fresh = run.rows(env, fill=0)
            for mine, before in zip(fresh, rows, strict=True):
                mine.seen[t] = before.seen[t]
            run.continue_from(env, fresh, t)
        for before, after in zip(played, run.gather(fresh), strict=True):
            if difference := before.difference(after, start=t + 1) or _outcome(before, after, t):
                yield f"after load() at row {t} the env must go on as saved: {difference}"


def _outcome(before: Played, after: Played, t: int) -> str | None:
    """How the outcome of row `t` differs; None where it does not."""
    names = ("reward", "terminated", "truncated")
    differs = [n for n in names if (before.arrays[n][t] != after.arrays[n][t]).any()]
    return f"{differs[0]!r} differs at row {t}" if differs else None


def _set_problems(run: Run, played: list[Played]) -> Iterator[str]:
    """Handing agents over one a set gives what handing them over together gave."""
    if len(run.actions) < 2:
        return
    apart = tuple((a,) for a in reversed(range(len(run.actions))))
    again = replace(run, request=replace(run.request, sets=apart)).play(fill=0)
    for number, (before, after) in enumerate(zip(played, again, strict=True)):
        if difference := before.difference(after):
            yield f"sets of agents must not change data: of agent {number}, {difference}"
