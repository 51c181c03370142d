import subprocess
import sys
import textwrap

import numpy as np
import pytest

from srl.core.errors import StreamError
from srl.core.spec import Field, Spec
from srl.streams.parameters import shm
from srl.streams.parameters.shm import ShmPublisher, ShmSubscriber, parameter_arena_bytes
from srl.testing.stream_contract import eventually
from srl.transport.arena import Arena

SPEC = Spec((Field("w", (50_000,), "int64", "head"), Field("b", (), "int64", "head")))

WRITER = """
    import sys
    import numpy as np
    from srl.core.spec import Field, Spec
    from srl.streams.parameters.shm import ShmPublisher
    from srl.transport.arena import Arena

    fd, size, count = map(int, sys.argv[1:])
    arena = Arena.attach(fd, size)
    spec = Spec((Field("w", (50_000,), "int64", "head"), Field("b", (), "int64", "head")))
    publisher = ShmPublisher(arena.buffer, spec)
    weights = {"w": np.zeros(50_000, np.int64), "b": np.zeros((), np.int64)}
    for version in range(count):
        weights["w"][:] = version
        weights["b"][...] = version
        publisher.publish(weights, version)
    arena.close()
"""


def weights(fill):
    return {"w": np.full(50_000, fill, np.int64), "b": np.full((), fill, np.int64)}


@pytest.fixture
def arena():
    arena = Arena.create("parameters", parameter_arena_bytes(SPEC))
    yield arena
    arena.close()


def test_reader_of_another_process_never_gets_a_torn_version(arena):
    size, count = arena.buffer.nbytes, 20_000
    writer = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WRITER), str(arena.fd), str(size), str(count)],
        pass_fds=(arena.fd,),
    )
    subscriber = ShmSubscriber(arena.buffer, SPEC)
    eventually(lambda: subscriber.latest() >= 0, "the first version")
    fetched, last = 0, -1
    while writer.poll() is None:
        latest = subscriber.latest()
        assert latest >= last
        version, arrays = subscriber.fetch()
        assert version >= latest
        assert (arrays["w"] == version).all()
        assert arrays["b"] == version
        fetched, last = fetched + 1, version
    assert writer.returncode == 0
    assert fetched > 1
    version, arrays = subscriber.fetch()
    assert version == count - 1
    assert (arrays["w"] == version).all()


def _die_half_way(arena, publisher):
    """Leave the arena as a writer killed in the middle of `publish` does."""
    turn = int(publisher._words[shm._END]) + 1
    publisher._words[shm._BEGIN] = turn
    publisher._buffers[turn % 2]["w"][0, :25_000] = -99


@pytest.mark.parametrize("published", [1, 2, 3])
def test_writer_killed_half_way_leaves_the_last_version_whole(arena, published):
    publisher, subscriber = ShmPublisher(arena.buffer, SPEC), ShmSubscriber(arena.buffer, SPEC)
    for version in range(published):
        publisher.publish(weights(version), version)
    _die_half_way(arena, publisher)
    version, arrays = subscriber.fetch()
    assert version == published - 1 == subscriber.latest()
    assert (arrays["w"] == version).all()

    restarted = ShmPublisher(arena.buffer, SPEC)
    assert subscriber.fetch()[0] == version
    restarted.publish(weights(50), 50)
    version, arrays = subscriber.fetch()
    assert version == 50 == subscriber.latest()
    assert (arrays["w"] == 50).all()
    restarted.publish(weights(51), 51)
    assert (subscriber.fetch()[1]["w"] == 51).all()
    assert subscriber.torn_reads == 0


def test_writer_killed_before_its_first_version_has_published_nothing(arena):
    publisher, subscriber = ShmPublisher(arena.buffer, SPEC), ShmSubscriber(arena.buffer, SPEC)
    _die_half_way(arena, publisher)
    assert subscriber.latest() == -1
    with pytest.raises(StreamError):
        subscriber.fetch()
    ShmPublisher(arena.buffer, SPEC).publish(weights(0), 0)
    assert subscriber.latest() == 0


def _during_copy(monkeypatch, *happenings):
    """Let each happening take place in the middle of one copy of the reader."""
    copyto, left = np.copyto, list(happenings)

    def interrupted(target, source, **options):
        if not left or target.dtype != np.uint8:  # not the reader's copy
            return copyto(target, source, **options)
        happening = left.pop(0)
        copyto(target[:1000], source[:1000])
        happening()
        return copyto(target[1000:], source[1000:])

    monkeypatch.setattr(np, "copyto", interrupted)


def test_copy_overtaken_by_two_versions_is_repeated(arena, monkeypatch):
    publisher, subscriber = ShmPublisher(arena.buffer, SPEC), ShmSubscriber(arena.buffer, SPEC)
    publisher.publish(weights(1), 1)

    def overtake():
        publisher.publish(weights(2), 2)
        publisher.publish(weights(3), 3)

    _during_copy(monkeypatch, overtake)
    version, arrays = subscriber.fetch()
    assert version == 3
    assert (arrays["w"] == 3).all()
    assert subscriber.torn_reads == 1


def test_copy_overtaken_by_a_writer_that_dies_and_restarts_is_repeated(arena, monkeypatch):
    publisher, subscriber = ShmPublisher(arena.buffer, SPEC), ShmSubscriber(arena.buffer, SPEC)
    publisher.publish(weights(1), 1)

    def overtake_and_die():
        publisher.publish(weights(2), 2)
        _die_half_way(arena, publisher)
        ShmPublisher(arena.buffer, SPEC)

    _during_copy(monkeypatch, overtake_and_die)
    version, arrays = subscriber.fetch()
    assert version == 2
    assert (arrays["w"] == 2).all()
    assert subscriber.torn_reads == 1


def test_versions_that_never_stand_still_are_an_error(arena, monkeypatch):
    publisher, subscriber = ShmPublisher(arena.buffer, SPEC), ShmSubscriber(arena.buffer, SPEC)
    publisher.publish(weights(1), 1)
    monkeypatch.setattr(shm, "_ATTEMPTS", 2)

    def overtake():
        for version in (2, 3):
            publisher.publish(weights(version), version)

    _during_copy(monkeypatch, overtake, overtake)
    with pytest.raises(StreamError, match="2 attempts"):
        subscriber.fetch()


def test_unknown_weight_is_refused(arena):
    publisher = ShmPublisher(arena.buffer, SPEC)
    with pytest.raises(KeyError, match="x"):
        publisher.publish({"x": np.zeros(3)}, 0)
