from contextlib import closing

import numpy as np
import pytest

from srl.testing.stream_contract import eventually
from srl.transport.codec import Header, Kind
from tests.streams.test_contract import TcpParameterHarness


@pytest.fixture
def hosts():
    with closing(TcpParameterHarness()) as harness:
        yield harness


def test_only_tensors_that_changed_are_sent(hosts):
    weights = hosts.weights(1)
    hosts.publisher().publish(weights, 0)
    assert hosts.source.tensors_sent == 2  # "empty" has no bytes
    weights["count"] += 1
    hosts.publisher().publish(weights, 1)
    assert hosts.source.tensors_sent == 3
    hosts.publisher().publish(weights, 2)
    assert hosts.source.tensors_sent == 3
    version, fetched = hosts.subscriber().fetch()
    assert version == 2
    assert all(np.array_equal(fetched[name], weights[name]) for name in weights)


def test_tensors_that_are_not_a_number_count_as_unchanged(hosts):
    weights = hosts.weights(1)
    weights["big"][:] = np.nan
    hosts.publisher().publish(weights, 0)
    before = hosts.source.tensors_sent
    hosts.publisher().publish(weights, 1)
    assert hosts.source.tensors_sent == before


def test_version_whose_weights_were_lost_is_asked_for_again(hosts):
    hosts.publisher().publish(hosts.weights(1), 0)
    hosts._publisher.publish(hosts.weights(2), 1)
    send, lost = hosts.source._server.send, []

    def lose_first(peer, header, *frames):
        if header.kind is Kind.WEIGHTS and not lost:
            lost.append(header)
            return True
        return send(peer, header, *frames)

    hosts.source._server.send = lose_first
    hosts._publish(hosts.weights(2), 1)
    assert lost
    assert hosts.subscriber().latest() == 1


@pytest.mark.parametrize(
    "frames", [(), (b"1234567",), (bytes(8),), (bytes(8), b"short"), (b"\xff" * 8, b"")]
)
def test_weights_that_are_not_alike_change_nothing(hosts, frames):
    hosts.publisher().publish(hosts.weights(1), 0)
    (peer,) = hosts.source._peers
    digest = hosts.source._digest
    hosts.source._server.send(peer, Header(Kind.WEIGHTS, 0, 0, 0, 7, 0, digest=digest), *frames)

    def is_counted():
        hosts.sink.step()
        return hosts.sink._client.rejected == 1

    eventually(is_counted, "the foreign message")
    assert hosts.subscriber().latest() == 0
    hosts.publisher().publish(hosts.weights(2), 1)
