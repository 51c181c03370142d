"""What every substrate of every stream promises, as checks that raise AssertionError.

A substrate is shown to the checks through a small harness that makes its ends, lets what was sent
arrive, and restarts an end. `check_samples`, `check_inference` and `check_parameters` run all
checks of an edge, each on a harness of its own:

    check_samples(lambda: MySampleHarness())

The checks write random bytes into blocks, so any Spec does.
"""

import time
from collections import deque
from collections.abc import Callable
from contextlib import closing
from typing import Protocol

import numpy as np

from srl.core.arrays import Arrays
from srl.core.errors import StreamError
from srl.core.streams import (
    Delivery,
    Grant,
    InferenceClient,
    ParameterPublisher,
    ParameterSubscriber,
    SampleConsumer,
    SampleProducer,
)
from srl.transport.slots import Ledger

_DEADLINE_SECONDS = 30.0


def eventually(is_done: Callable[[], bool], what: str, seconds: float = _DEADLINE_SECONDS) -> None:
    """Call `is_done` until it says so; AssertionError saying `what` did not happen in time."""
    deadline = time.monotonic() + seconds
    while not is_done():
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds:.0f} s"


class SampleHarness(Protocol):
    """Makes a sample stream of at least two producers with at least three slots each.

    The first producer's blocks go to the first consumer.
    """

    num_producers: int
    num_consumers: int
    """Each takes the blocks of producers of its own."""
    num_slots: int
    can_restart: bool
    """Whether an end may die and join again; where it may not, those checks are left out."""
    can_refuse: bool
    """Whether the two ends can disagree on the Spec."""

    def producer(self, index: int) -> SampleProducer:
        """The producer's present life."""
        ...

    def consumer(self, index: int) -> SampleConsumer:
        """The consumer's present life."""
        ...

    def settle(self) -> None:
        """Return when all that was sent before, both ways, has arrived."""
        ...

    def restart_producer(self, index: int) -> None:
        """Kill the producer without a word and start it again."""
        ...

    def restart_consumer(self, index: int) -> None:
        """Kill the consumer without a word and start it again."""
        ...

    def join_with_another_spec(self) -> str:
        """Join a producer whose Spec differs in one field; the text of the error it gets."""
        ...

    def changed_field(self) -> str:
        """The name of that field."""
        ...

    def ledger(self) -> Ledger:
        """What became of every block."""
        ...

    def close(self) -> None:
        """Close everything."""
        ...


