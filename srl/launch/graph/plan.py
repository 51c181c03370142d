"""Turns an experiment into the graph that is launched: workers, streams and their sizes.

Everything that can be known before the start is checked here: the env is built and stepped a
little, the policy is made, the memory is added up.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from srl.core.algorithm import AlgorithmConfig, HasSmallPolicy, NamedPolicy, Policy, Records
from srl.core.block import Block, Layout, route_layout
from srl.core.checks import check_at_least, require_members
from srl.core.compute import Compute
from srl.core.env import AgentSpec, Discrete, Env, MultiDiscrete
from srl.core.errors import ConfigError, EnvError
from srl.core.experiment import Experiment
from srl.core.masks import heed, nothing_allowed
from srl.core.names import load_object
from srl.core.replay import ReplayConfig, Replays, Window
from srl.core.routes import RoutedAgents, route_agents
from srl.core.spec import Spec, spec_of
from srl.core.telemetry import Telemetry
from srl.launch.graph.config import decode_algorithm, encode_experiment
from srl.launch.graph.env_factory import env_spec, make_env
from srl.learning.drawing import draw_layout, priority_layout
from srl.learning.replay.limiter import make_limiter
from srl.learning.replay.table import rows_of_track, table_bytes, window_layout
from srl.streams.inference.shm import ReplyLayout
from srl.transport.blocks import block_arena_bytes
from srl.transport.compression import make_compression
from srl.workers.watchdog import Watched, end_with, watch

LATE = -1
"""In the place of a host: none yet, until a node joins that has room."""
MAX_BLOCK_BYTES = 32 << 20
_DISK_BYTES_A_SECOND = 50e6
_PROBE_STEPS = 8
_SLACK = 1e-9
"""Of a GPU: what sums of shares may be off by."""


class WorkerPlan(msgspec.Struct, frozen=True):
    """One worker."""

    name: str
    kind: str
    index: int
    policy: str = ""
    """Of policy workers, buffers and trainers: whose."""


class Opponent(msgspec.Struct, frozen=True):
    """A frozen policy: what makes it, but for its weights."""

    source: str
    """Where it comes from: RUN, RUN@VERSION or RUN@TAG."""
    algorithm: dict[str, Any]
    """The config of its own algorithm."""
    agent: dict[str, Any]
    """What it was made to see and do."""


class ReplayPlan(msgspec.Struct, frozen=True):
    """The replay buffer of a policy, all of its shards together."""

    config: ReplayConfig
    window: Window
    shards: int
    """Workers that keep a share each: buffers, or trainers."""
    rows: int
    """That it holds."""
    nbytes: int

    @property
    def is_file(self) -> bool:
        """Whether it lies in a file, and not in memory."""
        return self.config.storage == "file"

    @property
    def is_prioritised(self) -> bool:
        """Whether a learner's priorities decide what is drawn."""
        return self.config.kind == "prioritised"

    def windows(self, block: Layout) -> Layout:
        """Layout of what each share draws of blocks."""
        return window_layout(block, self.window, self.config.drawn // self.shards)


class RoutePlan(msgspec.Struct, frozen=True):
    """One policy: its agents, its blocks, its streams."""

    policy: str
    agents: tuple[int, ...]
    agent: dict[str, Any]
    outputs: str
    """JSON of the Spec of what the policy records."""
    state: str
    """JSON of the Spec of its recurrent state."""
    chunk: int
    burn_in: int
    weights: str
    """JSON of the Spec of its weights."""
    rollout: int
    lanes: int
    """Lanes of one block."""
    envs: int
    """Envs of one group."""
    batch: int
    """Blocks of one batch."""
    slots: int
    """Slots of one actor in the sample arena."""
    opponents: tuple[Opponent, ...] = ()
    """The policies it is made of, if it is frozen: it then has no trainer, and its blocks are never
    sent."""
    replay: ReplayPlan | None = None
    """What it learns from, where that is not each block once."""
    small: tuple[NamedPolicy, ...] = ()
    """The policy without torch, for who answers actors on a CPU (of a frozen one, each that it is
    made of); empty: there is none."""

    @property
    def is_frozen(self) -> bool:
        """Whether it plays and does not learn."""
        return bool(self.opponents)

    def agent_spec(self) -> AgentSpec:
        """What the agents see and do."""
        return AgentSpec.from_dict(self.agent)

    def records(self) -> Records:
        """What its blocks hold beside observations and outcomes."""
        return Records(
            Spec.from_json(self.outputs),
            Spec.from_json(self.state),
            self.chunk,
            burn_in=self.burn_in,
            members=len(self.opponents),
        )

    def weights_spec(self) -> Spec:
        """The policy's weights."""
        return Spec.from_json(self.weights)

    def draw_layout(self) -> Layout:
        """Layout of what a buffer sends its trainer."""
        assert self.replay is not None
        return draw_layout(self.replay.windows(self.layout()))

    def priority_layout(self) -> Layout:
        """Layout of what comes back."""
        assert self.replay is not None
        return priority_layout(self.replay.windows(self.layout()))

    def layout(self) -> Layout:
        """Layout of one block."""
        return route_layout(
            self.agent_spec(),
            self.records(),
            rollout=self.rollout,
            lanes=self.lanes,
            envs=self.envs,
        )


class Plan(msgspec.Struct, frozen=True, dict=True):
    """The whole graph; what is looked up again and again in it is kept (`dict`)."""

    experiment: dict[str, Any]
    inference: str
    samples: str
    routes: tuple[RoutePlan, ...]
    workers: tuple[WorkerPlan, ...]
    env_restores: str
    num_ranks: int = 1
    """Trainers a policy."""
    num_buffers: int = 0
    """Buffer workers a policy."""
    restarted_at: int = 0
    """One more than the env steps after which actors begin anew in a resumed run: they then draw other numbers."""
    folder: str = ""
    """The run folder, where there is one."""
    hosts: dict[str, int] = {}
    """Worker to the number of its host, where that is not the first."""
    needed_actors: int | None = None
    """How many the run begins with, where others may come later."""

    def route(self, policy: str) -> RoutePlan:
        """The route of a policy."""
        return next(route for route in self.routes if route.policy == policy)

    @property
    def learning(self) -> tuple[RoutePlan, ...]:
        """The routes whose policies learn."""
        return tuple(route for route in self.routes if not route.is_frozen)

    def worker(self, name: str) -> WorkerPlan:
        """A worker, by name."""
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, WorkerPlan]:
        return {worker.name: worker for worker in self.workers}

    @cached_property
    def _by_kind(self) -> dict[str, list[WorkerPlan]]:
        found: dict[str, list[WorkerPlan]] = {}
        for worker in self.workers:
            found.setdefault(worker.kind, []).append(worker)
        return found

    @cached_property
    def _by_host(self) -> dict[int, list[WorkerPlan]]:
        found: dict[int, list[WorkerPlan]] = {}
        for worker in self.workers:
            found.setdefault(self.host_of(worker.name), []).append(worker)
        return found

    def answers_itself(self, actor: int) -> bool:
        """Whether an actor computes actions itself, and asks no policy worker."""
        return self.inference == "inline" or actor < self.experiment["actors"]["inline"]

    @cached_property
    def asking_hosts(self) -> frozenset[int]:
        """The hosts with actors that ask policy workers."""
        asking = [
            worker for worker in self.of_kind("actor") if not self.answers_itself(worker.index)
        ]
        return frozenset(self.host_of(worker.name) for worker in asking)

    def on_host(self, host: int) -> list[WorkerPlan]:
        """The workers of a host."""
        return [*self._by_host.get(host, ())]

    @property
    def all_hosts(self) -> list[int]:
        """The hosts that have workers."""
        return sorted(self._by_host)

    def host_of(self, name: str) -> int:
        """The host of a worker."""
        return self.hosts.get(name, 0)

    def ranks_of(self, name: str) -> list[str]:
        """The trainers that learn together with one; of any other worker, itself."""
        one = self.worker(name)
        if one.kind != "trainer":
            return [name]
        return [w.name for w in self.of_kind("trainer") if w.policy == one.policy]

    @property
    def late(self) -> frozenset[str]:
        """Workers that the run can begin without."""
        needed = self.needed_actors
        if needed is None:
            return frozenset()
        return frozenset(worker.name for worker in self.of_kind("actor") if worker.index >= needed)

    def of_kind(self, kind: str) -> list[WorkerPlan]:
        """Workers of one kind."""
        return [*self._by_kind.get(kind, ())]

    @property
    def num_takers(self) -> int:
        """Workers of a policy that take its blocks."""
        return self.num_buffers or self.num_ranks

    def takers(self, policy: str) -> list[WorkerPlan]:
        """Workers that take the blocks of a policy: its buffers, or where there are none its trainers."""
        kind = "buffer" if self.num_buffers else "trainer"
        return [worker for worker in self.of_kind(kind) if worker.policy == policy]

    def buffers_of(self, worker: WorkerPlan) -> list[WorkerPlan]:
        """The buffers that draw for a trainer; of any other worker, none."""
        if worker.kind != "trainer":
            return []
        buffers = [one for one in self.of_kind("buffer") if one.policy == worker.policy]
        return [one for one in buffers if one.index % self.num_ranks == worker.index]

    def writers(self) -> list[str]:
        """Workers that write checkpoints.

        Of each policy the first trainer, which speaks for all, and buffers whose rows are saved.
        """
        kept = {
            route.policy for route in self.learning if route.replay and route.replay.config.saved
        }
        trainers = [worker.name for worker in self.of_kind("trainer") if worker.index == 0]
        return trainers + [w.name for w in self.of_kind("buffer") if w.policy in kept]

    def unfinished_evaluation(self) -> list[str]:
        """What a checkpoint does not bring back, in words, where episodes are not restored."""
        words = "an evaluation under way: a resumed run plays it from its beginning"
        return [words] if self.of_kind("evaluator") else []

    @property
    def replay_seconds(self) -> float:
        """How long it may take to write, or read, what a checkpoint holds of replay buffers: a slow disk."""
        replays = [route.replay for route in self.learning if route.replay is not None]
        saved = sum(replay.nbytes for replay in replays if replay.config.saved)
        return saved / _DISK_BYTES_A_SECOND

    @property
    def replay_growth(self) -> dict[str, float]:
        """Kind of process to the megabytes that one may grow by while its replay buffers are filled, and copied to be saved."""
        replays = [route.replay for route in self.learning if route.replay is not None]
        sizes = [((not one.is_file) + one.config.saved) * one.nbytes / 1e6 for one in replays]
        if self.experiment["launcher"] == "inline":
            return {"controller": sum(sizes)}
        shares = [size / one.shards for size, one in zip(sizes, replays, strict=True)]
        return {"buffer" if self.num_buffers else "trainer": max(shares, default=0.0)}

    def keepers(self) -> list[WorkerPlan]:
        """Workers whose rows of replay are in checkpoints."""
        names = set(self.writers())
        return [
            worker
            for route in self.learning
            if route.replay and route.replay.config.saved
            for worker in self.takers(route.policy)
            if worker.name in names
        ]

    def replay_contract(self) -> tuple[list[str], list[str]]:
        """What of replay buffers a checkpoint brings back, and what it does not, in words."""
        replays = [route.replay for route in self.learning if route.replay is not None]
        if not replays:
            return [], []
        what = "rows and priorities of replay buffers"
        if not replays[0].config.saved:  # all have one algorithm
            return [], [f"{what}: they are filled anew (algorithm.replay.saved False)"]
        if self.num_buffers or self.num_ranks == 1:
            return [what], []
        return [f"{what}: the first trainer's share"], [f"{what}: the other trainers' shares"]

    def replies(self, route: RoutePlan) -> ReplyLayout:
        """Where policy workers of a route leave their answers."""
        actors, records = self.experiment["actors"], route.records()
        answers = records.outputs + records.state
        return ReplyLayout(answers, actors["count"], actors["groups"], route.lanes)

    def threads(self, kind: str) -> int:
        """Compute threads of each worker of a kind."""
        sections = {"actor": "actors", "policy": "policies", "trainer": "trainers"}
        own = self.experiment[sections[kind]]["threads"] if kind in sections else None
        return own or self.experiment["threads"]

    def device(self, worker: WorkerPlan) -> str:
        """Where a worker computes: the GPUs of a host are dealt out to its workers by their shares."""
        device = self._kind_of_device(worker)
        if device != "cuda":
            return device
        index = self._gpus_on(self.host_of(worker.name))[worker.name]
        return f"cuda:{index}" if index or self.num_ranks > 1 else "cuda"

    def _gpus_on(self, host: int) -> dict[str, int]:
        """Worker to the number of its GPU, side by side; who has no share of its own uses a trainer's."""
        here = [
            worker
            for worker in (*self.of_kind("trainer"), *self.of_kind("policy"))
            if self._kind_of_device(worker) == "cuda" and self.host_of(worker.name) == host
        ]
        shares = {worker.name: share for worker in here if (share := self._share(worker))}
        found = dict(zip(shares, deal_gpus([*shares.values()])[0], strict=True))
        owned = [found[w.name] for w in here if w.kind == "trainer" and w.name in found] or [0]
        return found | {w.name: owned[w.index % len(owned)] for w in here if w.name not in found}

    def _kind_of_device(self, worker: WorkerPlan) -> str:
        section = {"trainer": "trainers", "policy": "policies"}.get(worker.kind)
        return "cpu" if section is None else self.experiment[section]["device"]

    def _share(self, worker: WorkerPlan) -> float:
        """Of a GPU: what launcher ray sets aside; without it, each of several trainers has one."""
        is_rank = worker.kind == "trainer" and self.num_ranks > 1
        return self.gpus(worker) if is_rank or self.experiment["launcher"] == "ray" else 0.0

    def needs_gpu(self, worker: WorkerPlan) -> bool:
        """Whether a worker must be where GPUs are."""
        return self._kind_of_device(worker).startswith("cuda")

    def gpus(self, worker: WorkerPlan) -> float:
        """GPUs that are set aside for a worker on a cluster."""
        if not self.needs_gpu(worker):
            return 0.0
        section = {"trainer": "trainers", "policy": "policies"}[worker.kind]
        gpus = self.experiment[section]["gpus"]
        # of several trainers each must have a whole one: they cannot meet on one
        return max(1.0, gpus) if worker.kind == "trainer" and self.num_ranks > 1 else gpus

    def compute(self, device: str) -> Compute:
        """How a network computes on a device."""
        return Compute(device, self.experiment["precision"], self.experiment["compile"])

    def warnings(self) -> list[str]:
        """What will run, but not as it was probably meant."""
        groups = self.experiment["actors"]["count"] * self.experiment["actors"]["groups"]
        ahead = self.experiment["max_staleness"] + 1
        steps = self.experiment["stop"]["env_steps"]
        few = [
            f"hardly anything will be learned: stop.env-steps {steps} are over when the "
            f"{route.replay.config.warm_up} rows are there that --algorithm.replay.warm-up waits for, or before"
            for route in self.learning
            if route.replay is not None
            and steps is not None
            and steps * len(route.agents) < route.replay.config.warm_up
        ]
        return few + [
            f"at most (max-staleness + 1) x {route.batch} = {ahead * route.batch} blocks may be "
            f"under way, fewer than there are groups ({groups}): some of them will always wait; "
            "use a larger --algorithm.batch-size, or fewer actors or groups"
            for route in self.learning
            if route.replay is None and ahead * route.batch < groups
        ]

    def seed(self, *numbers: int) -> int:
        """A seed of its own for every use of these numbers in a run, and in each resume of it."""
        entropy = (self.experiment["seed"], self.restarted_at, *numbers)
        return int(np.random.SeedSequence(entropy).generate_state(1, np.uint32)[0] >> 1)

    def edges(self) -> list[str]:
        """The graph in words: source, stream, sink."""
        lines = []
        parameters = "inline" if self.samples == "inline" else "shm"
        for route in self.routes:
            p = route.policy
            if route.is_frozen:
                where = "in each actor" if self.inference == "inline" else "in policy workers"
                sources = ", ".join(opponent.source for opponent in route.opponents)
                lines.append(f"actors == inference/{p} ==> frozen {where}: {sources}")
                continue
            if self.inference == "inline":
                lines.append(f"actors == inference/{p} (inline) ==> a copy of {p} in each actor")
                lines.append(f"trainer {p} -- parameters/{p} ({parameters}) --> actors")
            else:
                lines.append(f"actors == inference/{p} ({self.inference}) ==> policy workers {p}")
                if some := self.experiment["actors"]["inline"]:
                    lines.append(
                        f"{some} actors == inference/{p} (inline) ==> a copy of {p} in each"
                    )
                    lines.append(f"trainer {p} -- parameters/{p} (shm) --> {some} actors")
                lines.append(f"trainer {p} -- parameters/{p} (shm) --> policy workers {p}")
            if self.num_buffers:
                lines.append(f"actors -- samples/{p} ({self.samples}) --> buffers {p}")
                lines.append(f"buffers {p} -- draws/{p} (shm) --> trainer {p}")
                if route.replay is not None and route.replay.is_prioritised:
                    lines.append(f"trainer {p} -- priorities/{p} (shm) --> buffers {p}")
            else:
                lines.append(f"actors -- samples/{p} ({self.samples}) --> trainer {p}")
            if self.of_kind("evaluator"):
                lines.append(f"trainer {p} -- parameters/{p} ({parameters}) --> evaluator")
        return lines


