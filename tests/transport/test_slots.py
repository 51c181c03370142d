import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from srl.core.errors import StreamError
from srl.transport.slots import Ledger, SlotTable, table_bytes

PRODUCERS, SLOTS, CONSUMERS = 3, 3, 2


def _table(producers=PRODUCERS, slots=SLOTS, consumers=1):
    shape = producers, slots, consumers
    return SlotTable(np.zeros(table_bytes(*shape), np.uint8), *shape)


def test_zeros_are_an_empty_table():
    table = _table()
    assert all(table.is_free(p, s) for p in range(PRODUCERS) for s in range(SLOTS))
    assert table.ledger(consumer_lives=True) == Ledger()


def test_slot_is_ready_between_publish_and_take():
    table = _table()
    assert table.publish(1, 2) == 1
    assert table.is_ready(1, 2, 1)
    assert not table.is_ready(1, 2, 2)
    table.take(1, 2, dropped=False)
    assert not table.is_ready(1, 2, 1)
    assert table.is_free(1, 2)


def test_publishing_a_full_slot_is_refused():
    table = _table()
    table.publish(0, 0)
    with pytest.raises(StreamError, match="slot 0 of producer 0"):
        table.publish(0, 0)


def test_taking_a_free_slot_is_refused():
    with pytest.raises(StreamError, match="slot 1 of producer 0"):
        _table().take(0, 1, dropped=False)


def test_waiting_slots_come_in_the_order_they_were_published():
    table = _table()
    for slot in (2, 0, 1):
        table.publish(0, slot)
    assert table.waiting(0) == [2, 0, 1]
    table.take(0, 2, dropped=False)
    table.publish(0, 2)
    assert table.waiting(0) == [0, 1, 2]
    assert table.waiting(1) == []


def test_what_a_dead_consumer_held_is_lost():
    table = _table()
    for slot in range(3):
        table.publish(0, slot)
        table.take(0, slot, dropped=slot == 2)
    table.count_consumed(1)
    assert table.ledger(consumer_lives=True) == Ledger(3, 1, 1, 0, 1, 0)
    assert table.ledger(consumer_lives=False) == Ledger(3, 1, 1, 1, 0, 0)
    table.count_lost()  # its next life
    assert table.ledger(consumer_lives=True) == Ledger(3, 1, 1, 1, 0, 0)


def test_consumers_share_the_producers_and_each_keeps_its_own_account():
    table = _table(producers=3, consumers=2)
    assert [list(table.producers_of(c)) for c in range(2)] == [[0, 2], [1]]
    for p in range(3):
        table.publish(p, 0)
        table.take(p, 0, dropped=False)
    table.count_consumed(1, 0)
    assert table.ledger(consumer_lives=True) == Ledger(3, 1, 0, 0, 2, 0)
    assert table.ledger(consumer_lives=[True, False]) == Ledger(3, 1, 0, 1, 1, 0)
    assert table.ledger(consumer_lives=[False, True]) == Ledger(3, 1, 0, 1, 1, 0)
    assert table.ledger(consumer_lives=False) == Ledger(3, 1, 0, 2, 0, 0)
    table.count_lost(1)
    assert table.ledger(consumer_lives=True) == Ledger(3, 1, 0, 1, 1, 0)


def test_one_consumer_cannot_use_what_another_took():
    table = _table(producers=2, consumers=2)
    table.publish(0, 0)
    table.take(0, 0, dropped=False)
    table.count_consumed(1, 1)
    assert not table.ledger(consumer_lives=True).adds_up


def test_block_consumed_twice_shows_as_duplicated():
    table = _table()
    table.publish(0, 0)
    table.take(0, 0, dropped=False)
    table.count_consumed(2)
    ledger = table.ledger(consumer_lives=True)
    assert ledger.duplicated == 1
    assert not ledger.adds_up


def test_ledgers_add():
    assert Ledger(3, 1, 1, 1, 0, 0) + Ledger(2, 1, 0, 0, 1, 0) == Ledger(5, 2, 1, 1, 1, 0)


def test_words_of_two_consumers_never_share_a_cache_line():
    words = _table(consumers=3)._consumers
    assert words.strides[0] == 64


@pytest.mark.parametrize("slots", [1, 7, 8, 9])
def test_words_of_two_producers_never_share_a_cache_line(slots):
    table = _table(2, slots)
    for words in (table._published, table._order, table._taken):
        distance = words[1].__array_interface__["data"][0] - words[0].__array_interface__["data"][0]
        assert distance % 64 == 0
        assert distance >= slots * 8


