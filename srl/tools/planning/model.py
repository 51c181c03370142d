"""How fast a run will be: a closed queueing network, solved by iteration.

What circulates are groups of envs. A group is stepped by its actor, one group at a time; asks a policy worker,
which answers all that came while it answered the last; and is stepped again. Blocks that are full go to a
trainer, and sampling may run ahead of it by `max_staleness` batches.

Processes share the cores of their machine: where they need more than there are, all of them get slower by one
factor, the machine's *stretch*, until what they do fits into most of them. Who then never waits is what holds the others back.
The time splits that follow are named by the rule that names them in a run.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from srl.telemetry.bottleneck import name_bottleneck

_ITERATIONS = 400
_CLOSE = 1e-6
_JITTER = 0.1
"""Standard deviation of an update's time, as a share of it: trainers that learn together wait for the last."""
_PACKING = 0.92
"""Share of its cores that a machine's processes keep busy at most: they wait for each other, too."""


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """What things cost, measured on one machine; microseconds of a core, unless it says otherwise."""

    env: float
    """An env step."""
    env_idle: float = 0.0
    """An env step, waiting: the env sleeps, or waits for a process of its own."""
    call: float = 0.0
    """A step of a group, whatever its size: the actor's loop."""
    inference: tuple[tuple[int, float], ...]
    """Rows of a batch to microseconds a row."""
    inference_is_cpu: bool = True
    """Or a GPU's time, and no core's."""
    update: float
    """An env step, all that a trainer does about it: seconds that pass, with one thread."""
    update_cpu: float
    """The same, of cores."""
    learn: tuple[tuple[int, float], ...] = ()
    """Rows of a minibatch to microseconds a row: what `update` becomes of trainers that share minibatches."""
    ask: float = 0.0
    """A request to a policy worker on the same host, of the actor."""
    serve: float = 0.0
    """The same, of the policy worker, beside inference."""
    answer_seconds: float = 0.0
    """From a request to its answer on one host, when nobody works on it."""
    far_ask: float = 0.0
    far_serve: float = 0.0
    far_answer_seconds: float = 0.0
    """The same over the network: rows are sent, and encrypted; without the network's own time."""
    far_send: float = 0.0
    """An env step that is sent to another host in a block, of the actor."""
    far_receive: float = 0.0
    """The same, of the trainer's process; half of it while it learns (in threads that receive)."""
    version: float = 0.0
    """A version: of the controller and the agent, for all they do about it."""
    exchange_seconds: float = 0.0
    """An update: until two trainers of a host have told each other all they must."""
    exchange: float = 0.0
    """The same, of cores of each."""
    agents: int = 1
    """Rows an env step."""
    envs: int = 1
    """Of the groups that requests were measured with."""
    block_bytes: float = 0.0
    """Of an env step."""
    request_bytes: float = 0.0
    """Of a row, shown and answered."""
    weights_bytes: float = 0.0

    def inference_us(self, rows: float) -> float:
        """Microseconds a row in a batch of this size."""
        return _between(self.inference, rows)

    def shared_update(self, rows: float, ranks: int) -> float:
        """What an update of these rows costs all ranks together that share it, of what it costs one alone."""
        if not self.learn or ranks == 1:
            return 1.0
        return _between(self.learn, rows / ranks) / _between(self.learn, rows)


def _between(table: Sequence[tuple[int, float]], rows: float) -> float:
    """Microseconds a row: on a line between those that were measured."""
    sizes = sorted(table)
    if rows <= sizes[0][0]:  # a batch costs what the least one does
        return sizes[0][1] * sizes[0][0] / max(rows, 1.0)
    for (low, us), (high, more) in itertools.pairwise(sizes):
        if rows <= high:
            part = math.log(rows / low) / math.log(high / low)
            return us + (more - us) * part
    return sizes[-1][1]


@dataclass(frozen=True)
class Crew:
    """Actors that are alike."""

    count: int
    host: int
    servers: tuple[int, ...] = ()
    """Those they ask, of `Setup.servers`; none: they answer themselves."""
    is_far: bool = False
    """They ask over the network."""
    sends_far: float = 0.0
    """Share of them whose trainer is on another host."""


