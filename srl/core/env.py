"""The environment protocol: `E` environments of `A` agents each, stepped together.

An env writes into arrays its caller owns; it never allocates a row. Episode ends follow
Gymnasium's NEXT_STEP autoreset: the step after an end ignores its action, resets, and reports
reward 0. The final observation is therefore a row of its own, with `valid` False.

Agents are handed over in *sets*, one a route: `out[s]` holds the rows of the agents of set `s`.
An env with one set sees all of its agents in `out[0]`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from srl.core.errors import ConfigError
from srl.core.fault import EnvFault
from srl.core.spec import Field, Spec

MASK_NAME = "action_mask"


@dataclass(frozen=True)
class Discrete:
    """One choice of `n`; an action is `[] int64`, counted from 0."""

    n: int
    start: int = 0
    """What the env itself counts from."""

    @property
    def field(self) -> Field:
        """How the action lies in a row."""
        return Field("action", (), "int64")


@dataclass(frozen=True)
class MultiDiscrete:
    """Several independent choices; an action is `[len(nvec)] int64`, counted from 0."""

    nvec: tuple[int, ...]
    start: tuple[int, ...] = ()
    """What the env itself counts from; empty: 0."""
    shape: tuple[int, ...] = ()
    """Shape of the env's own actions; empty: flat."""

    @property
    def field(self) -> Field:
        """How the action lies in a row."""
        return Field("action", (len(self.nvec),), "int64")


@dataclass(frozen=True)
class Box:
    """Real numbers; an action is `[*shape] float32`. Env adapters clip to `low` and `high`."""

    shape: tuple[int, ...]
    low: tuple[float, ...]
    """Lower bounds, flattened; may be -inf."""
    high: tuple[float, ...]
    """Upper bounds, flattened; may be inf."""

    @property
    def field(self) -> Field:
        """How the action lies in a row."""
        return Field("action", self.shape, "float32")


ActionSpace = Discrete | MultiDiscrete | Box


@dataclass(frozen=True)
class Observation:
    """One named part of what an agent sees."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    categories: tuple[int, ...] = ()
    """For categorical values, the number of values of each element, flattened; else empty."""
    path: tuple[str | int, ...] = ()
    """Keys that lead to it in what the env itself returns."""
    start: tuple[int, ...] = ()
    """What the env itself counts categorical values from, flattened; empty: 0."""
    stack: int = 1
    """Newest rows that a policy is shown together, oldest first, zeros before an episode's first
    one; the env writes one row at a time."""

    @property
    def seen_shape(self) -> tuple[int, ...]:
        """Shape of what a policy is shown."""
        return self.shape if self.stack == 1 else (self.stack, *self.shape)


@dataclass(frozen=True)
class AgentSpec:
    """What an agent sees and does."""

    observations: tuple[Observation, ...]
    action: ActionSpace
    central: tuple[Observation, ...] = ()
    """Of the whole env, once for all of its agents: for a critic, never for an actor."""

    def to_dict(self) -> dict[str, Any]:
        """A plain form, for messages."""
        kind = type(self.action).__name__
        return {
            "observations": [asdict(o) for o in self.observations],
            "action": {"kind": kind, **asdict(self.action)},
            "central": [asdict(o) for o in self.central],
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> "AgentSpec":
        """The AgentSpec that `to_dict` wrote."""
        options = {k: _tuples(v) for k, v in data["action"].items() if k != "kind"}
        kind = {"Discrete": Discrete, "MultiDiscrete": MultiDiscrete, "Box": Box}
        observations, central = (
            tuple(Observation(**{k: _tuples(v) for k, v in o.items()}) for o in data[part])
            for part in ("observations", "central")
        )
        return AgentSpec(observations, kind[data["action"]["kind"]](**options), central)

    @property
    def observation_spec(self) -> Spec:
        """The observation fields of a row."""
        seen = [Field(o.name, o.shape, o.dtype, stack=o.stack) for o in self.observations]
        return Spec((*seen, *(Field(o.name, o.shape, o.dtype, "env") for o in self.central)))

    @property
    def observation_names(self) -> tuple[str, ...]:
        """Names of the observation fields, those of the whole env included."""
        return tuple(o.name for o in (*self.observations, *self.central))

    @property
    def action_mask(self) -> Observation | None:
        """The observation that says which actions are allowed; None where all always are.

        It is the one called `action_mask`, by itself or as the last key of its path, with one
        truth value for each choice: `[n]` for Discrete, `[sum(nvec)]` for MultiDiscrete.
        """
        for seen in self.observations:
            if MASK_NAME in (seen.name, *seen.path[-1:]):
                return seen
        return None


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list | tuple) else value


@dataclass(frozen=True)
class EnvSpec:
    """The shape of an env: how many, whose agents, what they see and do."""

    name: str
    num_envs: int
    agents: Mapping[str, AgentSpec]
    """Agent name to what it sees and does, in lane order."""
    restores: str
    """What `save` can bring back, in one sentence for the checkpoint's contract."""
    max_steps: int | None = None
    """Steps after which an episode is truncated; None where that is not known."""


