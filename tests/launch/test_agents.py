"""Many agents, one voice: what is said when hosts are lost and come again."""

from pathlib import Path

import msgspec
import pytest

import srl
from srl.api import find_experiment
from srl.launch.agents import Agents
from srl.launch.graph.plan import make_plan
from srl.transport.control import (
    Accounts,
    Begin,
    Examine,
    Examined,
    Failure,
    Part,
    Prepared,
    Restart,
    Restarted,
    Saved,
    StartNode,
    Stop,
    Stopped,
)


class FakeLine:
    def __init__(self):
        self.closed = False
        self.sent = []
        self.inbox = []

    def send(self, message):
        self.sent.append(message)

    def recv_all(self):
        heard, self.inbox = self.inbox, []
        return heard

    def last(self, kind):
        return [message for message in self.sent if isinstance(message, kind)][-1]


def ledger(**counts):
    names = ("sent", "consumed", "dropped", "lost", "in_flight", "duplicated")
    return {"main": dict.fromkeys(names, 0) | counts}


@pytest.fixture
def hosts():
    """Trainer on host 0, two actors on host 1; all have begun."""
    words = {"launcher": "local", "actors__count": 2}
    plan = make_plan(find_experiment("toy/identity", srl.api._to_arguments(words)))
    plan = msgspec.structs.replace(plan, hosts={"actor-0": 1, "actor-1": 1})
    lines = {0: FakeLine(), 1: FakeLine()}
    agents = Agents(plan, lines)
    places = {0: ("/a", "10.0.0.1"), 1: ("/b", "10.0.0.2")}
    agents.start(None, folder=Path("/run"), keys=None, places=places)
    for host, line in lines.items():
        assert line.last(StartNode).host == host
        assert not line.last(StartNode).is_late
        line.inbox.append(Prepared({f"end-{host}": f"tcp://10.0.0.{host + 1}:5"}))
    assert agents.hear() == []
    assert lines[1].last(Begin).addresses == {
        "end-0": "tcp://10.0.0.1:5",
        "end-1": "tcp://10.0.0.2:5",
    }
    return agents, lines


def lose(agents, lines):
    lines[1].closed = True
    assert agents.lost() == [1]
    found = agents.lose(1, "its power went")
    del lines[1]
    return found


def come_again(agents, lines, address="tcp://10.0.0.2:5"):
    lines[1] = FakeLine()
    agents.welcome(1, ("/c", "10.0.0.2"))
    lines[1].inbox.append(Prepared({"end-1": address}))
    assert agents.hear() == []
    return lines[1]


def test_workers_of_a_lost_host_have_died(hosts):
    agents, lines = hosts
    assert agents.may_lose(1)
    assert not agents.may_lose(0)
    assert lose(agents, lines) == [
        Failure("actor-0", "its power went", "", 1),
        Failure("actor-1", "its power went", "", 1),
    ]
    assert agents.lost() == []


def test_orders_wait_for_the_host_and_begin_their_workers(hosts):
    agents, lines = hosts
    lose(agents, lines)
    order = Restart(["actor-0"], 2, None)
    agents.tell(order)
    assert order in lines[0].sent
    line = come_again(agents, lines)
    assert line.last(StartNode).is_late
    assert line.last(StartNode).earlier == {"end-1": "tcp://10.0.0.2:5"}
    assert line.sent[-2:] == [line.last(Begin), order]
    begun = [message for message in lines[0].sent if isinstance(message, Begin)]
    assert len(begun) == 1  # it is where it was: nobody needs to hear of it
    lines[1].closed = True
    assert agents.lose(1, "again")[0].incarnation == 2


def test_a_lost_host_is_wanted_while_somebody_is_to_start_there(hosts):
    agents, lines = hosts
    lose(agents, lines)
    assert not agents.is_wanted(1)
    agents.tell(Restart(["trainer-0"], 2, None))
    assert not agents.is_wanted(1), "that one is elsewhere"
    agents.tell(Restart(["actor-0"], 2, None))
    assert agents.is_wanted(1)
    found = agents.lose(1, "it did not come", is_missed=True)
    assert found == [
        Failure("actor-0", "it did not come", "", 2, is_homeless=True),
        Failure("actor-1", "it did not come", "", 1, is_homeless=True),
    ]
    assert not agents.is_wanted(1), "until somebody says so again"
    assert agents.give_up(1) == []
    assert agents.lost() == []
    agents.stop(None)
    assert isinstance(lines[0].sent[-1], Stop), "nobody waits for it"


def test_others_hear_where_a_host_is_now(hosts):
    agents, lines = hosts
    lose(agents, lines)
    come_again(agents, lines, "tcp://10.0.0.9:7")
    assert lines[0].last(Begin).addresses["end-1"] == "tcp://10.0.0.9:7"


