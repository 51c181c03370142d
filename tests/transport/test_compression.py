"""Packed frames become what they were, or nothing: never more bytes than were asked for."""

import random
import sys

import lz4.block
import numpy as np
import pytest

from srl.core.errors import ConfigError
from srl.transport.compression import Lz4, make_compression

SIZE = 20_000


@pytest.fixture
def flat():
    data = np.zeros(SIZE, np.uint8)
    data[::97] = np.arange(len(data[::97])) % 251
    return data


def test_flat_data_is_smaller_and_comes_back(flat):
    packed = Lz4().pack(flat.data)
    assert packed is not None
    assert len(packed) < SIZE / 2
    assert Lz4().unpack(memoryview(packed), SIZE) == flat.tobytes()


def test_noise_is_left_as_it_is():
    assert Lz4().pack(np.random.default_rng(1).integers(0, 256, SIZE, np.uint8).data) is None


@pytest.mark.parametrize("size", [0, 1, SIZE - 1, SIZE + 1, 1 << 28])
def test_frame_of_another_size_is_nothing(size):
    """The last one is a bomb: 1 MB that would be 256."""
    packed = lz4.block.compress(bytes(size), store_size=False)
    assert Lz4().unpack(packed, SIZE) is None


def test_mutated_frames_are_nothing_or_whole(flat):
    rng, packed = random.Random(7), Lz4().pack(flat.data)
    assert packed is not None
    found = set()
    for _ in range(2000):
        data = bytearray(packed[: rng.randrange(len(packed) + 1)] if rng.random() < 0.3 else packed)
        for _ in range(rng.randrange(1, 5) if data else 0):
            data[rng.randrange(len(data))] = rng.randrange(256)
        unpacked = Lz4().unpack(bytes(data), SIZE)
        assert unpacked is None or len(unpacked) == SIZE
        found.add(unpacked is None)
    assert found == {True, False}


def test_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "lz4.block", None)
    with pytest.raises(
        ConfigError, match=r"needs the package lz4: pip install 'really-scalable-rl\[lz4\]'"
    ):
        make_compression("lz4")
    assert make_compression("none") is None
