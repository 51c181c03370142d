"""Writing to a disk that may be full: whole records, and failures that do not end a run."""

import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import ParamSpec, TypeVar

from srl.core.errors import CheckpointError

ResultT = TypeVar("ResultT")
Parameters = ParamSpec("Parameters")


class RecordFile:
    """A file that grows by whole records: of one that does not fit, nothing is left."""

    def __init__(self, path: Path) -> None:
        """Append to `path`."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._fd: int | None = os.open(path, flags, 0o666)

    def write(self, record: bytes) -> None:
        """Append a record; raises OSError where it does not fit."""
        if self._fd is None:
            raise ValueError("this file is closed")
        written, size = 0, os.fstat(self._fd).st_size
        try:
            while written < len(record):
                written += os.write(self._fd, record[written:])
        except OSError:
            if written:
                with suppress(OSError):
                    os.ftruncate(self._fd, size)
            raise

    def flush(self) -> None:
        """Nothing: what is written is in the kernel's hands."""

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def replace_file(path: Path, data: bytes) -> None:
    """Write a file, whole or not at all."""
    aside = path.with_name(f".{path.name}.writing")
    try:
        aside.write_bytes(data)
        aside.replace(path)
    except OSError:
        with suppress(OSError):  # it takes room that others need
            aside.unlink(missing_ok=True)
        raise


class Writes:
    """Lets what is written beside the learning fail: says so, counts, and tries again next time."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """With `say`, which tells the user one thing."""
        self.lost: Counter[str] = Counter()
        """File to how often it could not be written."""
        self._say = say
        self._failing: set[str] = set()

    def attempt(
        self,
        what: str,
        write: Callable[Parameters, ResultT],
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> ResultT | None:
        """Call `write`; None where it failed."""
        try:
            result = write(*args, **kwargs)
        except (OSError, CheckpointError) as error:
            self.failed(what, (isinstance(error, OSError) and error.strerror) or str(error))
            return None
        if what in self._failing:
            self._failing.remove(what)
            self._say(f"note: {what} is written again; {self.lost[what]} were lost")
        return result

    def failed(self, what: str, why: str) -> None:
        """Count a failure; the first of several in a row is told."""
        self.lost[what] += 1
        if what not in self._failing:
            self._failing.add(what)
            self._say(f"note: {what} cannot be written ({why}): the run goes on without")