def test_what_a_lost_host_had_sent_stays_in_the_ledger(hosts):
    agents, lines = hosts
    trainers = ledger(sent=0, consumed=5, in_flight=-5)
    lines[0].inbox.append(Accounts(trainers))
    lines[1].inbox.append(Accounts(ledger(sent=8, in_flight=8)))
    assert agents.hear()[-1].ledgers == ledger(sent=8, consumed=5, in_flight=3)
    lose(agents, lines)
    line = come_again(agents, lines)
    assert line.last(StartNode).sent == {"main": 8}
    lines[0].inbox.append(Accounts(trainers))
    assert agents.hear()[-1].ledgers == ledger(sent=8, consumed=5, in_flight=3)
    line.inbox.append(Accounts(ledger(sent=10, in_flight=10)))
    assert agents.hear()[-1].ledgers == ledger(sent=10, consumed=5, in_flight=5)
    line.inbox.append(Restarted(["actor-0"], ledger(sent=10, in_flight=10)))
    assert agents.hear()[-1].ledgers == ledger(sent=10, consumed=5, in_flight=5)
    agents.stop(None)
    assert isinstance(line.sent[-1], Stop)
    assert not isinstance(lines[0].sent[-1], Stop)  # who sends stops first
    line.inbox.append(Stopped(ledger(sent=10, in_flight=10)))
    assert agents.hear() == []
    assert isinstance(lines[0].sent[-1], Stop)
    lines[0].inbox.append(Stopped(ledger(sent=0, consumed=7, in_flight=-7)))
    assert agents.hear() == [Stopped(ledger(sent=10, consumed=7, lost=3))]


def test_what_is_saved_counts_what_trainers_on_other_hosts_took(hosts):
    agents, lines = hosts
    lines[1].inbox.append(Accounts(ledger(sent=40, consumed=10, dropped=2, in_flight=28)))
    agents.hear()
    part = Part("trainer-0.safetensors", "0" * 64, 1, ("trainer-0",))
    mine = ledger(sent=9, consumed=7, in_flight=2)
    lines[0].inbox.append(Saved("trainer-0", 1, part, {"main": 3}, mine))
    found = agents.hear()[-1]
    assert found.ledgers == ledger(sent=21, consumed=17, dropped=2, in_flight=2)
    lines[0].inbox.append(Saved("buffer-0", 1, part, {}, {}))
    assert agents.hear()[-1].ledgers == {}


def test_stop_does_not_wait_for_a_host_that_is_away(hosts):
    agents, lines = hosts
    lines[1].inbox.append(Accounts(ledger(sent=8, in_flight=8)))
    agents.hear()
    lose(agents, lines)
    agents.stop(None)
    lines[0].inbox.append(Stopped(ledger(sent=0, consumed=7, in_flight=-7)))
    assert agents.hear() == [Stopped(ledger(sent=8, consumed=7, lost=1))]


def test_host_that_joins_begins_and_others_hear_nothing_they_must_act_on(hosts):
    agents, lines = hosts
    plan = msgspec.structs.replace(agents._plan, hosts={"actor-0": 1, "actor-1": 2})
    lines[2] = FakeLine()
    agents.tell(Examine())
    assert not lines[2].sent  # it takes no part yet
    agents.join(plan, 2, ("/d", "10.0.0.3"))
    order = lines[2].last(StartNode)
    assert (order.workers, order.is_late) == (["actor-1"], False)
    assert msgspec.json.decode(order.plan)["hosts"]["actor-1"] == 2
    before = lines[0].last(Begin).addresses
    lines[2].inbox.append(Prepared({}))
    assert agents.hear() == []
    assert lines[2].last(Begin).addresses == lines[0].last(Begin).addresses == before
    lines[2].inbox.append(Accounts(ledger(sent=3, in_flight=3)))
    assert agents.hear()[-1].ledgers == ledger(sent=3, in_flight=3)
    lines[2].closed = True
    assert agents.lost() == [2]
    assert agents.lose(2, "gone") == [Failure("actor-1", "gone", "", 1)]


def test_what_arrived_was_sent_whoever_said_so(hosts):
    agents, lines = hosts
    lose(agents, lines)
    agents.stop(None)
    lines[0].inbox.append(Stopped(ledger(sent=0, consumed=7, in_flight=-7)))
    assert agents.hear() == [Stopped(ledger(sent=7, consumed=7))]


def test_examination_does_not_wait_for_a_host_that_is_lost(hosts):
    agents, lines = hosts
    agents.tell(Examine())
    lines[0].inbox.append(Examined({}, {"main": 3}, ["all of host 0"]))
    assert not [m for m in agents.hear() if isinstance(m, Examined)]
    lines[1].closed = True
    found = [m for m in agents.lose(1, "it is gone") if isinstance(m, Examined)]
    assert [one.unread for one in found] == [{"main": 3}]
    assert not [m for m in agents.lose(1, "again") if isinstance(m, Examined)], "once"