def deal_gpus(shares: Sequence[float]) -> tuple[list[int], float]:
    """Deal the GPUs of a host out, the largest share first; none lies on two that has room on one.

    Returns:
        The number of each share's first GPU, and how many to set aside: a part of one, or whole ones, for Ray knows
        nothing between. In another order the same shares have as many.
    """
    numbers, taken = [0] * len(shares), list[float]()
    for i in sorted(range(len(shares)), key=lambda i: -shares[i]):
        share = shares[i]
        has_room = (n for n, used in enumerate(taken) if used + share <= 1 + _SLACK)
        numbers[i] = next(has_room, len(taken))
        if numbers[i] < len(taken):
            taken[numbers[i]] += share
        else:
            full = max(0, math.ceil(share - _SLACK) - 1)
            taken += [1.0] * full + [share - full]
    return numbers, min(sum(taken), 1.0) if len(taken) < 2 else float(len(taken))


def make_plan(
    experiment: Experiment[Any], opponents: Mapping[str, Sequence[Opponent]] | None = None
) -> Plan:
    """Check the experiment against its env and add up what it needs.

    Args:
        experiment: what to run.
        opponents: policy to what it is made of, for those that are frozen.
    """
    make_compression(experiment.network.compression)  # or say what is not installed
    _check_gpus(experiment)
    spec = env_spec(experiment.env)
    routed = route_agents(experiment.routes, spec.agents)
    sets = tuple(route.agents for route in routed)
    probe = make_env(experiment.env, experiment.seed, num_envs=2, first_env=0, sets=sets)
    watched = Watched("the probe", Telemetry())
    on_hang = end_with(2, ": nothing was started")
    try:
        with watch([watched], experiment.env.timeout_seconds, on_hang, is_alone=True):
            probe_env(probe, routed, watched.telemetry)
    finally:
        probe.close()
    learning = [_plan_route(experiment, route) for route in routed if not route.frozen]
    if not learning:
        raise ConfigError("no agent plays by a policy that learns: all of its routes are frozen")
    frozen = [
        _plan_frozen(learning[0], route, (opponents or {})[route.policy], experiment)
        for route in routed
        if route.frozen
    ]
    needed, experiment = experiment.actors.count, _grown(experiment)
    plans = {route.policy: route for route in (*learning, *frozen)}
    routes = tuple(plans[route.policy] for route in routed)
    plan = Plan(
        experiment=encode_experiment(experiment),
        inference=experiment.inference_substrate,
        samples=experiment.samples_substrate,
        routes=routes,
        workers=tuple(plan_workers(experiment, routes)),
        env_restores=spec.restores,
        num_ranks=experiment.num_ranks,
        num_buffers=experiment.num_buffers,
        needed_actors=needed,
    )
    _check_memory(plan, experiment)
    return plan


