"""Environments of peers: a venv each, made when first needed and kept."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from srl.tools.bench.peer_settings import PeerSettings, digest

_STEP_SECONDS = 1800.0
_TOLD_CHARACTERS = 1500


class NotInstalledError(Exception):
    """An environment that could not be made; says why."""


def default_cache() -> Path:
    """Where environments are kept if nothing else is said."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "srl" / "peers"


class Environments:
    """The environments of a settings file, below one folder.

    One that is complete holds a file with the digest of the steps that made it; other steps make
    it anew.
    """

    def __init__(
        self, settings: PeerSettings, folder: Path, cache: Path, say: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._cache = cache
        self._say = say
        self._failed: dict[str, NotInstalledError] = {}

    def digest(self, name: str) -> str:
        """What decides what is in an environment."""
        steps = self._settings.environments[name]
        scripts = [(self._folder / s[1]).read_bytes() for s in steps if s[0] == "run"]
        return digest(self._settings.constraints, steps, *scripts)

    def python(self, name: str) -> Path:
        """The interpreter of an environment, which is made if need be.

        Raises NotInstalledError, at once where that was tried before.
        """
        if name in self._failed:
            raise self._failed[name]
        home = self._cache / name
        python, made_by = home / "bin" / "python", home / "srl-peer-digest"
        if made_by.is_file() and made_by.read_text() == self.digest(name) and python.exists():
            return python
        try:
            self._make(name, home, python)
        except NotInstalledError as error:
            self._failed[name] = error
            raise
        made_by.write_text(self.digest(name))
        return python

    def _make(self, name: str, home: Path, python: Path) -> None:
        self._say(f"{name}: installing into {home}")
        shutil.rmtree(home, ignore_errors=True)
        self._cache.mkdir(parents=True, exist_ok=True)
        constraints = self._cache / f"{name}-constraints.txt"
        constraints.write_text("".join(f"{line}\n" for line in self._settings.constraints))
        self._step([sys.executable, "-m", "venv", str(home)])
        for kind, *words in self._settings.environments[name]:
            if kind == "pip":
                limits = ["-c", str(constraints)]
                self._step([str(python), "-m", "pip", "install", "-q", *limits, *words])
            elif kind == "run":
                script = str(self._folder / words[0])
                self._step([str(python), script, "-c", str(constraints), *words[1:]])
            else:
                raise NotInstalledError(f"step {kind!r} is unknown: pip or run")

    def _step(self, command: Sequence[str]) -> None:
        about = " ".join(Path(word).name for word in command)
        env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=env,
                timeout=_STEP_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise NotInstalledError(f"{about} took over {_STEP_SECONDS:.0f} s") from error
        except OSError as error:
            raise NotInstalledError(f"{about}: {error}") from error
        if done.returncode:
            told = [line for line in done.stdout.splitlines() if not line.startswith("WARNING")]
            raise NotInstalledError(
                f"{about} ended with {done.returncode}: {' / '.join(told)[-_TOLD_CHARACTERS:]}"
            )
