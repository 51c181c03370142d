import shutil
import tempfile
from contextlib import closing

import pytest
import zmq

from srl.testing.stream_contract import eventually
from srl.transport.bell import Bell, Ear


@pytest.fixture
def place():
    folder, context = tempfile.mkdtemp(prefix="srl-", dir="/tmp"), zmq.Context()
    yield context, f"ipc://{folder}/bell"
    context.destroy(linger=0)
    shutil.rmtree(folder)


def rings(bell, ear):
    def is_heard():
        bell.ring()
        return bool(ear.socket.poll(50))

    eventually(is_heard, "a ring")


def test_a_ring_is_heard_until_it_is_cleared(place):
    with closing(Bell(*place)) as bell, closing(Ear(*place)) as ear:
        rings(bell, ear)
        for _ in range(100):
            bell.ring()

        def is_silent():
            ear.clear()
            return not ear.socket.poll(20)

        eventually(is_silent, "silence")
        ear.clear()  # of nothing


def test_the_next_life_of_a_bell_is_heard(place):
    with closing(Ear(*place)) as ear:
        for _ in range(2):
            with closing(Bell(*place)) as bell:
                rings(bell, ear)
            ear.clear()


def test_a_bell_that_nobody_hears_waits_for_nobody(place):
    with closing(Bell(*place)) as bell, closing(Ear(*place)) as ear:
        rings(bell, ear)
        for _ in range(10_000):  # and the ear does not listen
            bell.ring()
    bell.close()
    ear.close()