class SampleModel:
    """Drives a harness and knows what must come of it; every step checks the ledger."""

    def __init__(self, harness: SampleHarness, seed: int = 0) -> None:
        self.harness = harness
        self.rng = np.random.default_rng(seed)
        self.limits = dict.fromkeys(range(harness.num_producers), 0)
        self.granted = dict(self.limits)
        """By the present life of each one's consumer."""
        self.consumers = range(harness.num_consumers)
        self.consumer_of = {p: c for c in self.consumers for p in harness.consumer(c).assigned()}
        self.filling: dict[tuple[int, int], Grant] = {}
        self.in_stream: list[deque[bytes]] = [deque() for _ in range(harness.num_producers)]
        self.held: list[Delivery] = []
        self.num_started = [0] * harness.num_producers
        self.num_abandoned = [0] * harness.num_consumers
        self.num_taken = [0] * harness.num_consumers
        """Taken by each consumer and not yet consumed."""
        self.sent = self.consumed = self.dropped = self.lost = 0
        assert sorted(self.consumer_of) == list(self.limits), (
            f"not every producer has one consumer: {self.consumer_of}"
        )
        harness.settle()
        self.check_ledger()

    def grant(self, producer: int, num_more: int) -> None:
        """Raise a producer's limit."""
        self.limits[producer] += num_more
        consumer = self.consumer_of[producer]
        self.granted |= {p: self.limits[p] for p in self.producers_of(consumer)}
        limits = {p: self.granted[p] for p in self.producers_of(consumer)}
        self.harness.consumer(consumer).grant(limits, 0)
        self.harness.settle()

    def acquire(self, producer: int) -> Grant | None:
        """Acquire, and check that leave was due and that the slot is nobody else's."""
        grant = self.harness.producer(producer).acquire()
        may = self.num_started[producer] < self.limits[producer]
        mine = sum(p == producer for p, _ in self.filling)
        has_slot = mine + len(self.in_stream[producer]) < self.harness.num_slots
        assert (grant is not None) == (may and has_slot), (
            f"producer {producer} has started {self.num_started[producer]} of "
            f"{self.limits[producer]} blocks and uses {mine} + {len(self.in_stream[producer])} of "
            f"{self.harness.num_slots} slots, and acquire() returned {grant}"
        )
        if grant is None:
            return None
        taken = {(d.producer, d.slot) for d in self.held} | set(self.filling)
        assert (producer, grant.slot) not in taken, (
            f"slot {grant.slot} of producer {producer} was handed out while it was in use"
        )
        grant.block.buffer[:] = self.rng.integers(0, 256, grant.block.buffer.size, np.uint8)
        self.filling[producer, grant.slot] = grant
        self.num_started[producer] += 1
        return grant

    def send(self, producer: int, grant: Grant) -> None:
        """Send a block that was acquired."""
        del self.filling[producer, grant.slot]
        self.in_stream[producer].append(grant.block.buffer.tobytes())
        self.harness.producer(producer).send(grant)
        self.sent += 1
        self.check_ledger()

    def abandon(self, producer: int, grant: Grant) -> None:
        """Give a block back that was acquired."""
        del self.filling[producer, grant.slot]
        self.harness.producer(producer).abandon(grant)
        self.num_abandoned[self.consumer_of[producer]] += 1
        self.harness.settle()
        for index in self.consumers:
            consumer, known = self.harness.consumer(index), self.num_abandoned[index]
            consumer.recv(0)
            told = consumer.abandoned()
            assert told == known, f"{known} blocks were abandoned, the consumer knows of {told}"
        self.check_ledger()

    def recv(self, limit: int) -> list[Delivery]:
        """Receive at most `limit` at each consumer, and check order, bytes and number."""
        self.harness.settle()
        return [delivery for index in self.consumers for delivery in self._recv(index, limit)]

    def _recv(self, consumer: int, limit: int) -> list[Delivery]:
        mine = self.producers_of(consumer)
        held = sum(delivery.producer in mine for delivery in self.held)
        waiting = sum(len(self.in_stream[p]) for p in mine) - held
        deliveries = self.harness.consumer(consumer).recv(limit)
        assert len(deliveries) == min(limit, waiting), (
            f"{waiting} blocks wait, recv({limit}) returned {len(deliveries)}"
        )
        for delivery in deliveries:
            assert delivery.producer in mine, (
                f"a block of producer {delivery.producer} went to another consumer's"
            )
            ahead = sum(d.producer == delivery.producer for d in self.held)
            expected = self.in_stream[delivery.producer][ahead]
            assert delivery.block.buffer.tobytes() == expected, (
                f"a block of producer {delivery.producer} arrived out of order, twice or changed"
            )
            self.held.append(delivery)
        self.check_ledger()
        return deliveries

    def take(self, *, dropped: bool) -> None:
        """Take the block that was received first, unchanged since."""
        delivery = self.held.pop(0)
        expected = self.in_stream[delivery.producer].popleft()
        assert delivery.block.buffer.tobytes() == expected, (
            f"slot {delivery.slot} of producer {delivery.producer} was written before it was taken"
        )
        consumer = self.consumer_of[delivery.producer]
        self.harness.consumer(consumer).take(delivery, dropped=dropped)
        self.dropped += dropped
        self.num_taken[consumer] += not dropped
        self.harness.settle()
        self.check_ledger()

    def consume(self) -> None:
        """Hand everything taken to a learner."""
        for consumer in self.consumers:
            self.harness.consumer(consumer).count_consumed(self.num_taken[consumer])
            self.consumed += self.num_taken[consumer]
            self.num_taken[consumer] = 0
            self.check_ledger()

    def restart_producer(self, producer: int) -> None:
        """What it was filling may be started again; credit of a dead consumer died with it."""
        mine = [key for key in self.filling if key[0] == producer]
        for key in mine:
            del self.filling[key]
        self.num_started[producer] -= len(mine)
        self.limits[producer] = self.granted[producer]
        self.harness.restart_producer(producer)
        self.harness.settle()
        self.check_ledger()

    def restart_consumer(self, consumer: int) -> None:
        """What it had taken and not used is lost; what it had only received comes again.

        Its limits count from what it finds taken or abandoned; credit given before stays.
        """
        mine = self.producers_of(consumer)
        self.held = [delivery for delivery in self.held if delivery.producer not in mine]
        self.lost += self.num_taken[consumer]
        self.num_taken[consumer] = self.num_abandoned[consumer] = 0
        for producer in mine:
            kept = self.limits[producer] - self.num_started[producer]
            self.num_started[producer] = self._num_open(producer)
            self.limits[producer] = self.num_started[producer] + kept
            self.granted[producer] = 0
        self.harness.restart_consumer(consumer)
        self.harness.settle()
        self.check_ledger()

    def producers_of(self, consumer: int) -> list[int]:
        """The producers of one consumer."""
        return [p for p in self.limits if self.consumer_of[p] == consumer]

    def check_ledger(self) -> None:
        """Compare the stream's own account with ours."""
        ledger = self.harness.ledger()
        in_flight = sum(map(len, self.in_stream)) + sum(self.num_taken)
        ours = Ledger(self.sent, self.consumed, self.dropped, self.lost, in_flight, 0)
        assert ledger.adds_up, f"the ledger does not add up: {ledger}"
        assert ledger == ours, f"the ledger says {ledger}, what happened is {ours}"

    def _num_open(self, producer: int) -> int:
        return len(self.in_stream[producer]) + sum(p == producer for p, _ in self.filling)


