"""Where every connection is made: gives each worker its ends of the streams.

`Connector` is one method a kind of end; `InlineConnector` joins workers of one process,
`ProcessConnector` those in processes of their own. A worker is then built from the plan and its ends.
"""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np
import zmq

from srl.core.algorithm import AlgorithmConfig, Learner, Policy
from srl.core.block import Layout, input_names
from srl.core.collective import Alone, Group
from srl.core.compute import Compute
from srl.core.env import AgentSpec
from srl.core.experiment import EnvConfig
from srl.core.names import load_object
from srl.core.streams import (
    InferenceClient,
    InferenceServer,
    ParameterPublisher,
    ParameterSubscriber,
    SampleConsumer,
    SampleProducer,
)
from srl.core.worker import Worker
from srl.launch.graph.config import decode_algorithm
from srl.launch.graph.env_factory import evaluation_lanes, recovery_of
from srl.launch.graph.hosts import (
    actors_on,
    asks_over,
    buffers_on,
    draw_streams,
    hosts_of,
    inference_end,
    is_source,
    receiver_of,
    sends_over,
    taken_by,
    taker_of,
)
from srl.launch.graph.plan import LATE, Plan, ReplayPlan, RoutePlan, WorkerPlan
from srl.learning.drawing import SLOTS, Drawing
from srl.learning.finite import Origin, Tracer
from srl.learning.guard import Guard
from srl.learning.replay.replay import Replay
from srl.learning.staging import HostMemory, Memory, Source, Staging
from srl.learning.staleness import Gate
from srl.rollout.lanes import RouteEnds
from srl.rollout.match import Player
from srl.streams.inference.ends import RequestClient, RequestServer
from srl.streams.inference.inline import InlineInference
from srl.streams.inference.joined import JoinedServer
from srl.streams.inference.shm import ShmInferenceClient, ShmInferenceServer
from srl.streams.inference.tcp import FrameLayouts, TcpInferenceClient, TcpInferenceServer
from srl.streams.parameters.inline import InlineParameters
from srl.streams.parameters.shm import ShmPublisher, ShmSubscriber
from srl.streams.samples.inline import InlineSamples
from srl.streams.samples.shm import ShmConsumer, ShmProducer
from srl.streams.samples.tcp import TcpConsumer, TcpProducer
from srl.streams.samples.workspace import Workspace
from srl.transport.arena import Arena
from srl.transport.bell import Bell, Ear
from srl.transport.blocks import BlockArena, block_arena_bytes
from srl.transport.compression import Compression, make_compression
from srl.transport.control import Network
from srl.transport.keys import Doorkeeper
from srl.transport.sockets import Server
from srl.workers.policy import Gather, HostGather, PolicyWorker
from srl.workers.pool import Pool

if TYPE_CHECKING:
    from srl.workers.buffer import Buffer

_PATIENCE_SECONDS = 60.0
_READ_BY_GPUS = ("samples", "sending", "draws")
"""Arenas whose blocks are copied to GPUs from where they lie."""


def bell_address(folder: str, plan: Plan, route: RoutePlan) -> str:
    """Where new parameters of a route are rung for, in a host's folder of sockets."""
    number = [r.policy for r in plan.routes].index(route.policy)
    return f"ipc://{folder}/bell-{number}"


class Connector(Protocol):
    """Makes the ends of a route's streams."""

    restores_blocks: bool
    """Whether blocks under way, staged ones too, are part of checkpoints."""
    group: Group
    """The trainer's place among those of its policy."""
    incarnation: int
    """Which life of the worker this is."""

    def producer(self, route: RoutePlan, actor: int) -> SampleProducer:
        """An actor's end of the sample stream."""
        ...

    def consumer(self, route: RoutePlan, taker: int) -> SampleConsumer:
        """The end of the sample stream of a trainer, or of a buffer."""
        ...

    def buffer_end(self, name: str, route: RoutePlan, buffer: int) -> SampleProducer:
        """The sender's end of the stream `draws` of a buffer, or `priorities` to it."""
        ...

    def buffered_end(self, name: str, route: RoutePlan, index: int) -> SampleConsumer:
        """The receiver's end of them: of `draws` a trainer's, of `priorities` a buffer's."""
        ...

    def publisher(self, route: RoutePlan) -> ParameterPublisher:
        """The trainer's end of the parameter stream."""
        ...

    def subscriber(self, route: RoutePlan) -> ParameterSubscriber:
        """A policy's end of the parameter stream."""
        ...

    def client(self, route: RoutePlan, actor: int) -> InferenceClient:
        """An actor's end of the inference stream."""
        ...

    def server(self, route: RoutePlan, policy_worker: int) -> InferenceServer:
        """A policy worker's end of the inference stream."""
        ...

    def memory(self, route: RoutePlan, device: str) -> Memory:
        """Where a trainer that computes on `device` stages its batches."""
        ...

    def gather(self, route: RoutePlan, device: str) -> Gather:
        """How a policy worker that computes on `device` gathers requests."""
        ...

    def patience(self, route: RoutePlan) -> float:
        """Seconds to wait for a version; 0: it is there before anybody may use it."""
        ...


