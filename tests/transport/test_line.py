import os
import time
from contextlib import closing
from pathlib import Path

import pytest
import zmq

from srl.testing.stream_contract import eventually
from srl.transport import line as lines
from srl.transport.control import Channel, Framing, Preempted, Retire, channel_pair
from srl.transport.keys import Doorkeeper, make_keys
from srl.transport.line import Line, Switchboard
from srl.transport.listener import address_of, listen


class Wires:
    """A controller's switchboard, and lines to it."""

    def __init__(self, host="127.0.0.1"):
        self.context, self.keys, self.listener = zmq.Context(), make_keys(), listen(host)
        self.keeper = Doorkeeper(self.context, self.keys)
        self.address = address_of(self.listener)
        self.board = Switchboard(
            self.context, self.address, self.keeper, os.dup(self.listener.fileno())
        )
        self.far = zmq.Context()

    def line(self, host, keys=None, life=1):
        return Line(self.far, self.address, keys or self.keys, host=host, life=life)

    def until(self, is_done, *ends, what="it"):
        def pumped():
            self.board.poll(0.01)
            for end in ends:
                end.recv()
            return is_done()

        eventually(pumped, what)

    def close(self):
        self.board.close()
        self.keeper.close()
        self.far.destroy(linger=0)
        self.context.destroy(linger=0)
        self.listener.close()


@pytest.fixture
def wires():
    with closing(Wires()) as wires:
        yield wires


def test_messages_go_both_ways_in_order(wires):
    framing, heard = Framing(), Framing()
    with closing(wires.line(3)) as line:
        line.send(b"a greeting\n")
        for number in range(200):
            line.send(framing.bytes_of(Retire(number)))
        found = []

        def has_all():
            if 3 in wires.board.hosts:
                found.extend(wires.board.hosts[3].recv_all())
            return len(found) == 200

        wires.until(has_all, what="200 messages")
        assert found == [Retire(number) for number in range(200)]
        assert wires.board.hosts[3].greeting == "a greeting"
        for number in range(200):
            wires.board.hosts[3].send(Retire(number))
        answers = []

        def is_answered():
            wires.board.poll(0.0)
            heard.feed(line.recv())
            answers.extend(heard.parse())
            return len(answers) == 200

        eventually(is_answered, "200 answers")
        assert answers == found


def test_a_line_that_ends_is_noticed_by_the_controller(wires):
    line = wires.line(0)
    wires.until(lambda: 0 in wires.board.hosts, line)
    line.close()
    wires.until(lambda: wires.board.hosts[0].closed, what="the end of the line")
    assert wires.board.hosts[0].lost == "it ended"


def test_a_host_that_is_killed_is_noticed_by_its_connection(wires):
    line = wires.line(0)
    wires.until(lambda: 0 in wires.board.hosts, line)
    line.socket.disable_monitor()
    line.monitor.close()
    line.socket.close(linger=0)
    wires.until(lambda: wires.board.hosts[0].closed, what="the loss of the host")
    assert wires.board.hosts[0].lost == "its connection ended"


def test_a_controller_that_is_killed_is_noticed_by_its_hosts(wires):
    with closing(wires.line(0)) as line:
        wires.until(lambda: 0 in wires.board.hosts, line)
        wires.board.socket.close(linger=0)
        eventually(lambda: line.recv() or line.lost, "the loss of the controller")
        assert line.lost == "the connection ended"


def test_silence_is_a_loss_on_both_sides(wires, monkeypatch):
    with closing(wires.line(0)) as line:
        wires.until(lambda: 0 in wires.board.hosts, line)
        monkeypatch.setattr(lines, "SILENCE_SECONDS", 0.05)
        time.sleep(0.1)
        line.recv()
        assert "nothing was heard" in (line.lost or "")
        wires.board.hosts[0].beat(time.monotonic() + 1)
        assert "nothing was heard" in (wires.board.hosts[0].lost or "")


def test_a_stranger_has_no_line(wires):
    with closing(wires.line(0, keys=make_keys())) as stranger:
        stranger.send(b"hello")
        with closing(wires.line(1)) as line:
            wires.until(lambda: 1 in wires.board.hosts, line)
        assert 0 not in wires.board.hosts


def test_framing_is_that_of_channels():
    mine, theirs = channel_pair()
    with closing(Channel(theirs)) as other:
        theirs.sendall(Framing().bytes_of(Preempted("actor-0")))
        eventually(lambda: bool(mine.recv_first(Preempted)), "the message")
        assert not other.closed
    mine.close()


def test_only_the_newest_life_of_a_host_is_heard(wires):
    with closing(wires.line(1)) as old:
        old.send(b"old\n")
        wires.until(lambda: 1 in wires.board.hosts, old)
        first = wires.board.hosts[1]
        assert wires.board.replace(1) == 2
        assert 1 not in wires.board.hosts
        old.send(Framing().bytes_of(Retire(1)))
        with closing(wires.line(1, life=2)) as new:
            new.send(b"new\n")
            wires.until(lambda: 1 in wires.board.hosts, old, new)
            assert wires.board.hosts[1] is not first
            assert wires.board.hosts[1].greeting == "new"
            assert wires.board.hosts[1].recv_all() == []


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="needs IPv6")
def test_hosts_may_have_addresses_of_ipv6():
    with closing(Wires("::1")) as wires, closing(wires.line(3)) as line:
        line.send(b"a greeting\n")
        wires.until(lambda: 3 in wires.board.hosts, line, what="a host")
