import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from srl.learning.staleness import Gate, granted_limit, is_too_old


@pytest.mark.parametrize(
    ("version", "batch", "max_staleness", "withdrawn", "expected"),
    [
        (0, 4, 0, 0, 4),  # synchronous: one batch, then wait for the learner
        (1, 4, 0, 0, 8),
        (0, 4, 1, 0, 8),  # one batch is sampled while one is learned
        (3, 4, 1, 0, 20),
        (3, 4, 1, 2, 22),  # two that will never be learned make room for two others
        (0, 1, 10, 0, 11),
    ],
)
def test_granted_limit(version, batch, max_staleness, withdrawn, expected):
    limit = granted_limit(
        version=version, batch=batch, max_staleness=max_staleness, withdrawn=withdrawn
    )
    assert limit == expected


@pytest.mark.parametrize(
    ("learned_at", "oldest_row", "max_staleness", "expected"),
    [
        (0, 0, 0, False),
        (1, 0, 0, True),
        (1, 1, 0, False),
        (3, 2, 1, False),
        (3, 1, 1, True),
        (3, 5, 0, False),  # newer than asked for
    ],
)
def test_is_too_old(learned_at, oldest_row, max_staleness, expected):
    found = is_too_old(learned_at=learned_at, oldest_row=oldest_row, max_staleness=max_staleness)
    assert found is expected


def test_producer_that_comes_later_is_granted_from_then_on():
    gate = Gate(num_producers=3, batch=6, max_staleness=0)
    gate.retire(2)
    assert gate.open() == [3, 3, 0]
    assert gate.withdrawn == 0
    gate.enlist(2)
    gate.enlist(2)
    gate.version = 1
    for producer in (0, 0, 0, 1, 1, 1):
        gate.deliver(producer)
    assert gate.open() == [5, 5, 2]
    gate.retire(1)
    gate.enlist(1)  # it was given up with blocks under way, and stays so
    assert gate.retired == {1}


def test_grants_go_round():
    gate = Gate(num_producers=3, batch=7, max_staleness=0)
    assert gate.open() == [3, 2, 2]
    assert gate.open() == [3, 2, 2]


def test_slow_producer_gets_what_it_can_do():
    gate = Gate(num_producers=2, batch=2, max_staleness=1)
    assert gate.open() == [2, 2]
    for version in range(1, 9):  # producer 1 never delivers
        gate.delivered[0] += 2
        gate.version = version
        gate.open()
    assert gate.limits[1] - gate.delivered[1] <= 2 * 2
    assert sum(gate.limits) == (1 + 8 + 1) * 2


def test_dropped_block_is_granted_again_at_once():
    gate = Gate(num_producers=1, batch=2, max_staleness=0)
    gate.open()
    gate.delivered[0] += 1
    gate.withdrawn += 1
    assert gate.open() == [3]


def test_recovered_gate_grants_as_much_as_a_fresh_one():
    gate = Gate(num_producers=2, batch=4, max_staleness=1)
    gate.rebase(1000)
    assert sum(gate.open()) == 8


class Sampling(RuleBasedStateMachine):
    """Producers start, deliver and abandon what they were granted; the trainer drops and learns."""

    @initialize(
        producers=st.integers(1, 3),
        batch=st.integers(1, 4),
        max_staleness=st.integers(0, 3),
        version=st.sampled_from([0, 0, 5]),
    )
    def begin(self, producers, batch, max_staleness, version):
        self.gate = Gate(num_producers=producers, batch=batch, max_staleness=max_staleness)
        if version:
            self.gate.rebase(version)
        self.accepted = version * batch
        self.gone = [0] * producers
        self.gate.open()

    def open(self, producer):
        """Blocks granted and neither delivered nor abandoned."""
        return self.gate.limits[producer] - self.gate.delivered[producer] - self.gone[producer]

    @property
    def running(self):
        return sum(self.open(p) for p in range(len(self.gone)))

    @rule(data=st.data())
    def deliver(self, data):
        producer = data.draw(st.integers(0, len(self.gone) - 1))
        if self.open(producer):
            self.gate.delivered[producer] += 1
            self.accepted += 1

    @rule(data=st.data())
    def deliver_too_late(self, data):
        producer = data.draw(st.integers(0, len(self.gone) - 1))
        if self.open(producer):
            self.gate.delivered[producer] += 1
            self.gate.withdrawn += 1
            self.gate.open()

    @rule(data=st.data())
    def abandon(self, data):
        producer = data.draw(st.integers(0, len(self.gone) - 1))
        if self.open(producer):
            self.gone[producer] += 1
            self.gate.withdrawn += 1
            self.gate.open()

    @precondition(lambda self: self.accepted >= (self.gate.version + 1) * self.gate.batch)
    @rule()
    def learn(self):
        self.gate.version += 1
        self.gate.open()

    @rule()
    def deal_again(self):
        before = list(self.gate.limits)
        self.gate.open()
        assert self.gate.limits == before

    @rule()
    def deliver_everything_and_learn(self):
        """Never starves: with all that was granted, the next batch is full."""
        for producer in range(len(self.gone)):
            self.accepted += self.open(producer)
            self.gate.delivered[producer] += self.open(producer)
        assert self.accepted >= (self.gate.version + 1) * self.gate.batch
        while self.accepted >= (self.gate.version + 1) * self.gate.batch:
            self.gate.version += 1
        self.gate.open()
        assert self.running > 0

    @invariant()
    def rule_holds(self):
        gate = self.gate
        allowed = (gate.max_staleness + gate.version + 1) * gate.batch
        assert self.accepted + self.running == allowed
        assert all(self.open(p) >= 0 for p in range(len(self.gone)))


TestSampling = Sampling.TestCase
TestSampling.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_gate_is_fair_when_there_are_fewer_grants_than_producers():
    gate = Gate(num_producers=3, batch=1, max_staleness=0)
    for version in range(30):
        limits = list(gate.open())
        producer = next(p for p in range(3) if limits[p] > gate.delivered[p])
        gate.delivered[producer] += 1
        gate.version = version + 1
    assert gate.delivered == [10, 10, 10]


def test_a_retired_producer_gives_its_grants_to_others():
    gate = Gate(num_producers=2, batch=2, max_staleness=0)
    assert gate.open() == [1, 1]
    gate.retire(1)
    gate.retire(1)
    assert gate.open() == [2, 1]
    gate.deliver(0)
    gate.deliver(0)
    gate.version = 1
    assert gate.open() == [4, 1]


def test_a_block_of_a_retired_producer_that_comes_after_all_counts():
    gate = Gate(num_producers=2, batch=2, max_staleness=0)
    gate.open()
    gate.retire(1)
    gate.deliver(1)  # it was on its way: one of the two of this batch
    assert gate.withdrawn == 0
    assert sum(gate.open()) == 2