class InlineConnector:
    """Streams within this process."""

    restores_blocks = True
    group: Group = Alone()
    incarnation = 1

    def __init__(self, plan: Plan) -> None:
        num_actors = plan.experiment["actors"]["count"]
        self._plan = plan
        self.samples: dict[str, InlineSamples] = {}
        self.workspaces: dict[str, BlockArena] = {}
        self.parameters: dict[str, InlineParameters] = {}
        for route in plan.routes:
            layout = route.layout()
            arena = Arena.heap(block_arena_bytes(layout, num_actors, route.slots))
            blocks = BlockArena(arena.buffer, layout, num_actors, route.slots)
            self.parameters[route.policy] = InlineParameters()
            if route.is_frozen:
                self.workspaces[route.policy] = blocks
                self.parameters[route.policy] = pinned_parameters(plan, route)
            else:
                self.samples[route.policy] = InlineSamples(blocks)

    def producer(self, route: RoutePlan, actor: int) -> SampleProducer:
        """An actor's end of the sample stream."""
        if route.is_frozen:
            return Workspace(self.workspaces[route.policy], actor)
        return self.samples[route.policy].producer(actor)

    def consumer(self, route: RoutePlan, taker: int) -> SampleConsumer:
        """The trainer's end of the sample stream; there is one trainer."""
        assert taker == 0
        return self.samples[route.policy].consumer()

    def buffer_end(self, name: str, route: RoutePlan, buffer: int) -> SampleProducer:
        """There are no buffers in one process."""
        raise AssertionError(f"buffer {buffer} of {route.policy} has no stream {name}")

    def buffered_end(self, name: str, route: RoutePlan, index: int) -> SampleConsumer:
        """There are no buffers in one process."""
        raise AssertionError(f"there is no stream {name} of {route.policy} to {index}")

    def publisher(self, route: RoutePlan) -> ParameterPublisher:
        """The trainer's end of the parameter stream."""
        return self.parameters[route.policy]

    def subscriber(self, route: RoutePlan) -> ParameterSubscriber:
        """A policy's end of the parameter stream."""
        return self.parameters[route.policy]

    def client(self, route: RoutePlan, actor: int) -> InferenceClient:
        """The actor's own copy of the policy."""
        return inline_inference(self._plan, route, actor, self.subscriber(route))

    def server(self, route: RoutePlan, policy_worker: int) -> InferenceServer:
        """There are no policy workers in one process."""
        raise AssertionError(f"policy worker {policy_worker} of {route.policy} has no stream")

    def memory(self, route: RoutePlan, device: str) -> Memory:
        """On the host, whatever the device: what is staged is part of checkpoints."""
        return HostMemory()

    def gather(self, route: RoutePlan, device: str) -> Gather:
        """There are no policy workers in one process."""
        raise AssertionError(f"a policy worker of {route.policy} on {device} has no stream")

    def patience(self, route: RoutePlan) -> float:
        """A function call is not waited for."""
        return 0.0