def check_delivery(harness: SampleHarness) -> None:
    """Order a producer, every block once, its bytes as written."""
    model = SampleModel(harness)
    for p in range(harness.num_producers):
        model.grant(p, 2 * harness.num_slots)
    for _ in range(3 * harness.num_slots):
        for p in range(harness.num_producers):
            grant = model.acquire(p)
            if grant is not None:
                model.send(p, grant)
        model.recv(3)
        while model.held:
            model.take(dropped=False)
        model.consume()
    assert model.sent == 2 * harness.num_slots * harness.num_producers, (
        f"only {model.sent} blocks could be sent"
    )
    assert model.recv(100) == [], "a block was delivered twice"


def check_credit(harness: SampleHarness) -> None:
    """The limit is cumulative; resending changes nothing, a lower one takes nothing back."""
    model = SampleModel(harness)
    assert model.acquire(0) is None, "acquire() gave leave before any credit"
    model.grant(0, 2)
    for _ in range(3):  # resent
        harness.consumer(0).grant({0: 2}, 0)
    harness.consumer(0).grant({0: 1}, 1)  # lower, and forced out by the newer version
    harness.settle()
    for _ in range(2):
        grant = model.acquire(0)
        assert grant is not None, "a lower limit took credit back"
        assert grant.min_version == 1, f"the grant demands version {grant.min_version}, not 1"
        model.send(0, grant)
    assert model.acquire(0) is None, "a resent limit gave credit twice"
    assert model.acquire(1) is None, "one producer's credit went to another"
    model.recv(2)
    model.take(dropped=False)
    model.take(dropped=True)
    assert model.acquire(0) is None, "a block that was taken or dropped gave credit back"


def check_bounded_memory(harness: SampleHarness) -> None:
    """A producer never holds more slots than the arena has, whatever its credit."""
    model = SampleModel(harness)
    model.grant(0, 10 * harness.num_slots)
    grants = [model.acquire(0) for _ in range(harness.num_slots + 2)]
    granted = [grant for grant in grants if grant is not None]
    assert len(granted) == harness.num_slots, f"{len(granted)} of {harness.num_slots} slots"
    for grant in granted:
        model.send(0, grant)
    model.recv(1)
    assert model.acquire(0) is None, "a slot was free before its block was taken"
    model.take(dropped=False)
    again = model.acquire(0)
    assert again is not None, "a slot that was taken is not free"
    assert again.slot == granted[0].slot, "another slot than the one taken was handed out"


def check_abandon(harness: SampleHarness) -> None:
    """An abandoned block frees its slot and is made known; its credit is for others."""
    model = SampleModel(harness)
    model.grant(0, 1)
    grant = model.acquire(0)
    assert grant is not None, "one block was granted"
    model.abandon(0, grant)
    assert model.acquire(0) is None, "the producer kept the credit of the block it abandoned"
    model.grant(1, 1)
    assert model.acquire(1) is not None, "the credit did not help another producer"
    model.grant(0, harness.num_slots)
    for _ in range(harness.num_slots):
        assert model.acquire(0) is not None, "an abandoned block kept its slot"