class Slots(RuleBasedStateMachine):
    """A naive twin: per producer, the queue of what it published; counters for the rest.

    Death forgets what a process knew (here: what it was filling, what it had received); the table
    is looked at afresh, over the same bytes.
    """

    def __init__(self):
        super().__init__()
        self.bytes = np.zeros(table_bytes(PRODUCERS, SLOTS, CONSUMERS), np.uint8)
        self.filling = [set() for _ in range(PRODUCERS)]
        self.queue = [[] for _ in range(PRODUCERS)]
        self.times = [0] * PRODUCERS
        self.abandoned = [0] * PRODUCERS
        self.held = [0] * CONSUMERS
        self.consumed = self.dropped = self.lost = 0

    @property
    def table(self):
        return SlotTable(self.bytes, PRODUCERS, SLOTS, CONSUMERS)

    @rule(p=st.integers(0, PRODUCERS - 1), s=st.integers(0, SLOTS - 1))
    def fill(self, p, s):
        is_free = self.table.is_free(p, s)
        assert is_free == (s not in self.queue[p])
        if is_free:
            self.filling[p].add(s)

    @rule(p=st.integers(0, PRODUCERS - 1))
    def publish(self, p):
        if self.filling[p]:
            slot = self.filling[p].pop()
            generation = self.table.publish(p, slot)
            assert self.table.is_ready(p, slot, generation)
            self.queue[p].append(slot)
            self.times[p] += 1

    @rule(p=st.integers(0, PRODUCERS - 1))
    def abandon(self, p):
        if self.filling[p]:
            self.filling[p].pop()
            self.table.abandon(p)
            self.abandoned[p] += 1

    @rule(p=st.integers(0, PRODUCERS - 1), dropped=st.booleans())
    def take(self, p, dropped):
        if self.queue[p]:
            self.table.take(p, self.queue[p].pop(0), dropped=dropped)
            self.dropped += dropped
            self.held[p % CONSUMERS] += not dropped

    @rule(c=st.integers(0, CONSUMERS - 1))
    def consume(self, c):
        self.table.count_consumed(self.held[c], c)
        self.consumed += self.held[c]
        self.held[c] = 0

    @rule(p=st.integers(0, PRODUCERS - 1))
    def producer_dies(self, p):
        self.filling[p].clear()

    @rule(c=st.integers(0, CONSUMERS - 1))
    def consumer_dies(self, c):
        lives = [other != c for other in range(CONSUMERS)]
        assert self.table.ledger(consumer_lives=lives).lost == self.lost + self.held[c]
        self.table.count_lost(c)
        self.lost, self.held[c] = self.lost + self.held[c], 0

    @invariant()
    def table_agrees(self):
        table = self.table
        in_flight = sum(map(len, self.queue)) + sum(self.held)
        sent = sum(self.times)
        expected = Ledger(sent, self.consumed, self.dropped, self.lost, in_flight, 0)
        assert table.ledger(consumer_lives=True) == expected
        assert expected.adds_up
        assert table.ledger(consumer_lives=False).adds_up
        for p in range(PRODUCERS):
            assert table.waiting(p) == self.queue[p]
            assert table.sequence(p) == self.times[p]
            assert table.taken(p) == self.times[p] - len(self.queue[p])
            assert table.abandoned(p) == self.abandoned[p]


TestSlots = Slots.TestCase
TestSlots.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_new_table_goes_on_from_the_consumers_account_and_counts_its_own():
    consumer, producer = _table(producers=1), _table(producers=1)
    for number in (1, 2, 3):
        consumer.receive(0, number % 2, number)
        consumer.take(0, number % 2, dropped=False)
    assert producer.learn(0, _words(consumer.account_of(0))) == 3
    assert producer.sequence(0) == 3
    assert producer.inherited(0) == 3
    producer.publish(0, 0)
    assert producer.learn(0, _words(consumer.account_of(0))) == 0
    assert producer.sequence(0) == 4
    assert producer.inherited(0) == 3


def _words(account):
    return memoryview(account).cast("q").tolist()


def test_slot_receives_its_next_generation_while_it_is_free():
    table = _table(producers=1)
    assert table.may_receive(0, 1, 1)
    assert not table.may_receive(0, 1, 2)
    table.receive(0, 1, 1)
    assert not table.may_receive(0, 1, 1)
    assert not table.may_receive(0, 1, 2), "it is full"
    table.take(0, 1, dropped=True)
    assert table.may_receive(0, 1, 2)


@pytest.mark.parametrize(
    ("account", "may_be"),
    [
        ([1, 0, 0, 1, 0, 0, 0], True),
        ([1, 0, 0, 1 + (1 << 40), 0, 0, 0], True),  # taken and dropped
        ([1, 0, 0, 2, 0, 0, 0], False),  # taken, and never received
        ([1, 1, 0, 1, 0, 0, 0], False),  # received, and never sent
        ([0, 0, -1, 0, 0, -1, 0], False),
        ([1, 0, 0, 1, 0, 0, -1], False),
    ],
)
def test_account_may_be_of_what_was_published(account, may_be):
    table = _table(producers=1)
    table.publish(0, 0)
    assert table.may_be(0, account) == may_be


def test_account_may_be_anything_for_a_new_table():
    table = _table(producers=1)
    assert table.may_be(0, [7, 0, 9, 7, 0, 8, 3])
    assert not table.may_be(0, [7, 0, 9, 7, 0, 10, 3])