@dataclass(frozen=True)
class Team:
    """Policy workers, or trainers, of one host."""

    count: int
    host: int


@dataclass(frozen=True)
class Setup:
    """Who is where, and what is there."""

    crews: tuple[Crew, ...]
    servers: tuple[Team, ...]
    trainers: tuple[Team, ...]
    machines: tuple[float, ...]
    """Cores of each."""
    machine_of: tuple[int, ...]
    """Host to its machine: hosts may share one."""
    groups: int
    envs: int
    """Of a group."""
    batch: int
    """Env steps of a batch, of all trainers together."""
    rollout: int = 1
    """Steps of a block."""
    minibatches: int = 1
    """Updates of a batch: trainers add their gradients up in each."""
    minibatch: int = 1
    """Rows of one, of all trainers together."""
    max_staleness: int = 1
    trainer_threads: int = 1
    latency_seconds: float = 0.0
    """Between two hosts, one way."""
    bandwidth: float = math.inf
    """Bytes a second of a host, each way."""

    @property
    def actors(self) -> int:
        """All of them."""
        return sum(crew.count for crew in self.crews)

    @property
    def ranks(self) -> int:
        """Trainers that learn together."""
        return sum(team.count for team in self.trainers)


@dataclass(frozen=True)
class Prediction:
    """What comes of it."""

    env_steps_per_second: float
    bottleneck: str
    """In the words of a run's own account, or that the network is full."""
    limits: Mapping[str, float]
    """Env steps a second that sampling, learning and the network would allow each, beside the others."""
    staleness: float
    """Versions, on average."""
    mean_rows: float
    """Rows that a policy worker answers at a time; 0: there is none."""
    answer_seconds: float
    """From a request to its answer; 0: there is none."""
    network: Mapping[int, float]
    """Host to bytes a second, in the busier direction."""
    load: tuple[float, ...]
    """Machine to its cores that are busy, as a share."""


def predict(setup: Setup, costs: Costs) -> Prediction:
    """Solve for the rate at which all of it goes on."""
    network = _network_limit(setup, costs)
    if setup.max_staleness:
        state = _solve(setup, costs, learns=True, most=network)
        rate, sampling, learning = state.rate, state.sampling, state.learning
    else:  # one after the other, each with all cores
        state = _solve(setup, costs, learns=False, most=network)
        learning = _learning(setup, costs, _learning_stretch(setup), [0.0] * len(setup.machines))
        sampling = state.rate
        rate = 1 / (1 / sampling + 1 / learning)
    limits = {"sampling": sampling, "learning": learning}
    if math.isfinite(network):
        limits["network"] = network
    is_full = rate > 0.98 * network
    return Prediction(
        env_steps_per_second=rate,
        bottleneck="the network: a host sends or receives all it can; lz4 helps, or fewer hosts"
        if is_full
        else name_bottleneck(_splits(setup, costs, state, rate)),
        limits=limits,
        staleness=_staleness(setup, rate, learning),
        mean_rows=state.rows,
        answer_seconds=state.answer,
        network={host: rate * max(both) for host, both in sorted(_traffic(setup, costs).items())},
        load=tuple(load / cores for load, cores in zip(state.load, setup.machines, strict=True)),
    )


@dataclass
class _State:
    """Where the iteration is."""

    stretch: list[float]
    rate: float = 0.0
    sampling: float = 0.0
    learning: float = math.inf
    rows: float = 0.0
    answer: float = 0.0
    load: Sequence[float] = ()
    others: Sequence[float] = ()
    """Of the load, what is not of trainers."""