def check_random_walk(harness: SampleHarness, seed: int = 0, num_steps: int = 200) -> None:
    """Any order of calls, and of deaths where ends may die, keeps every promise."""
    model = SampleModel(harness, seed)
    rng = np.random.default_rng(seed)
    for _ in range(num_steps):
        producer = int(rng.integers(harness.num_producers))
        _step_at_random(model, rng, producer)
    while sum(map(len, model.in_stream)):
        model.recv(100)
        while model.held:
            model.take(dropped=False)
    model.consume()
    assert harness.ledger().in_flight == 0, f"blocks were left behind: {harness.ledger()}"


def _step_at_random(model: SampleModel, rng: np.random.Generator, producer: int) -> None:
    filling = [grant for (p, _), grant in model.filling.items() if p == producer]
    chosen = rng.integers(20)
    if chosen < 4:
        model.grant(producer, int(rng.integers(4)))
    elif chosen < 9:
        model.acquire(producer)
    elif chosen < 13 and filling:
        model.send(producer, filling[int(rng.integers(len(filling)))])
    elif chosen == 13 and filling:
        model.abandon(producer, filling[0])
    elif chosen == 14:
        model.recv(int(rng.integers(1, 4)))
    elif chosen < 17 and model.held:
        model.take(dropped=bool(rng.integers(2)))
    elif chosen == 17:
        model.consume()
    elif chosen == 18 and model.harness.can_restart:
        model.restart_producer(producer)
    elif chosen == 19 and model.harness.can_restart:
        model.restart_consumer(int(rng.integers(model.harness.num_consumers)))


def check_producer_restart(harness: SampleHarness) -> None:
    """A restarted producer joins; what it had sent arrives once, what it was filling is free."""
    model = SampleModel(harness)
    model.grant(0, 3)
    grants = [model.acquire(0) for _ in range(3)]
    for grant in grants[:2]:
        assert grant is not None, "three blocks were granted"
        model.send(0, grant)
    model.restart_producer(0)
    assert len(model.recv(10)) == 2, "blocks of a producer's earlier life were lost"
    grant = model.acquire(0)
    assert grant is not None, "the credit of the block that died was not given again"
    model.send(0, grant)
    assert len(model.recv(10)) == 1, "the restarted producer's block did not arrive"
    assert model.acquire(0) is None, "a restart gave credit"


def check_consumer_restart(harness: SampleHarness) -> None:
    """A restarted consumer finds producers and waiting blocks, in order, none of them twice."""
    model = SampleModel(harness)
    model.grant(0, 4)
    for _ in range(2):
        grant = model.acquire(0)
        assert grant is not None, "four blocks were granted"
        model.send(0, grant)
    model.recv(1)
    model.take(dropped=False)  # its slot is published again: slot order is not send order now
    grant = model.acquire(0)
    assert grant is not None, "the slot is free"
    model.send(0, grant)
    model.restart_consumer(0)
    assert model.lost == 1, "the block that was taken and not used is lost"
    assert len(model.recv(10)) == 2, "waiting blocks must be delivered to the next consumer"
    model.take(dropped=False)
    model.take(dropped=False)
    model.grant(0, 1)
    assert model.acquire(0) is not None, "the restarted consumer's credit did not arrive"
    assert model.acquire(0) is not None, "the credit given before was taken back"
    assert model.acquire(0) is None, "a restart gave credit"


def check_consumers_share(harness: SampleHarness) -> None:
    """Each consumer has producers of its own; what befalls one is nothing to the others."""
    model = SampleModel(harness)
    for producer in range(harness.num_producers):
        model.grant(producer, 2)
        for _ in range(2):
            grant = model.acquire(producer)
            assert grant is not None, f"producer {producer} was granted two blocks"
            model.send(producer, grant)
    assert len(model.recv(100)) == 2 * harness.num_producers, "not every block arrived"
    while model.held:
        model.take(dropped=False)
    if harness.can_restart:
        model.restart_consumer(harness.num_consumers - 1)
        lost = 2 * len(model.producers_of(harness.num_consumers - 1))
        assert harness.ledger().lost == lost, "a consumer's death lost what another had taken"
    model.consume()