class ProcessConnector:
    """Streams between processes: over inherited arenas and sockets in one folder, or over a network."""

    restores_blocks = False

    def __init__(
        self,
        plan: Plan,
        arenas: Mapping[str, np.ndarray],
        folder: str,
        incarnation: int,
        group: Group,
        *,
        host: int = 0,
        network: Network | None = None,
        context: "zmq.Context[Any] | None" = None,
    ) -> None:
        """Join those of `host`, and others by `network`; sockets are made by `context`, if given."""
        self.group = group
        self._host = host
        self._network = network
        self._is_one_of_many = len(hosts_of(plan)) > 1
        self._plan = plan
        self._arenas = arenas
        self._folder = folder
        self.incarnation = self._incarnation = incarnation
        self._num_actors = plan.experiment["actors"]["count"]
        receivers = plan.experiment["network"]["receivers"]
        self._context: zmq.Context[Any] = context or zmq.Context(receivers if network else 1)
        self._doorkeeper: Doorkeeper | None = None
        if network is not None and network.listeners:
            self._doorkeeper = Doorkeeper(self._context, network.keys)
        self._remote: list[TcpProducer | TcpConsumer | RequestClient | RequestServer] = []

    def refused(self) -> dict[str, int]:
        """What came over the network and was not let in, by its name in reports; empty without one."""
        if self._network is None:
            return {}
        came = self._doorkeeper.counters() if self._doorkeeper else {}
        return {**came, "messages_refused": sum(end.rejected for end in self._remote)}

    def producer(self, route: RoutePlan, actor: int) -> SampleProducer:
        """An actor's end of the sample stream."""
        if route.is_frozen:
            return Workspace(self._blocks(route), actor)
        if sends_over(self._plan, route, actor) == "tcp":
            network = self._reach()
            producer = TcpProducer(
                self._sending(route, actor),
                network.addresses[receiver_of(self._plan, route, actor)],
                index=actor,
                incarnation=self._incarnation,
                keys=network.keys,
                context=self._context,
                compression=self._compression(),
            )
            self._remote.append(producer)
            return producer
        return ShmProducer(
            self._blocks(route),
            self._address("samples", route, taker_of(self._plan, actor)),
            index=actor,
            incarnation=self._incarnation,
            context=self._context,
        )

    def consumer(self, route: RoutePlan, taker: int) -> SampleConsumer:
        """The end of the sample stream of a trainer, or of a buffer."""
        blocks, address = self._blocks(route), self._address("samples", route, taker)
        receivers = self._servers(f"samples/{route.policy}/{taker}")
        if not receivers:
            return ShmConsumer(blocks, address, consumer=taker, context=self._context)
        servers = [Server(self._context, address), *receivers]
        compression = self._compression()
        consumer = TcpConsumer(blocks, servers, consumer=taker, compression=compression)
        self._remote.append(consumer)
        return consumer

    def buffer_end(self, name: str, route: RoutePlan, buffer: int) -> SampleProducer:
        """The sender's end of the stream `draws` of a buffer, or `priorities` to it."""
        blocks = self._drawn(name, route)
        return ShmProducer(
            blocks,
            self._address(name, route, buffer % blocks.table.num_consumers),
            index=buffer,
            incarnation=self._incarnation,
            context=self._context,
        )

    def buffered_end(self, name: str, route: RoutePlan, index: int) -> SampleConsumer:
        """The receiver's end of them: of `draws` a trainer's, of `priorities` a buffer's."""
        address = self._address(name, route, index)
        blocks = self._drawn(name, route)
        return ShmConsumer(blocks, address, consumer=index, context=self._context)

    def publisher(self, route: RoutePlan) -> ParameterPublisher:
        """The trainer's end of the parameter stream."""
        arena, bell = self._arenas[f"parameters/{route.policy}"], None
        if self._is_one_of_many:
            bell = Bell(self._context, bell_address(self._folder, self._plan, route))
        return ShmPublisher(arena, route.weights_spec(), bell)

    def subscriber(self, route: RoutePlan) -> ParameterSubscriber:
        """A policy's end of the parameter stream."""
        if route.is_frozen:
            return pinned_parameters(self._plan, route)
        arena, ear = self._arenas[f"parameters/{route.policy}"], None
        if self._is_fed(route):
            ear = Ear(self._context, bell_address(self._folder, self._plan, route))
        return ShmSubscriber(arena, route.weights_spec(), ear)

    def client(self, route: RoutePlan, actor: int) -> InferenceClient:
        """The actor's own copy of the policy, or its connections to the policy workers."""
        if self._plan.answers_itself(actor):
            patience = self.patience(route)
            return inline_inference(
                self._plan, route, actor, self.subscriber(route), patience_seconds=patience
            )
        substrate, workers = asks_over(self._plan, route, actor)
        if substrate == "tcp":
            network = self._reach()
            client = TcpInferenceClient(
                self._frames(route),
                [network.addresses[inference_end(route, i)] for i in workers],
                keys=network.keys,
                index=actor,
                incarnation=self._incarnation,
                num_slots=route.slots,
                digest=route.layout().spec.digest(),
                context=self._context,
            )
            self._remote.append(client)
            return client
        return ShmInferenceClient(
            self._plan.replies(route),
            [self._arenas[f"replies/{route.policy}/{i}"] for i in workers],
            [self._address("inference", route, i) for i in workers],
            index=actor,
            incarnation=self._incarnation,
            num_slots=route.slots,
            digest=route.layout().spec.digest(),
            context=self._context,
        )

    def server(self, route: RoutePlan, policy_worker: int) -> InferenceServer:
        """A policy worker's end of the inference stream: for actors of its host, of others, or of both."""
        near, far = None, None
        digest, frames = route.layout().spec.digest(), self._frames(route)
        for server in self._servers(inference_end(route, policy_worker)):
            far = TcpInferenceServer(frames, server, digest=digest, incarnation=self._incarnation)
            self._remote.append(far)
        replies = f"replies/{route.policy}/{policy_worker}"
        if replies in self._arenas:
            near = ShmInferenceServer(
                {actor: self._rows_of(route, actor) for actor in self._near(route)},
                self._plan.replies(route),
                self._arenas[replies],
                self._address("inference", route, policy_worker),
                inputs=input_names(route.agent_spec(), route.records()),
                digest=digest,
                incarnation=self._incarnation,
                context=self._context,
            )
        if near is not None and far is not None:
            return JoinedServer(near, far, frozenset(self._near(route)))
        only = near or far
        assert only is not None, "a policy worker that nobody asks"
        return only

    def patience(self, route: RoutePlan) -> float:
        """Seconds to wait for a version; 0: it is there before anybody may use it."""
        return _PATIENCE_SECONDS if self._is_fed(route) else 0.0

    def _is_fed(self, route: RoutePlan) -> bool:
        """Whether the parameters of a route come to this host from another."""
        is_far = not route.is_frozen and not is_source(self._plan, route, self._host)
        return self._is_one_of_many and is_far

    def memory(self, route: RoutePlan, device: str) -> Memory:
        """Where a trainer that computes on `device` stages its batches."""
        if not device.startswith("cuda"):
            return HostMemory()
        return self._gpu(route).GpuMemory(device)

    def gather(self, route: RoutePlan, device: str) -> Gather:
        """How a policy worker that computes on `device` gathers requests."""
        if not device.startswith("cuda"):
            return HostGather()
        return self._gpu(route).GpuGather(device)

    def _gpu(self, route: RoutePlan) -> Any:
        """`srl.learning.gpu`, with the blocks of a route registered; imports torch."""
        gpu = import_module("srl.learning.gpu")
        for name, arena in self._arenas.items():
            if name.split("/")[:2] in [[kind, route.policy] for kind in _READ_BY_GPUS]:
                gpu.register(arena)
        return gpu

    def _near(self, route: RoutePlan) -> list[int]:
        """Actors of this host, which ask over shared memory if policy workers are here."""
        here = actors_on(self._plan, self._host)
        return [a for a in here if asks_over(self._plan, route, a)[0] == "shm"]

    def _rows_of(self, route: RoutePlan, actor: int) -> tuple[BlockArena, int]:
        """Where an actor of this host writes its rows, and its place there."""
        is_sent = f"sending/{route.policy}/{actor}" in self._arenas
        return (self._sending(route, actor), 0) if is_sent else (self._blocks(route), actor)

    def _blocks(self, route: RoutePlan) -> BlockArena:
        """The blocks that trainers of this host take (or, of a frozen policy, nobody)."""
        held = taken_by(self._plan, route, self._host)
        shape = self._num_actors, route.slots, self._plan.num_takers
        return BlockArena(
            self._arenas[f"samples/{route.policy}"], route.layout(), *shape, held=held
        )

    def _drawn(self, name: str, route: RoutePlan) -> BlockArena:
        """What goes between the buffers of this host and their trainers."""
        layout, consumers = draw_streams(self._plan, route)[name]
        shape = self._plan.num_buffers, SLOTS, consumers
        held = buffers_on(self._plan, route, self._host)
        return BlockArena(self._arenas[f"{name}/{route.policy}"], layout, *shape, held=held)

    def _sending(self, route: RoutePlan, actor: int) -> BlockArena:
        """The blocks of an actor that go over the network."""
        buffer = self._arenas[f"sending/{route.policy}/{actor}"]
        return BlockArena(buffer, route.layout(), 1, route.slots)

    def _frames(self, route: RoutePlan) -> FrameLayouts:
        replies = self._plan.replies(route)
        return FrameLayouts.make(
            route.layout(),
            input_names(route.agent_spec(), route.records()),
            replies.outputs,
            num_clients=replies.num_clients,
            num_groups=replies.num_groups,
        )

    def _compression(self) -> Compression | None:
        return make_compression(self._plan.experiment["network"]["compression"])

    def _reach(self) -> Network:
        assert self._network is not None, "a stream over a network, and no keys"
        return self._network

    def _servers(self, name: str) -> list[Server]:
        """What listens for this worker at an end, or at its parts: each has a thread of its own."""
        if self._network is None:
            return []
        listeners = self._network.listeners
        mine = {end: listeners[end] for end in listeners if f"{end}/".startswith(f"{name}/")}
        assert self._doorkeeper or not mine, "a listener that nobody guards"
        return [
            Server(
                self._context,
                self._network.addresses[end],
                keeper=self._doorkeeper,
                listener=fd,
                thread=number % self._plan.experiment["network"]["receivers"],
            )
            for number, (end, fd) in enumerate(sorted(mine.items()))
        ]

    def _address(self, edge: str, route: RoutePlan, index: int) -> str:
        number = [r.policy for r in self._plan.routes].index(route.policy)
        return f"ipc://{self._folder}/{edge}-{number}-{index}"