def _solve(setup: Setup, costs: Costs, *, learns: bool, most: float) -> _State:
    """Stretch every machine until its processes need what it has."""
    nothing = [0.0] * len(setup.machines)
    state = _State([1.0] * len(setup.machines), load=nothing, others=nothing)
    for turn in range(_ITERATIONS):
        state.rows, state.answer = _answers(setup, costs, state)
        state.sampling = _allowed(setup) * sum(
            crew.count * _rate_of_actor(setup, costs, crew, state) for crew in setup.crews
        )
        if learns:
            state.learning = _learning(setup, costs, state.stretch, state.others)
        rate = min(state.sampling, state.learning, most)
        last = state.rate
        # ever shorter steps: where answers take long, the next rate is far on the other side
        state.rate = rate if not last else last * (rate / last) ** max(0.01, 4 / (8 + turn))
        state.load, state.others = _load(setup, costs, state, learns=learns)
        moved = abs(state.rate / last - 1) if last else 1.0
        for machine, cores in enumerate(setup.machines):
            before = state.stretch[machine]
            wanted = max(1.0, before * (state.load[machine] / cores / _PACKING) ** 0.2)
            state.stretch[machine] = wanted
            moved = max(moved, abs(wanted / before - 1))
        if moved < _CLOSE:
            break
    return state


def _allowed(setup: Setup) -> float:
    """Share of the groups that may work at a time: blocks under way are limited by staleness."""
    blocks = (setup.max_staleness + 1) * setup.batch / (setup.envs * setup.rollout)
    return min(1.0, blocks / (setup.actors * setup.groups))


def _own_us(setup: Setup, costs: Costs, crew: Crew) -> float:
    """Core-microseconds of an actor a step of a group."""
    us = costs.call + setup.envs * costs.env + setup.envs * crew.sends_far * costs.far_send
    if not crew.servers:
        rows = setup.envs * costs.agents
        return us + rows * costs.inference_us(rows)
    return us + (_by_size(costs.far_ask, setup, costs) if crew.is_far else costs.ask)


def _by_size(us: float, setup: Setup, costs: Costs) -> float:
    """What a message costs that brings rows along: half of it is for its bytes."""
    return us * (0.5 + 0.5 * setup.envs / costs.envs)


def _turn(setup: Setup, costs: Costs, crew: Crew, state: _State) -> float:
    """Seconds of an actor a step of a group."""
    stretch = state.stretch[setup.machine_of[crew.host]]
    return (_own_us(setup, costs, crew) * stretch + setup.envs * costs.env_idle) * 1e-6


def _rate_of_actor(setup: Setup, costs: Costs, crew: Crew, state: _State) -> float:
    """Env steps a second of one actor that nobody holds up but policy workers."""
    turn = _turn(setup, costs, crew, state)
    if not crew.servers:
        return setup.envs / turn
    way = 2 * setup.latency_seconds if crew.is_far else 0.0
    return setup.envs * _circulate(setup.groups, turn, state.answer + way)


def _circulate(groups: int, turn: float, answer: float) -> float:
    """Steps a second of `groups` that take turns at one actor, and are away for their answers between.

    Between what mean values give for times that vary as much as they can, and for times that never do.
    """
    queue = varied = 0.0
    regular = min(1 / turn, groups / (turn + answer))
    for n in range(1, groups + 1):
        stay = turn * (1 + queue)
        varied = n / (answer + stay)
        queue = varied * stay
    return (regular + varied) / 2


def _request_us(setup: Setup, costs: Costs, *, is_far: bool) -> float:
    """Core-microseconds of a policy worker a request, beside inference."""
    return _by_size(costs.far_serve, setup, costs) if is_far else costs.serve


def _answers(setup: Setup, costs: Costs, state: _State) -> tuple[float, float]:
    """Rows answered at a time, and the seconds to an answer without the way; zeros where nobody asks."""
    asking = [crew for crew in setup.crews if crew.servers]
    if not asking:
        return 0.0, 0.0
    count = sum(team.count for team in setup.servers)
    groups = sum(crew.count for crew in asking) * setup.groups / count
    part = sum(crew.count for crew in asking) / setup.actors
    arriving = max(state.rate, 1.0) * part / setup.envs / count
    is_far = any(crew.is_far for crew in asking)
    rows = setup.envs * costs.agents
    stretch = max(state.stretch[setup.machine_of[team.host]] for team in setup.servers)

    def seconds(requests: float) -> float:
        own = rows * costs.inference_us(requests * rows)
        if costs.inference_is_cpu:
            own *= stretch
        return requests * (own + stretch * _request_us(setup, costs, is_far=is_far)) * 1e-6

    requests = 1.0
    for _ in range(30):
        requests = min(groups, max(1.0, arriving * seconds(requests)))
    took = seconds(requests)
    busy = min(1.0, arriving / requests * took)
    idle = costs.far_answer_seconds if is_far else costs.answer_seconds
    waits = 0.5 * busy * took if groups > 1 else 0.0  # for the batch before it
    return requests * rows, idle + waits + took


