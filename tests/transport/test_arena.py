import os
import resource
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from srl.core.errors import ConfigError
from srl.transport.arena import Arena


def _run(code, *args, fds=()):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
        pass_fds=fds,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def arena():
    arena = Arena.create("test", 1 << 16)
    yield arena
    arena.close()


def test_arena_is_zeros_of_the_size_asked_for(arena):
    assert arena.buffer.nbytes == 1 << 16
    assert not arena.buffer.any()
    assert arena.buffer.ctypes.data % 64 == 0


def test_heap_arena_is_aligned_and_has_no_descriptor():
    arena = Arena.heap(1000)
    assert arena.fd is None
    assert arena.buffer.nbytes == 1000
    assert arena.buffer.ctypes.data % 64 == 0
    arena.close()


def test_child_that_inherits_the_descriptor_shares_the_memory(arena):
    arena.buffer[0] = 7
    done = _run(
        """
        import sys
        from srl.transport.arena import Arena
        arena = Arena.attach(int(sys.argv[1]), int(sys.argv[2]))
        assert arena.buffer[0] == 7
        arena.buffer[1] = 8
        arena.close()
        """,
        arena.fd,
        arena.buffer.nbytes,
        fds=(arena.fd,),
    )
    assert done.returncode == 0, done.stderr
    assert arena.buffer[1] == 8


def test_child_that_is_not_handed_the_descriptor_has_none(arena):
    code = "import os, sys; os.fstat(int(sys.argv[1]))"
    assert "Bad file descriptor" in _run(code, arena.fd).stderr


def test_memory_is_allocated_at_once(arena):
    assert os.fstat(arena.fd).st_blocks * 512 >= arena.buffer.nbytes


def test_views_outlive_close_and_the_descriptor_does_not(arena):
    fd, view = arena.fd, arena.buffer[:8]
    arena.close()
    arena.close()
    assert arena.fd is None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    view[:] = 5
    assert (view == 5).all()


def test_memory_is_freed_with_the_last_process():
    done = _run(
        """
        import os
        from srl.transport.arena import Arena
        def mapped():
            return sum("memfd:srl-gone" in line for line in open("/proc/self/maps"))
        arena = Arena.create("gone", 1 << 20)
        assert mapped() == 1
        arena.close()
        del arena
        assert mapped() == 0, "the mapping outlived its views"
        assert not any("srl-gone" in os.readlink(f"/proc/self/fd/{fd}")
                       for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}"))
        """
    )
    assert done.returncode == 0, done.stderr


def test_too_large_an_arena_is_refused_in_words():
    # A file size limit stands in for a host that is too small: the same call fails the same way.
    done = _run(
        """
        import resource
        from srl.core.errors import ConfigError
        from srl.transport.arena import Arena
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        try:
            Arena.create("blocks", 1 << 21)
        except ConfigError as error:
            print(error)
        """
    )
    assert "cannot hold the shared memory 'blocks' of 2.1 MB" in done.stdout, done.stderr
    assert "--actors.envs" in done.stdout


def test_failed_creation_leaves_no_descriptor_behind(monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", fail)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ConfigError):
        Arena.create("test", 100)
    assert len(os.listdir("/proc/self/fd")) == before


def test_two_arenas_are_two_memories():
    arenas = [Arena.create("same-name", 64) for _ in range(2)]
    arenas[0].buffer[:] = 1
    assert not arenas[1].buffer.any()
    for arena in arenas:
        arena.close()


def test_attached_twice_is_one_memory(arena):
    twin = Arena.attach(os.dup(arena.fd), arena.buffer.nbytes)
    twin.buffer[:] = np.arange(1 << 16, dtype=np.uint8)
    assert np.array_equal(arena.buffer, twin.buffer)
    twin.close()
    assert resource.getpagesize() <= arena.buffer.nbytes