def build_worker(plan: Plan, name: str, connector: Connector) -> Worker:
    """A worker with its ends of the streams; imports only what this kind needs."""
    worker = plan.worker(name)
    if worker.kind == "actor":
        return _build_actor(plan, worker, connector)
    if worker.kind == "policy":
        return _build_policy(plan, worker, connector)
    if worker.kind == "evaluator":
        return _build_evaluator(plan, worker, connector)
    if worker.kind == "buffer":
        return _build_buffer(plan, worker, connector)
    return _build_trainer(plan, worker, connector)


def inline_inference(
    plan: Plan,
    route: RoutePlan,
    actor: int,
    parameters: ParameterSubscriber,
    *,
    patience_seconds: float = 0.0,
) -> InlineInference:
    """A copy of the policy inside an actor."""
    seed = worker_seed(plan, "actor", actor, route)
    policy = make_acting_policy(plan, route, seed=seed, compute=plan.compute("cpu"))
    names = input_names(route.agent_spec(), route.records())
    return InlineInference(policy, parameters, names, patience_seconds=patience_seconds)


def pinned_parameters(plan: Plan, route: RoutePlan) -> InlineParameters:
    """The parameters of a frozen policy: one version, read from the run folder."""
    from srl.launch.graph.pool import pinned_weights

    parameters = InlineParameters()
    parameters.publish(pinned_weights(Path(plan.folder), route.policy), 0)
    return parameters