def _learning(
    setup: Setup, costs: Costs, stretch: Sequence[float], others: Sequence[float]
) -> float:
    """Env steps a second that the trainers could learn, beside others that keep these cores busy."""
    far = sum(crew.count * crew.sends_far for crew in setup.crews) / setup.actors
    slowest = max(stretch[setup.machine_of[team.host]] for team in setup.trainers)
    # a tenth of an update is not for threads
    threads = 0.1 + 0.9 / setup.trainer_threads
    own = costs.update * costs.shared_update(setup.minibatch, setup.ranks) * threads
    own += far * costs.far_receive / 2
    if costs.update_cpu > 0.5 * costs.update:
        own *= slowest
    # how long one waits for a core varies as much as it is long
    jitter = _JITTER + (1 - 1 / slowest)
    seconds = own * 1e-6 * (1 + jitter * _expected_highest(setup.ranks)) / setup.ranks
    if setup.ranks > 1:
        # a chain of wake-ups: each finds its core taken as often as others have it
        taken = max(others[m] / setup.machines[m] for m in _machines_of(setup, setup.trainers))
        delay = max(slowest, 1 / (1 - min(_PACKING, taken)))
        exchange = costs.exchange_seconds * delay * (setup.ranks - 1)  # each adds up what all have
        seconds += exchange * setup.minibatches / setup.batch
    if len(setup.trainers) > 1:  # gradients go over the network, twice, once an update
        size = 2 * costs.weights_bytes / setup.bandwidth
        ways = 2 * setup.latency_seconds * math.log2(setup.ranks)
        seconds += (size + ways) * setup.minibatches / setup.batch
    return 1 / seconds


def _machines_of(setup: Setup, teams: Iterable[Team]) -> set[int]:
    return {setup.machine_of[team.host] for team in teams}


def _expected_highest(n: int) -> float:
    """Of n normal numbers, about."""
    return (
        0.0
        if n < 2
        else math.sqrt(2 * math.log(n)) - (0.55 / math.sqrt(math.log(n)) if n > 2 else 0.6)
    )


def _learning_stretch(setup: Setup) -> list[float]:
    """Of machines on which trainers learn and nobody else works."""
    needed = [0.0] * len(setup.machines)
    for team in setup.trainers:
        needed[setup.machine_of[team.host]] += team.count * setup.trainer_threads
    return [max(1.0, n / cores) for n, cores in zip(needed, setup.machines, strict=True)]


def _load(
    setup: Setup, costs: Costs, state: _State, *, learns: bool
) -> tuple[list[float], list[float]]:
    """Cores that each machine's processes keep busy at the rate; and without the trainers."""
    load = [0.0] * len(setup.machines)
    share = _allowed(setup) * state.rate / max(state.sampling, 1e-9)
    count = sum(team.count for team in setup.servers)
    requests = 0.0
    is_far = any(crew.is_far for crew in setup.crews)
    for crew in setup.crews:
        rate = share * _rate_of_actor(setup, costs, crew, state) * crew.count
        steps = rate / setup.envs
        load[setup.machine_of[crew.host]] += steps * _own_us(setup, costs, crew) * 1e-6
        requests += steps if crew.servers else 0.0
    rows = setup.envs * costs.agents
    for team in setup.servers:
        us = _request_us(setup, costs, is_far=is_far)
        if costs.inference_is_cpu:
            us += rows * costs.inference_us(max(state.rows, rows))
        load[setup.machine_of[team.host]] += requests * team.count / count * us * 1e-6
    far = sum(crew.count * crew.sends_far for crew in setup.crews) / setup.actors
    shared = costs.shared_update(setup.minibatch, setup.ranks)
    others = list(load)
    for team in setup.trainers:
        part = team.count / setup.ranks
        us = (costs.update_cpu * shared if learns else 0.0) + far * costs.far_receive
        if learns and setup.ranks > 1:
            exchanges = setup.ranks * (setup.ranks - 1) * setup.minibatches / setup.batch
            us += costs.exchange * exchanges
        load[setup.machine_of[team.host]] += state.rate * part * us * 1e-6
    first = setup.machine_of[setup.trainers[0].host]
    if learns:
        load[first] += state.rate / setup.batch * costs.version * 1e-6
    return load, others