@dataclass(frozen=True, slots=True)
class ObservationRows:
    """What an env writes before an action; every array `[E, A, ...]`."""

    obs: dict[str, np.ndarray]
    first: np.ndarray
    """bool: the first observation of an episode."""
    valid: np.ndarray
    """bool: acting on this row is a real transition (False on the final observation)."""
    acting: np.ndarray
    """bool: the agent acts at this row; one that waits is rewarded for what it did before."""
    central: dict[str, np.ndarray] = field(default_factory=dict)
    """What the whole env shows to a central critic, `[E, ...]`."""


@dataclass(frozen=True, slots=True)
class OutcomeRows:
    """What an env writes after an action; every array `[E, A]`."""

    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


@dataclass(frozen=True, kw_only=True)
class EnvRequest:
    """Everything an env factory is told."""

    name: str
    """What follows the family in the env's name: `CartPole-v1` of `gym/CartPole-v1`."""
    options: Mapping[str, Any]
    wrappers: tuple[str, ...]
    num_envs: int
    seed: int
    first_env: int
    """Number, in the whole run, of env 0 here: seeds and error messages use run-wide numbers."""
    reseed: Literal["episode", "start"]
    sets: tuple[tuple[int, ...], ...] | None = None
    """Agent indices of each route's set; None: one set of all agents."""
    render: bool = False
    """Be ready to draw (`Renders`); raise ConfigError where that is impossible."""
    first_episode: int = 0
    """Number of the first episode of every env: its seed is that of this one of the run."""


class Env(Protocol):
    """A batch of environments. Called by one actor, from one thread."""

    spec: EnvSpec

    def reset(self, out: Sequence[ObservationRows]) -> None:
        """Begin an episode in every env and write its first observations.

        Raises EnvError naming env, lane and seed; with faults as `step` does.
        """
        ...

    def step(
        self,
        actions: Sequence[np.ndarray],
        outcome: Sequence[OutcomeRows],
        out: Sequence[ObservationRows],
    ) -> None:
        """Apply `actions[s]` `[E, A_s, *shape]`; write what came of them, and what is seen next.

        Raises EnvError naming env, lane, seed and last action. Where that has faults, the other
        envs were stepped, the rows of those that failed are blank (`Quarantines`), and the batch
        can be stepped on; without any, or after another exception, the batch must be built anew.
        """
        ...

    def save(self) -> dict[str, np.ndarray]:
        """State from which `load` continues every episode exactly, as `spec.restores` says."""
        ...

    def load(self, state: Mapping[str, np.ndarray], seen: Sequence[ObservationRows]) -> bool:
        """Bring back a saved state; False where the env did not show again what was `seen`."""
        ...

    def close(self) -> None:
        """Free everything; may be called twice."""
        ...


@runtime_checkable
class Quarantines(Protocol):
    """An env of which one may fail without the others.

    Its next step builds it anew and begins its next episode; the row until then is blank: zeros, and
    neither `first` nor `valid` nor `acting`.
    """

    def park(self, env: int) -> None:
        """Close one env for good: all of its rows to come are blank. May be called before `load`."""
        ...


@runtime_checkable
class Locates(Protocol):
    """Something in whose methods a thread may hang, and which can say for which env."""

    def locate(self, variables: Mapping[str, Any], what: str) -> EnvFault:
        """The env that hangs, by the variables of the method called; `what` it does, in words."""
        ...


@runtime_checkable
class Renders(Protocol):
    """An env that can draw itself. `frames_per_second`, where it has that, is how fast it is."""

    def render(self, env: int) -> np.ndarray:
        """A picture `[H, W, 3] uint8` of one env, as it is after the last reset or step."""
        ...


class EnvFactory(Protocol):
    """What an env's catalogue entry, or a user's `module:Object`, must be."""

    def make_batch(self, request: EnvRequest) -> Env:
        """Build the env; raises ConfigError where the request cannot be met."""
        ...


def episode_seed(seed: int, env: int, episode: int) -> int:
    """Seed of one episode of one env of a run: independent over all three, below 2**31."""
    sequence = np.random.SeedSequence((seed, env, episode))
    return int(sequence.generate_state(1, np.uint32)[0] >> 1)


def blank(env: int, out: Sequence[ObservationRows], outcome: Sequence[OutcomeRows] = ()) -> None:
    """Write a row of one env that means nothing: zeros everywhere, and no mask is set."""
    for rows in out:
        for array in (*rows.obs.values(), *rows.central.values()):
            array[env] = 0
        for mask in (rows.first, rows.valid, rows.acting):
            mask[env] = False
    for ends in outcome:
        for array in (ends.reward, ends.terminated, ends.truncated):
            array[env] = 0


def agent_sets(request: EnvRequest, num_agents: int) -> tuple[tuple[int, ...], ...]:
    """The agent sets of a request, checked against the env's number of agents."""
    sets = request.sets or (tuple(range(num_agents)),)
    named = sorted(index for members in sets for index in members)
    if named != list(range(num_agents)):
        raise ConfigError(
            f"env {request.name!r} has agents 0..{num_agents - 1}, its routes name {named}: "
            "every agent must be in exactly one route"
        )
    return sets
