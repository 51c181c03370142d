"""Where metrics go: JSON lines for programs, TensorBoard for people."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class JsonLines:
    """One line a learned batch. All that depends on the clock is under `time`."""

    def __init__(self, path: Path, *, keep_lines: int | None) -> None:
        """Append to `path`; after `keep_lines` of it (a resumed run's checkpoint was earlier)."""
        self.num_lines = 0
        if keep_lines is not None and path.exists():
            lines = path.read_bytes().splitlines(keepends=True)[:keep_lines]
            path.write_bytes(b"".join(lines))
            self.num_lines = len(lines)
        self._file = path.open("a", encoding="utf-8")

    def write(self, row: Mapping[str, Any], clock: Mapping[str, Any]) -> None:
        """Write one row."""
        self._file.write(json.dumps({**row, "time": clock}) + "\n")
        self._file.flush()
        self.num_lines += 1

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoard:
    """Scalars over env steps, in TensorBoard's own event files."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(str(folder))

    def write(self, row: Mapping[str, Any], clock: Mapping[str, Any]) -> None:
        """Write the numbers of one row."""
        from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue] - generated
        from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue] - generated

        numbers = {f"train/{k}": v for k, v in row.items()} | {
            f"time/{k}": v for k, v in clock.items()
        }
        values = [
            Summary.Value(tag=tag, simple_value=float(value))
            for tag, value in numbers.items()
            if isinstance(value, int | float)
        ]
        event = Event(wall_time=time.time(), step=int(row["env_steps"]))
        event.summary.value.extend(values)
        self._writer.add_event(event)

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()