def check_spec_refused(harness: SampleHarness) -> None:
    """A producer of another Spec is refused by an error that names the field."""
    error = harness.join_with_another_spec()
    assert harness.changed_field() in error, (
        f"the error does not name the field {harness.changed_field()!r}: {error!r}"
    )


def check_samples(make_harness: Callable[[], SampleHarness]) -> None:
    """Every promise of a sample stream, each on a stream of its own."""
    for check in sample_checks(make_harness):
        with closing(make_harness()) as harness:
            check(harness)


def sample_checks(
    make_harness: Callable[[], SampleHarness],
) -> list[Callable[[SampleHarness], None]]:
    """The checks that apply to a substrate."""
    checks: list[Callable[[SampleHarness], None]] = [
        check_delivery,
        check_credit,
        check_bounded_memory,
        check_abandon,
        check_random_walk,
    ]
    with closing(make_harness()) as harness:
        if harness.can_restart:
            checks += [check_producer_restart, check_consumer_restart]
        if harness.can_refuse:
            checks += [check_spec_refused]
        if harness.num_consumers > 1:
            checks += [check_consumers_share]
    return checks


class InferenceHarness(Protocol):
    """Makes one client of at least two groups, and whatever answers it."""

    num_groups: int
    outputs: tuple[str, ...]
    """Names of the fields an answer fills."""
    can_repeat: bool
    """Whether an answer can come late or again; not where it is a function's return value."""

    def client(self) -> InferenceClient:
        """The client's end."""
        ...

    def grant(self, group: int, min_version: int) -> Grant:
        """A block of the group, the same every time."""
        ...

    def expected(self, grant: Grant, row: int) -> Arrays:
        """What the policy answers to a row, `[L, *shape]`."""
        ...

    def publish(self, version: int) -> None:
        """Make `version` the latest, which answers from now on are given by."""
        ...

    def answer(self) -> list[int]:
        """Answer all that was posted; the groups the client's `poll` returned meanwhile."""
        ...

    def repeat_answer(self, group: int) -> list[int]:
        """Give the last answer to a group again, changed; what `poll` returned meanwhile."""
        ...

    def close(self) -> None:
        """Close everything."""
        ...


def check_answers(harness: InferenceHarness) -> None:
    """An answer fills its own row and nothing else, once, with the version it was given by."""
    rng = np.random.default_rng(0)
    grants = [harness.grant(group, 0) for group in range(harness.num_groups)]
    for grant in grants:
        grant.block.buffer[:] = rng.integers(0, 2, grant.block.buffer.size, np.uint8)
    rows = grants[0].block.layout.rows
    for step in range(2 * rows):
        harness.publish(step)
        asked = [g for g in range(len(grants)) if (step + g) % 3 != 2]
        before = [grant.block.buffer.copy() for grant in grants]
        for group in asked:
            harness.client().post(group, grants[group], (step + group) % rows)
        answered = harness.answer()
        assert sorted(answered) == asked, f"groups {asked} asked, {answered} were answered"
        for group, grant in enumerate(grants):
            wanted = {group: (step + group) % rows} if group in asked else {}
            _check_block(harness, grant, before[group], wanted.get(group), step)


def _check_block(
    harness: InferenceHarness, grant: Grant, before: np.ndarray, row: int | None, version: int
) -> None:
    """Only the answered row may differ from `before`, and only in outputs and version."""
    block = grant.block
    expected = type(block)(block.layout, before)
    if row is not None:
        for name, array in harness.expected(grant, row).items():
            expected[name][row] = array
        expected["version"][row] = version
    for name, array in block.fields.items():
        assert np.array_equal(array, expected[name]), (
            f"after an answer to row {row}, field {name!r} is not what it should be"
        )


def check_version_demanded(harness: InferenceHarness) -> None:
    """An answer is never of a lower version than the grant demands."""
    harness.publish(3)
    harness.publish(4)
    grant = harness.grant(0, 4)
    harness.client().post(0, grant, 0)
    assert harness.answer() == [0], "the group was not answered"
    version = int(grant.block["version"][0].min())
    assert version == 4, f"version 4 was demanded, {version} answered"