def make_policy(plan: Plan, route: RoutePlan, *, seed: int, compute: Compute) -> Policy:
    """The policy of a route, with fresh weights."""
    if route.is_frozen:
        from srl.launch.graph.pool import make_pool

        return make_pool(route.opponents, seed=seed, compute=compute)
    algorithm: AlgorithmConfig = decode_algorithm(plan.experiment["algorithm"])
    return algorithm.make_policy(route.agent_spec(), seed=seed, compute=compute)


def make_acting_policy(plan: Plan, route: RoutePlan, *, seed: int, compute: Compute) -> Policy:
    """The policy of a route for who answers actors: without torch where there is such a one."""
    if not route.small or compute.device != "cpu":
        return make_policy(plan, route, seed=seed, compute=compute)
    agents = [AgentSpec.from_dict(o.agent) for o in route.opponents] or [route.agent_spec()]
    made: list[Policy] = [
        load_object(small.maker)(agent, seed=seed + number, **small.options)
        for number, (small, agent) in enumerate(zip(route.small, agents, strict=True))
    ]
    return Pool(made) if route.is_frozen else made[0]


def worker_seed(plan: Plan, kind: str, index: int, route: RoutePlan) -> int:
    """A seed of its own for what every worker of a run does for every policy."""
    number = [r.policy for r in plan.routes].index(route.policy)
    numbers = (number,) if number else ()  # of a run with one policy, the seed it always had
    kinds = ("trainer", "policy", "actor", "evaluator", "replay")
    return plan.seed(kinds.index(kind), index, *numbers)