def _check_gpus(experiment: Experiment[Any]) -> None:
    """Raise ConfigError for workers on GPUs for whom launcher ray would set none aside, whatever a cluster has."""
    trainers, policies = experiment.trainers, experiment.policies
    if experiment.launcher != "ray":
        return
    if trainers.device != "cpu" and experiment.num_ranks == 1 and not trainers.gpus:
        raise ConfigError(
            f"trainers.device is {trainers.device!r}, but with trainers.gpus 0 launcher ray sets no GPU aside: "
            "use --trainers.gpus 1, or a fraction"
        )
    if policies.device != "cpu" and trainers.device == "cpu" and not policies.gpus:
        raise ConfigError(
            f"policies.device is {policies.device!r}, but with policies.gpus 0 policy workers share a trainer's GPU, and "
            "trainers.device is 'cpu': use --policies.gpus 1, or a fraction"
        )


def _grown(experiment: Experiment[Any]) -> Experiment[Any]:
    """With all the actors that may ever be: streams have room for them from the start."""
    actors = experiment.actors
    if experiment.launcher != "ray" or actors.max is None:
        return experiment
    return replace(experiment, actors=replace(actors, count=actors.max))


def probe_env(env: Env, routes: Sequence[RoutedAgents], telemetry: Telemetry) -> None:
    """Reset and step the env a little with random actions; raises EnvError as a run would."""
    rng = np.random.default_rng(0)
    num_envs, blocks = env.spec.num_envs, []
    for route in routes:
        records = Records(Spec((route.agent.action.field,)))
        lanes = num_envs * len(route.agents)
        layout = route_layout(route.agent, records, rollout=1, lanes=lanes, envs=num_envs)
        blocks.append((route.agent, Block.allocate(layout)))
    with telemetry.time("env"):
        env.reset([block.observation_rows(agent, 0) for agent, block in blocks])
    for _ in range(_PROBE_STEPS):
        for agent, block in blocks:
            _check_masks(agent, block)
        with telemetry.time("env"):
            env.step(
                [_random_actions(agent, block, rng) for agent, block in blocks],
                [block.outcome_rows(0) for _, block in blocks],
                [block.observation_rows(agent, 0) for agent, block in blocks],
            )