def _traffic(setup: Setup, costs: Costs) -> dict[int, tuple[float, float]]:
    """Host to bytes an env step of the run that leave it, and that reach it."""
    out: dict[int, float] = {}
    into: dict[int, float] = {}

    def add(hosts: Iterable[tuple[int, float]], where: dict[int, float]) -> None:
        for host, count in hosts:
            where[host] = where.get(host, 0.0) + count

    for crew in setup.crews:
        part = crew.count / setup.actors
        sent = part * crew.sends_far * costs.block_bytes
        asked = part * costs.request_bytes * costs.agents if crew.is_far else 0.0
        add([(crew.host, sent + asked)], out)
        others = [team for team in setup.trainers if team.host != crew.host] or setup.trainers
        total = sum(team.count for team in others)
        add([(team.host, sent * team.count / total) for team in others], into)
        if asked:
            total = sum(setup.servers[s].count for s in crew.servers)
            add(
                [
                    (setup.servers[s].host, asked * setup.servers[s].count / total)
                    for s in crew.servers
                ],
                into,
            )
    readers = {crew.host for crew in setup.crews if not crew.servers}
    readers |= {team.host for team in setup.servers}
    first = setup.trainers[0].host
    weights = costs.weights_bytes / setup.batch
    fetched = [(host, weights) for host in readers - {first}]
    add(fetched, into)
    add([(first, weights * len(fetched))], out)
    return {host: (out.get(host, 0.0), into.get(host, 0.0)) for host in out.keys() | into.keys()}


def _network_limit(setup: Setup, costs: Costs) -> float:
    """Env steps a second at which the busiest host's network is full."""
    most = max((max(both) for both in _traffic(setup, costs).values()), default=0.0)
    return setup.bandwidth / most if most and math.isfinite(setup.bandwidth) else math.inf


def _splits(setup: Setup, costs: Costs, state: _State, rate: float) -> dict[str, dict[str, float]]:
    """Where the time of actors, policy workers and trainers goes, as their telemetry would say."""
    share = _allowed(setup) * rate / max(state.sampling, 1e-9)
    works = asks = 0.0
    for crew in setup.crews:
        part = crew.count / setup.actors
        busy = (
            _rate_of_actor(setup, costs, crew, state)
            / setup.envs
            * _turn(setup, costs, crew, state)
        )
        works += part * share * min(1.0, busy)
        asks += part * share * max(0.0, 1 - busy) if crew.servers else 0.0
    learns = min(1.0, rate / state.learning) if math.isfinite(state.learning) else 1 - share
    splits = {
        "actor": {
            "env": works,
            "wait_for_action": asks,
            "wait_for_credit": max(0.0, 1 - works - asks),
        },
        "trainer": {"learn": learns, "wait_for_batch": 1 - learns},
    }
    if setup.servers:
        count = sum(team.count for team in setup.servers)
        us = _request_us(setup, costs, is_far=any(crew.is_far for crew in setup.crews)) / setup.envs
        us += costs.agents * costs.inference_us(max(state.rows, 1.0))
        stretch = max(state.stretch[setup.machine_of[team.host]] for team in setup.servers)
        busy = min(1.0, rate * us * 1e-6 * stretch / count)
        splits["policy"] = {"infer": busy, "wait_for_requests": 1 - busy}
    return splits


def _staleness(setup: Setup, rate: float, learning: float) -> float:
    """Versions between a block's oldest row and its learning, on average.

    A batch is sampled while the one before is learned, so that rows of its first part are one version old:
    the slower learning is, the more; and blocks that begin before a version end after it.
    """
    groups = setup.actors * setup.groups
    spans = min(1.0, groups * setup.envs * setup.rollout / setup.batch)
    return min(float(setup.max_staleness), rate / learning * setup.max_staleness + spans)