def env_seed(plan: Plan) -> int:
    """The seed that those of all episodes are made of."""
    return plan.seed() if plan.restarted_at else plan.experiment["seed"]


def _build_actor(plan: Plan, worker: WorkerPlan, connector: Connector) -> Worker:
    from srl.workers.actor import Actor

    actors = plan.experiment["actors"]
    seed = env_seed(plan)
    per_group = actors["envs"] // actors["groups"]
    first_env = worker.index * actors["envs"]
    config = msgspec.convert(plan.experiment["env"], EnvConfig)
    sets = tuple(route.agents for route in plan.routes)
    recovery = recovery_of(config, seed, num_envs=per_group, first_env=first_env, sets=sets)
    envs = [recovery.make(recovery.origin(group, 0)) for group in range(actors["groups"])]
    ends = [
        RouteEnds(
            agent=route.agent_spec(),
            agents=route.agents,
            layout=route.layout(),
            producer=connector.producer(route, worker.index),
            inference=connector.client(route, worker.index),
            records=route.records(),
            scale_rewards=config.scale_rewards,
            clip_rewards=config.clip_rewards,
            policy=route.policy,
            seed=worker_seed(plan, "actor", worker.index, route),
        )
        for route in plan.routes
    ]
    return Actor(worker.name, envs, ends, first_env=first_env, recovery=recovery)


def _build_policy(plan: Plan, worker: WorkerPlan, connector: Connector) -> Worker:
    route, device = plan.route(worker.policy), plan.device(worker)
    policy = make_acting_policy(
        plan,
        route,
        seed=worker_seed(plan, "policy", worker.index, route),
        compute=plan.compute(device),
    )
    server = connector.server(route, worker.index)
    gather = connector.gather(route, device)
    return PolicyWorker(
        worker.name,
        policy,
        server,
        connector.subscriber(route),
        gather,
        patience_seconds=connector.patience(route),
    )


def _build_evaluator(plan: Plan, worker: WorkerPlan, connector: Connector) -> Worker:
    from srl.workers.evaluator import Evaluator

    wanted = plan.experiment["evaluation"]
    num_envs, per_lane = evaluation_lanes(wanted["episodes"])
    config = msgspec.convert(plan.experiment["env"], EnvConfig)
    sets = tuple(route.agents for route in plan.routes)
    players = []
    for route in plan.routes:
        seed = worker_seed(plan, "evaluator", worker.index, route)
        policy = make_policy(plan, route, seed=seed, compute=plan.compute("cpu"))
        if route.is_frozen:
            policy.load_weights(connector.subscriber(route).fetch()[1])
        counts = not route.is_frozen
        players.append(
            Player(route.policy, route.agent_spec(), policy, route.agents, counts=counts)
        )
    return Evaluator(
        worker.name,
        recovery_of(config, plan.experiment["seed"], num_envs=num_envs, sets=sets),
        players,
        {route.policy: connector.subscriber(route) for route in plan.learning},
        episodes_per_lane=per_lane,
        every=wanted["every"],
        folder=Path(plan.folder) / "versions",
    )


def make_learner(plan: Plan, route: RoutePlan, device: str, group: Group) -> Learner:
    """The learner of a route's policy."""
    algorithm: AlgorithmConfig = decode_algorithm(plan.experiment["algorithm"])
    return algorithm.make_learner(
        route.agent_spec(),
        seed=worker_seed(plan, "trainer", 0, route),  # the same on every rank
        compute=plan.compute(device),
        ranks=group.learner,
    )