def check_repeated_answers_dropped(harness: InferenceHarness) -> None:
    """An answer that comes again, or late, changes no byte and completes no row."""
    harness.publish(0)
    grant = harness.grant(0, 0)
    harness.client().post(0, grant, 0)
    assert harness.answer() == [0], "the group was not answered"
    before = grant.block.buffer.copy()
    assert harness.repeat_answer(0) == [], "a repeated answer completed a row"
    assert np.array_equal(grant.block.buffer, before), "a repeated answer was written"
    harness.client().post(0, grant, 1)
    assert harness.answer() == [0], "the group was not answered after a repeated answer"


def check_inference(make_harness: Callable[[], InferenceHarness]) -> None:
    """Every promise of an inference stream, each on a stream of its own."""
    for check in inference_checks(make_harness):
        with closing(make_harness()) as harness:
            check(harness)


def inference_checks(
    make_harness: Callable[[], InferenceHarness],
) -> list[Callable[[InferenceHarness], None]]:
    """The checks that apply to a substrate."""
    checks: list[Callable[[InferenceHarness], None]] = [check_answers, check_version_demanded]
    with closing(make_harness()) as harness:
        if harness.can_repeat:
            checks += [check_repeated_answers_dropped]
    return checks


class ParameterHarness(Protocol):
    """Makes one publisher and any number of subscribers of `weights`."""

    def weights(self, fill: int) -> Arrays:
        """Weights whose every element is `fill`."""
        ...

    def publisher(self) -> ParameterPublisher:
        """The publisher's present life."""
        ...

    def subscriber(self) -> ParameterSubscriber:
        """A new subscriber."""
        ...

    def restart_publisher(self) -> None:
        """Kill the publisher without a word and start it again."""
        ...

    def close(self) -> None:
        """Close everything."""
        ...


def check_nothing_published(harness: ParameterHarness) -> None:
    """Before the first version `latest` is -1 and `fetch` raises StreamError."""
    subscriber = harness.subscriber()
    assert subscriber.latest() == -1, "latest() is not -1 before the first version"
    try:
        subscriber.fetch()
    except StreamError:
        return
    raise AssertionError("fetch() before the first version did not raise StreamError")


def check_published(harness: ParameterHarness) -> None:
    """`latest` never goes back; `fetch` returns the whole of it, for early and late readers."""
    early = harness.subscriber()
    for version in (0, 1, 2, 5, 6, 7):
        harness.publisher().publish(harness.weights(version), version)
        for subscriber in (early, harness.subscriber()):
            assert subscriber.latest() == version, f"{subscriber.latest()} is not {version}"
            _check_fetch(harness, subscriber, version)
            _check_fetch(harness, subscriber, version)


def check_publisher_keeps_nothing(harness: ParameterHarness) -> None:
    """Weights that change after `publish` do not change what was published."""
    weights = harness.weights(1)
    harness.publisher().publish(weights, 0)
    for array in weights.values():
        array[...] = 2
    _, fetched = harness.subscriber().fetch()
    assert all((array == 1).all() for array in fetched.values()), "published weights changed"


def check_publisher_restart(harness: ParameterHarness) -> None:
    """Readers keep the last version over a publisher's death and get the next one's."""
    subscriber = harness.subscriber()
    harness.publisher().publish(harness.weights(4), 4)
    harness.restart_publisher()
    _check_fetch(harness, subscriber, 4)
    harness.publisher().publish(harness.weights(5), 5)
    assert subscriber.latest() == 5, "the restarted publisher's version did not arrive"
    _check_fetch(harness, subscriber, 5)


def _check_fetch(harness: ParameterHarness, subscriber: ParameterSubscriber, version: int) -> None:
    fetched, weights = subscriber.fetch()
    assert fetched == version, f"fetch() returned version {fetched}, not {version}"
    expected = harness.weights(version)
    assert list(weights) == list(expected), f"fetch() returned the fields {list(weights)}"
    for name, array in expected.items():
        same = np.array_equal(weights[name], array) and weights[name].dtype == array.dtype
        assert same, f"field {name!r} of version {version} is not what was published"


PARAMETER_CHECKS: tuple[Callable[[ParameterHarness], None], ...] = (
    check_nothing_published,
    check_published,
    check_publisher_keeps_nothing,
    check_publisher_restart,
)


def check_parameters(make_harness: Callable[[], ParameterHarness]) -> None:
    """Every promise of a parameter stream, each on a stream of its own."""
    for check in PARAMETER_CHECKS:
        with closing(make_harness()) as harness:
            check(harness)