def _check_masks(agent: AgentSpec, block: Block) -> None:
    """Raise EnvError where a lane that is to act is left no choice."""
    mask = agent.action_mask
    if mask is None:
        return
    acts = block["valid"][0] & block["acting"][0]
    if (nothing_allowed(agent.action, block[mask.name][0]) & acts).any():
        raise EnvError(f"the env showed {mask.name!r}: every action is masked out")


def _random_actions(agent: AgentSpec, block: Block, rng: np.random.Generator) -> np.ndarray:
    action = block["action"][0]
    match agent.action:
        case Discrete(n):
            action[...] = rng.integers(n, size=action.shape)
        case MultiDiscrete(nvec):
            action[...] = rng.integers(nvec, size=action.shape)
        case _:
            action[...] = rng.uniform(-1, 1, size=action.shape)
    action[...] = heed(agent, action, block.row(agent.observation_names, 0))
    envs = block.layout.envs
    return action.reshape(envs, -1, *action.shape[1:])


def _plan_route(experiment: Experiment[Any], routed: RoutedAgents) -> RoutePlan:
    algorithm: AlgorithmConfig = experiment.algorithm
    _check_algorithm(algorithm)
    actors = experiment.actors
    envs = actors.envs // actors.groups
    lanes = envs * len(routed.agents)
    rows = algorithm.rollout * lanes
    replays = isinstance(algorithm, Replays)
    batch_size = rows * experiment.num_ranks if replays else algorithm.batch_size
    if batch_size % rows:
        fewer = max(1, algorithm.batch_size // rows) * rows
        raise ConfigError(
            f"algorithm.batch-size ({algorithm.batch_size}) must be a multiple of the rows of a "
            f"block: {algorithm.rollout} (algorithm.rollout) x {lanes} lanes (actors.envs / "
            f"actors.groups x agents) = {rows}; for example {fewer} or {fewer + rows}"
        )
    records = algorithm.records(routed.agent)
    if not isinstance(records, Records):
        raise ConfigError(
            f"records() of {type(algorithm).__name__} must return Records, not {type(records).__name__}"
        )
    if algorithm.rollout % records.chunk:
        raise ConfigError(
            f"algorithm.rollout ({algorithm.rollout}) must be a multiple of the rows of a training "
            f"chunk ({records.chunk})"
        )
    block = route_layout(routed.agent, records, rollout=algorithm.rollout, lanes=lanes, envs=envs)
    if block.nbytes > MAX_BLOCK_BYTES:
        raise ConfigError(
            f"a block of {lanes} lanes x {algorithm.rollout} rows has {block.nbytes / 1e6:.1f} MB, "
            f"more than {MAX_BLOCK_BYTES / 1e6:.1f} MB: use more --actors.groups or a shorter "
            "--algorithm.rollout"
        )
    batch, num_ranks = batch_size // rows, experiment.num_ranks
    if batch % num_ranks:
        fewer = max(1, batch // num_ranks) * num_ranks * rows
        raise ConfigError(
            f"algorithm.batch-size ({algorithm.batch_size}) is {batch} blocks of {rows} rows, which "
            f"cannot be shared equally by {num_ranks} trainers (trainers.count): use for example "
            f"--algorithm.batch-size {fewer} or {fewer + num_ranks * rows}"
        )
    queued = math.ceil((experiment.max_staleness + 1) * batch / actors.count)
    replay = None
    if isinstance(algorithm, Replays):
        queued = actors.groups
        shards = experiment.num_buffers or num_ranks
        groups = _grown(experiment).actors.count * actors.groups
        replay = _plan_replay(algorithm, block, groups=groups, shards=shards)
    elif experiment.buffers.count:
        raise ConfigError(
            f"buffers.count {experiment.buffers.count}: {type(algorithm).__name__} learns each block once, "
            "and has nothing to keep; buffers are for algorithms with replay (srl list)"
        )
    policy = algorithm.make_policy(routed.agent, seed=0, compute=Compute())
    require_members(policy, Policy, "a policy")
    return RoutePlan(
        policy=routed.policy,
        agents=routed.agents,
        agent=routed.agent.to_dict(),
        outputs=records.outputs.to_json(),
        state=records.state.to_json(),
        chunk=records.chunk,
        burn_in=records.burn_in,
        weights=spec_of(policy.weights()).to_json(),
        rollout=algorithm.rollout,
        lanes=lanes,
        envs=envs,
        batch=batch,
        slots=actors.groups + queued + 1,
        replay=replay,
        small=small_policies([algorithm], [routed.agent]) if experiment.acting == "auto" else (),
    )


def _check_algorithm(algorithm: AlgorithmConfig) -> None:
    """Raise ConfigError where it is none, or asks for blocks and batches that cannot be."""
    require_members(algorithm, AlgorithmConfig, "an algorithm")
    check_at_least("algorithm.rollout", algorithm.rollout, 1)
    if not isinstance(algorithm, Replays):
        check_at_least("algorithm.batch-size", algorithm.batch_size, 1)
    elif algorithm.replay.relabel is not None:
        name = algorithm.replay.relabel
        if not callable(found := load_object(name)):
            raise ConfigError(
                f"algorithm.replay.relabel {name!r} is a {type(found).__name__}: it must be a function of the drawn "
                "windows and a generator"
            )


def _plan_replay(algorithm: Replays, block: Layout, *, groups: int, shards: int) -> ReplayPlan:
    """What a replay buffer takes; raises ConfigError where it cannot work."""
    config, window, rollout = algorithm.replay, algorithm.window, block.rows - 1
    if config.drawn % shards:
        raise ConfigError(
            f"{config.batch} x {config.steps} windows (algorithm.replay.batch x steps) cannot be drawn "
            f"equally by {shards} (buffers.count, or trainers.count)"
        )
    tracks = groups * block.lanes // shards
    rows = rows_of_track(config.capacity // shards, tracks, rollout)
    if rows < window.rows + rollout:
        raise ConfigError(
            f"algorithm.replay.capacity ({config.capacity}) leaves {rows} rows for each of "
            f"{tracks * shards} lanes, and {window.rows + rollout} are needed (a window of {window.rows} and "
            f"a block of {rollout}): use at least {(window.rows + rollout) * tracks * shards}"
        )
    windows = tracks * ((rows - rollout - window.rows + 1) // window.stride)
    if config.kind == "fifo" and windows < config.drawn // shards:
        raise ConfigError(
            f"algorithm.replay.capacity ({config.capacity}) leaves room for {windows * shards} windows, and "
            f"{config.drawn} different ones (algorithm.replay.batch x steps) are drawn together with kind fifo: use more"
        )
    make_limiter(
        config, window, rollout=rollout, lanes=block.lanes, groups=groups // shards, shards=shards
    )
    return ReplayPlan(
        config=config,
        window=window,
        shards=shards,
        rows=rows * tracks * shards,
        nbytes=table_bytes(block, tracks, rows) * shards,
    )


def small_policies(
    algorithms: Sequence[AlgorithmConfig], agents: Sequence[AgentSpec]
) -> tuple[NamedPolicy, ...]:
    """The policies of these algorithms without torch; none where one of them has none."""
    found = [
        algorithm.small_policy(agent) if isinstance(algorithm, HasSmallPolicy) else None
        for algorithm, agent in zip(algorithms, agents, strict=True)
    ]
    return tuple(policy for policy in found if policy) if all(found) else ()


def _plan_frozen(
    model: RoutePlan,
    routed: RoutedAgents,
    opponents: Sequence[Opponent],
    experiment: Experiment[Any],
) -> RoutePlan:
    """A route whose blocks have the rows of one that learns, and what the opponents record."""
    from srl.launch.graph.pool import make_pool

    for opponent in opponents:
        theirs = AgentSpec.from_dict(opponent.agent)
        if difference := _misfit(routed.agent, theirs):
            raise ConfigError(
                f"{opponent.source} cannot play for policy {routed.policy!r}: {difference}"
            )
    pool = make_pool(opponents, seed=0, compute=Compute())
    return msgspec.structs.replace(
        model,
        policy=routed.policy,
        agents=routed.agents,
        agent=routed.agent.to_dict(),
        outputs=pool.records.outputs.to_json(),
        state=pool.records.state.to_json(),
        weights=spec_of(pool.weights()).to_json(),
        lanes=model.envs * len(routed.agents),
        batch=0,
        slots=experiment.actors.groups,
        opponents=tuple(opponents),
        small=small_policies(
            [decode_algorithm(opponent.algorithm) for opponent in opponents],
            [AgentSpec.from_dict(opponent.agent) for opponent in opponents],
        )
        if experiment.acting == "auto"
        else (),
    )


def _misfit(ours: AgentSpec, theirs: AgentSpec) -> str | None:
    """Why a policy made for `theirs` cannot play for agents that are `ours`; None where it can."""
    if difference := ours.observation_spec.difference(
        AgentSpec(theirs.observations, ours.action, theirs.central or ours.central).observation_spec
    ):
        return f"{difference} (here: this run, there: the opponent's)"
    if ours.observations != theirs.observations:
        return "its observations have other values, or another order"
    if ours.action != theirs.action:
        return f"the actions of this run are {ours.action}, the opponent's {theirs.action}"
    return None


def worker_name(kind: str, policy: str, index: int) -> str:
    """A worker's name in messages, files and checkpoints."""
    return f"{kind}-{index}" if policy in ("", "main") else f"{kind}-{policy}-{index}"


def plan_workers(experiment: Experiment[Any], routes: Sequence[RoutePlan]) -> list[WorkerPlan]:
    """The workers of an experiment with these policies."""
    policies = [route.policy for route in routes]
    learning = [route.policy for route in routes if not route.is_frozen]
    workers = [
        WorkerPlan(worker_name(kind, p, i), kind, i, p)
        for kind, count in (("trainer", experiment.num_ranks), ("buffer", experiment.num_buffers))
        for p in learning
        for i in range(count)
    ]
    if experiment.inference_substrate != "inline":
        for policy in policies:
            workers += [
                WorkerPlan(worker_name("policy", policy, i), "policy", i, policy)
                for i in range(experiment.policies.count)
            ]
    workers += [
        WorkerPlan(worker_name("actor", "", i), "actor", i) for i in range(experiment.actors.count)
    ]
    workers += [
        WorkerPlan(worker_name("evaluator", "", i), "evaluator", i)
        for i in range(experiment.evaluation.count)
    ]
    return workers


def _check_memory(plan: Plan, experiment: Experiment[Any]) -> None:
    for route in plan.routes:
        shape = experiment.actors.count, route.slots, plan.num_takers
        needed = block_arena_bytes(route.layout(), *shape) / 1e6
        if experiment.arena_megabytes is not None and needed > experiment.arena_megabytes:
            raise ConfigError(
                f"arena-megabytes {experiment.arena_megabytes:g} is too small for the blocks of "
                f"policy {route.policy!r}: {_memory_in_words(route, experiment)}"
            )


def shared_memory_in_words(plan: Plan, experiment: Experiment[Any]) -> str:
    """How the size of the sample arenas comes about."""
    return "; ".join(_memory_in_words(route, experiment) for route in plan.routes)


def _memory_in_words(route: RoutePlan, experiment: Experiment[Any]) -> str:
    """How the size of a sample arena comes about."""
    if route.is_frozen:
        return (
            f"{experiment.actors.count} actors x {route.slots} groups for the frozen {route.policy}"
        )
    actors, block = experiment.actors, route.layout().nbytes
    takers = experiment.num_buffers or experiment.num_ranks
    needed = block_arena_bytes(route.layout(), actors.count, route.slots, takers) / 1e6
    why = (
        f"[(max-staleness {experiment.max_staleness} + 1) x {route.batch} blocks a batch / "
        f"{actors.count} actors] "
    )
    return (
        f"{actors.count} actors x ({actors.groups} groups being filled + "
        f"{route.slots - actors.groups - 1} waiting {'' if route.replay else why}+ 1) "
        f"x {block / 1e6:.3f} MB a block = {needed:.2f} MB"
    )
