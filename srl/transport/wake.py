"""Wakes a thread that waits on a poller, from another thread."""

import contextlib
import os


class Wake:
    """A pipe that is readable from `set` until `clear`."""

    def __init__(self) -> None:
        self.fd, self._write = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write, False)

    def set(self) -> None:
        """Wake the waiting thread (a full pipe is awake already; a closed one needs no waking)."""
        with contextlib.suppress(OSError):
            os.write(self._write, b"!")

    def clear(self) -> None:
        """Wait again from now on."""
        with contextlib.suppress(OSError):  # empty, or closed
            while os.read(self.fd, 4096):
                pass

    def close(self) -> None:
        """Close both ends; may be called twice."""
        for fd in (self.fd, self._write):
            with contextlib.suppress(OSError):
                os.close(fd)
        self.fd = self._write = -1
