"""An arena is memory that several processes of one host map, passed on by file descriptor.

It has no name in any file system, so the kernel frees it whatever is killed; its pages are
allocated when it is created, so a host that is too small says so before the start.
"""

import errno
import mmap
import os
import tempfile

import numpy as np

from srl.core.errors import ConfigError


class Arena:
    """Bytes at `buffer`, from the heap or from an inherited file descriptor."""

    def __init__(self, buffer: np.ndarray, fd: int | None, mapping: mmap.mmap | None) -> None:
        self.buffer = buffer
        self.fd = fd
        self._mapping = mapping

    @classmethod
    def heap(cls, num_bytes: int) -> "Arena":
        """Memory of this process alone, aligned like a mapping."""
        raw = np.zeros(num_bytes + 64, np.uint8)
        start = -raw.ctypes.data % 64
        return cls(raw[start : start + num_bytes], None, None)

    @classmethod
    def create(cls, name: str, num_bytes: int) -> "Arena":
        """New shared memory; raises ConfigError where the host cannot hold it."""
        fd = _anonymous_file(name)
        try:
            os.posix_fallocate(fd, 0, num_bytes)
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
                raise ConfigError(
                    f"this host cannot hold the shared memory {name!r} of "
                    f"{num_bytes / 1e6:.1f} MB: use fewer --actors.envs, a shorter "
                    "--algorithm.rollout, or a lower --max-staleness"
                ) from error
            raise
        return cls.attach(fd, num_bytes)

    @classmethod
    def attach(cls, fd: int, num_bytes: int) -> "Arena":
        """Map shared memory whose descriptor this process inherited; owns the descriptor."""
        mapping = mmap.mmap(fd, num_bytes)
        return cls(np.frombuffer(mapping, np.uint8), fd, mapping)

    def close(self) -> None:
        """Give the descriptor back; the mapping ends with the last view of it."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


def _anonymous_file(name: str) -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create(f"srl-{name}", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile(prefix="srl-") as file:  # unlinked from the start (macOS)
        return os.dup(file.fileno())
