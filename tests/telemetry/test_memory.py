import mmap
import os

import pytest

from srl.telemetry.memory import Growth, Memory, own_megabytes


def test_own_memory_is_resident_without_shared(tmp_path):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "statm").write_text("9000 1500 500 1 0 800 0\n")
    pages = 1000
    assert own_megabytes(7, tmp_path) == pytest.approx(pages * os.sysconf("SC_PAGE_SIZE") / 1e6)
    assert own_megabytes(8, tmp_path) is None


def test_memory_that_is_taken_is_seen():
    before = own_megabytes()
    assert before is not None
    # a map of its own: the heap may have as much that was freed
    taken = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    taken.write(bytes(64 << 20))
    now = own_megabytes()
    assert now is not None
    assert now - before > 50
    assert len(taken) == 64 << 20


def rate_of(sizes, *, seconds=1.0, expected=0.0):
    growth = Growth(expected)
    for number, size in enumerate(sizes):
        growth.add(number * seconds, size)
    return growth.rate


def test_leak_is_found():
    assert rate_of([40 + 10 * t for t in range(40)]) == pytest.approx(10.0)
    slow = [40 + 0.1 * t for t in range(2000)]
    assert rate_of(slow) == pytest.approx(0.1)


def test_memory_that_settles_is_no_leak():
    slow_host = [40 + 10 * min(t, 18) for t in range(40)]
    assert rate_of(slow_host) is None  # envs and buffers at the start
    filled = [40 + 10 * min(t, 20) for t in range(100)]
    assert rate_of(filled) is None  # a cache that is full
    assert rate_of([400 + 30 * (t % 2) for t in range(100)]) is None
    assert rate_of([500 - t for t in range(100)]) is None


def test_little_growth_is_not_mentioned():
    assert rate_of([40 + 3 * t for t in range(40)]) is None


def test_replay_that_is_filled_is_no_leak_until_it_is_full():
    filled = [40 + 10 * t for t in range(200)]
    assert rate_of(filled, expected=2000.0) is None
    assert rate_of(filled, expected=1000.0) == pytest.approx(10.0)
    memory, told = Memory(), []
    memory.expected = {"trainer": 2000.0}
    for second, size in enumerate(filled):
        told += memory.take(float(second), {"trainer-0": size, "buffer-0": size})
    assert told == ["buffer-0"]


def test_memory_of_a_run_is_added_up():
    memory = Memory()
    memory.take(0.0, {"actor-0": 20.0, "actor-1": 30.0, "trainer-0": 150.0})
    assert memory.total == 200.0
    assert memory.largest() == {"actor": ("actor-1", 30.0), "trainer": ("trainer-0", 150.0)}
    assert memory.summary() == {
        "megabytes": 200.0,
        "largest": {
            "actor": {"worker": "actor-1", "megabytes": 30.0},
            "trainer": {"worker": "trainer-0", "megabytes": 150.0},
        },
        "growing": {},
    }


def test_who_grows_is_told_once_and_remembered_over_its_lives():
    memory, told = Memory(), []
    for second in range(40):
        told += memory.take(float(second), {"actor-0": 20.0 + 10 * second, "actor-1": 20.0})
    assert told == ["actor-0"]
    memory.forget("actor-0")
    assert memory.of("actor-0") == 0.0
    for second in range(40, 80):
        told += memory.take(float(second), {"actor-0": 20.0 + 10 * (second - 40)})
    assert told == ["actor-0"]
    assert memory.summary()["growing"] == {"actor-0": pytest.approx(10.0)}


def test_new_life_does_not_count_as_growth():
    memory = Memory()
    for second in range(40):
        memory.take(float(second), {"policy-0": 20.0})
    memory.forget("policy-0")
    for second in range(40, 90):
        memory.take(float(second), {"policy-0": 500.0})
    assert memory.growing == {}
