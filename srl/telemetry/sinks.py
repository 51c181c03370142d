"""Where metrics go: JSON lines for programs, TensorBoard for people."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class JsonLines:
    """One line a learned batch. All that depends on the clock is under `time`."""

    def __init__(self, path: Path, *, up_to_version: int | None) -> None:
        """Append to `path`; rows of versions that a resumed run will learn again are removed."""
        self.last: dict[str, Any] = {}
        """The last row that was there."""
        if up_to_version is not None and path.exists():
            rows = [json.loads(line) for line in path.read_text().splitlines() if _is_row(line)]
            kept = [row for row in rows if row["version"] <= up_to_version]
            path.write_text("".join(json.dumps(row) + "\n" for row in kept))
            self.last = kept[-1] if kept else {}
        self._file = path.open("a", encoding="utf-8")

    def write(self, row: Mapping[str, Any], clock: Mapping[str, Any]) -> None:
        """Write one row."""
        self._file.write(json.dumps({**row, "time": clock}) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _is_row(line: str) -> bool:
    """Whether the line is whole: a run that was killed may have left half of one."""
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


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
