"""Writes what an env draws as a film: `.mp4`, or `.gif` where there is no encoder."""

import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np

from srl.core.errors import ConfigError

_NEEDS = {".mp4": ("imageio", "imageio_ffmpeg"), ".gif": ("imageio", "PIL")}


def check_video(path: Path) -> None:
    """Raise ConfigError for a film that cannot be written, before anything is played."""
    if path.suffix not in _NEEDS:
        raise ConfigError(f"a video is an .mp4 or a .gif, got {str(path)!r}")
    if path.is_dir():
        raise ConfigError(f"the video {path} would replace a folder")
    if not path.parent.is_dir():
        raise ConfigError(f"there is no folder {path.parent} for the video {path.name}")
    if not os.access(path.parent, os.W_OK):
        raise ConfigError(f"the folder {path.parent} of the video cannot be written")
    missing = [name for name in _NEEDS[path.suffix] if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"a video {path.suffix} needs {', '.join(missing)}: pip install 'really-scalable-rl[video]'"
        )


class Video:
    """A film that is there, whole, after `close`; `abandon` leaves nothing.

    In a .gif, frames that follow each other and are alike become one that is shown longer.
    """

    def __init__(self, path: Path, frames_per_second: float) -> None:
        check_video(path)
        from imageio import v2 as imageio  # pyright: ignore[reportMissingImports] - an extra

        self._path = path
        self._aside = path.with_name(f".{path.stem}.writing{path.suffix}")
        self.num_frames = 0
        if path.suffix == ".gif":
            options: dict[str, Any] = {"duration": 1000 / frames_per_second, "loop": 0}
        else:
            options = {"fps": frames_per_second, "macro_block_size": 1, "ffmpeg_log_level": "error"}
        self._writer: Any = imageio.get_writer(self._aside, **options)

    def add(self, frame: np.ndarray) -> None:
        """Append one frame, `[H, W, 3] uint8`."""
        height, width, _ = frame.shape
        even = ((0, height % 2), (0, width % 2), (0, 0))  # what H.264 can hold
        self._writer.append_data(np.pad(frame, even, mode="edge"))
        self.num_frames += 1

    def close(self) -> None:
        """Finish the film and put it in its place."""
        self._writer.close()
        self._aside.replace(self._path)

    def abandon(self) -> None:
        """Remove what was written."""
        self._writer.close()
        self._aside.unlink(missing_ok=True)
