"""Blocks may be compressed on their way between hosts, with lz4: for links that are slower than it."""

from importlib import import_module
from typing import Any, Protocol

from srl.core.errors import ConfigError


class Compression(Protocol):
    """How a frame is made smaller, and whole again."""

    def pack(self, data: memoryview) -> bytes | None:
        """The same in fewer bytes; None where it is not smaller."""
        ...

    def unpack(self, frame: bytes | memoryview, num_bytes: int) -> bytes | None:
        """What was packed, if that were so many bytes; None: they were not, or this is no such frame."""
        ...


class Lz4:
    """lz4's block format, without the size in front, which both sides know."""

    def __init__(self) -> None:
        """Raise ConfigError where the package is not installed."""
        try:
            self._lz4: Any = import_module("lz4.block")
        except ImportError as error:
            raise ConfigError(
                "--network.compression lz4 needs the package lz4: pip install 'really-scalable-rl[lz4]', on every host"
            ) from error

    def pack(self, data: memoryview) -> bytes | None:
        """The same in fewer bytes; None where it is not smaller."""
        packed = self._lz4.compress(data, store_size=False)
        return packed if len(packed) < data.nbytes else None

    def unpack(self, frame: bytes | memoryview, num_bytes: int) -> bytes | None:
        """What was packed; never makes more than `num_bytes`, whatever the frame says."""
        try:
            data = self._lz4.decompress(frame, uncompressed_size=num_bytes)
        except self._lz4.LZ4BlockError:
            return None
        return data if len(data) == num_bytes else None


def make_compression(name: str) -> Compression | None:
    """The one of that name; None for "none"."""
    return Lz4() if name == "lz4" else None