def make_source(
    plan: Plan, worker: WorkerPlan, connector: Connector, memory: Memory | None = None
) -> Source:
    """Where a trainer's batches come from."""
    route = plan.route(worker.policy)
    if route.replay is not None and plan.num_buffers:
        return _make_drawing(plan, worker, route.replay, connector, memory)
    consumer = connector.consumer(route, worker.index)
    if route.replay is None:
        return make_staging(plan, route, consumer, memory)
    from srl.learning.replaying import Replaying

    guard = make_guard(plan, worker, route.layout())
    source = Replaying(consumer, make_replay(plan, worker, route.replay), guard)
    _retire_late(plan, source)
    return source


def make_replay(plan: Plan, worker: WorkerPlan, kept: ReplayPlan) -> Replay:
    """The share of a replay buffer that a worker keeps."""
    route, actors = plan.route(worker.policy), plan.experiment["actors"]
    return Replay(
        kept.config,
        kept.window,
        route.layout(),
        groups=actors["count"] * actors["groups"] // kept.shards,
        shards=kept.shards,
        seed=worker_seed(plan, "replay", worker.index, route),
        folder=Path(plan.folder) / "replay",
    )


def _make_drawing(
    plan: Plan, worker: WorkerPlan, kept: ReplayPlan, connector: Connector, memory: Memory | None
) -> Drawing:
    """The ends of a trainer whose batches are drawn by buffers."""
    route = plan.route(worker.policy)
    draws = connector.buffered_end("draws", route, worker.index)
    told = draws.assigned() if kept.is_prioritised else ()
    priorities = {buffer: connector.buffer_end("priorities", route, buffer) for buffer in told}
    return Drawing(draws, priorities, kept.windows(route.layout()), memory=memory)


def _build_buffer(plan: Plan, worker: WorkerPlan, connector: Connector) -> Worker:
    from srl.workers.buffer import Buffer

    route = plan.route(worker.policy)
    kept = route.replay
    assert kept is not None, "a buffer of an algorithm without replay"
    told = None
    if kept.is_prioritised:
        told = connector.buffered_end("priorities", route, worker.index)
    buffer = Buffer(
        worker.name,
        make_replay(plan, worker, kept),
        connector.consumer(route, worker.index),
        connector.buffer_end("draws", route, worker.index),
        told,
        life=connector.incarnation,
        guard=make_guard(plan, worker, route.layout()),
    )
    _retire_late(plan, buffer)
    return buffer


def _retire_late(plan: Plan, taker: "Source | Buffer") -> None:
    """Expect nothing of actors that may come later."""
    for worker in plan.of_kind("actor"):
        if plan.host_of(worker.name) == LATE:
            taker.retire(worker.index)


def make_staging(
    plan: Plan,
    route: RoutePlan,
    consumer: SampleConsumer,
    memory: Memory | None = None,
) -> Staging:
    """What gathers a trainer's share of the blocks of a route into batches."""
    gate = Gate(
        num_producers=len(consumer.assigned()),
        batch=route.batch // plan.num_ranks,
        max_staleness=plan.experiment["max_staleness"],
    )
    staging = Staging(consumer, gate, route.layout(), burn_in=route.burn_in, memory=memory)
    _retire_late(plan, staging)
    return staging


def _build_trainer(plan: Plan, worker: WorkerPlan, connector: Connector) -> Worker:
    from srl.workers.trainer import Trainer

    route = plan.route(worker.policy)
    learner = make_learner(plan, route, plan.device(worker), connector.group)
    memory = connector.memory(route, plan.device(worker))
    source = make_source(plan, worker, connector, memory)
    return Trainer(
        worker.name,
        learner,
        source,
        None if worker.index else connector.publisher(route),
        saves_staged=connector.restores_blocks,
        total_env_steps=plan.experiment["stop"]["env_steps"],
        ranks=connector.group.meeting,
        guard=make_guard(plan, worker, source.layout),
    )


def make_guard(plan: Plan, worker: WorkerPlan, layout: Layout) -> Guard:
    """What a worker does about numbers that are not finite, in batches of blocks of `layout`."""
    origin = Origin(
        env=plan.experiment["env"]["name"],
        agents=sum(len(route.agents) for route in plan.routes),
        envs_an_actor=plan.experiment["actors"]["envs"],
        seed=env_seed(plan),
    )
    return Guard(
        Tracer(layout, origin),
        on_nan=plan.experiment["on_nan"],
        worker=worker.name,
        folder=Path(plan.folder) if plan.folder else None,
    )
