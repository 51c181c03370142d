"""The relay of a host: brings parameters to its workers from another host, or from it to others.

    python -m srl.launch.relay CHANNEL_FD

The node agent of every host of a run on several starts one, and starts it again where it ends.
"""

import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import zmq

from srl.launch.graph.connect import bell_address
from srl.launch.graph.hosts import RELAY, is_source, parameters_end
from srl.launch.graph.plan import Plan
from srl.launch.host.process import use_log
from srl.launch.host.stacks import offer_stacks
from srl.streams.parameters.shm import ShmPublisher, ShmSubscriber
from srl.streams.parameters.tcp import ParameterSink, ParameterSource
from srl.transport.arena import Arena
from srl.transport.bell import Bell, Ear
from srl.transport.control import Channel, Configure, Network, Report
from srl.transport.keys import Doorkeeper
from srl.transport.sockets import Client, Server
from srl.workers.run import die_with_parent, wait_for_configure

_WAIT_MILLISECONDS = 200
_REPORT_SECONDS = 1.0
"""Between two looks at who came to its door."""


def main(fd: int) -> int:
    """Be the relay that is described over the channel `fd`; the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    use_log()
    channel = Channel.from_fd(fd)
    configure = wait_for_configure(channel)
    offer_stacks(Path(configure.socket_folder), RELAY)
    context: zmq.Context[Any] = zmq.Context()
    network = configure.network
    assert network is not None, "a relay without a network"
    keeper = Doorkeeper(context, network.keys) if network.listeners else None
    ends = list(_ends(configure, network, context, keeper))
    report = Report(f"{RELAY}-{configure.host}", configure.incarnation)
    report_at = 0.0
    poller = zmq.Poller()
    poller.register(channel.fileno(), zmq.POLLIN)
    for end in ends:
        for pollable in end.pollables():
            poller.register(pollable, zmq.POLLIN)
    while not channel.closed:
        moved = [end.step() for end in ends]
        if not any(moved):
            poller.poll(_WAIT_MILLISECONDS)
        channel.recv_all()
        if time.monotonic() >= report_at:
            report_at = time.monotonic() + _REPORT_SECONDS
            counters = {} if keeper is None else keeper.counters()
            counters["messages_refused"] = sum(end.rejected for end in ends)
            if counters != report.counters:
                report = msgspec.structs.replace(report, counters=counters)
                channel.send(report)
    return 0


def _ends(
    configure: Configure, network: Network, context: "zmq.Context[Any]", keeper: Doorkeeper | None
) -> Iterable[ParameterSource | ParameterSink]:
    plan, host = msgspec.json.decode(configure.plan, type=Plan), configure.host
    for route in plan.learning:
        end, spec = parameters_end(route), route.weights_spec()
        arena = configure.arenas.get(end)
        if arena is None:
            continue  # nobody on this host needs them
        buffer = Arena.attach(*arena).buffer
        bell = bell_address(configure.socket_folder, plan, route)
        if is_source(plan, route, host):
            address = network.addresses[end]
            assert keeper is not None, "a listener that nobody guards"
            server = Server(context, address, keeper=keeper, listener=network.listeners[end])
            yield ParameterSource(ShmSubscriber(buffer, spec, Ear(context, bell)), spec, server)
        else:
            client = Client(context, network.addresses[end], keys=network.keys)
            yield ParameterSink(ShmPublisher(buffer, spec, Bell(context, bell)), spec, client)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
