"""What `srl bench peers` runs: the committed file of peers, their environments and their settings.

benchmarks/peers/settings.json    read here
benchmarks/peers/*.py             a script a peer: prints one JSON line with `steps_s`
"""

import hashlib
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from srl.core.errors import ConfigError
from srl.core.names import nearest

OURS = "srl"
"""The side that all others are compared with."""
OWN = "own"
"""The variant in which each side is as it comes; every workload has it."""


class Setting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One way to run one side."""

    label: str
    """What tells it from the side's others."""
    args: str = ""
    """Arguments of the side's script, as typed in a shell."""
    env: dict[str, str] = {}
    """Environment variables."""
    note: str | None = None
    """Where its work is not quite the workload's."""

    def with_variant(self, args: str, env: Mapping[str, str]) -> "Setting":
        """The same with a variant's arguments and environment variables added."""
        return Setting(self.label, f"{self.args} {args}".strip(), {**self.env, **env}, self.note)

    @property
    def words(self) -> list[str]:
        """The arguments, split."""
        return shlex.split(self.args)


class Side(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A system that takes part."""

    name: str
    """What tables call it."""
    environment: str
    """The environment it is installed in."""
    script: str
    """The script that runs it."""


class Variant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Conditions under which sides are compared."""

    about: str
    """The conditions, in words."""
    env: dict[str, str] = {}
    """Environment variables of all sides."""
    args: dict[str, str] = {}
    """Side to further arguments."""
    peers: tuple[str, ...] | None = None
    """Peers that can take part; None: all."""
    settings: dict[str, tuple[Setting, ...]] = {}
    """Side to settings in the place of those it has elsewhere."""


class WorkloadSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How every side runs one workload."""

    settings: dict[str, tuple[Setting, ...]]
    """Side to its settings: all are tried, the best counts."""
    variants: dict[str, Variant]
    """Name to variant."""


class PeerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    constraints: tuple[str, ...]
    """What every call of pip is constrained to."""
    environments: dict[str, tuple[tuple[str, ...], ...]]
    """Name to steps: `pip WHAT ...` installs, `run SCRIPT ...` runs a script beside this file."""
    sides: dict[str, Side]
    """Name to side."""
    workloads: dict[str, WorkloadSettings]
    """Name to how it is run."""


def default_folder() -> Path:
    """Where the scripts and settings of this checkout lie."""
    return Path(__file__).parents[3] / "benchmarks" / "peers"


def read_settings(folder: Path) -> PeerSettings:
    """The settings file of a folder of peers; raises ConfigError where it cannot be used."""
    path = folder / "settings.json"
    try:
        settings = msgspec.json.decode(path.read_bytes(), type=PeerSettings)
    except OSError as error:
        raise ConfigError(f"peers run from a checkout of the project: {error}") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: {error}") from error
    for name, workload in settings.workloads.items():
        asked = {*workload.settings, *(s for v in workload.variants.values() for s in v.settings)}
        if strangers := asked - set(settings.sides):
            raise ConfigError(f"{path}: {name} has settings of unknown sides {sorted(strangers)}")
        if OWN not in workload.variants or OURS not in workload.settings:
            raise ConfigError(f"{path}: {name} needs a variant {OWN!r} and settings of {OURS!r}")
    for name, side in settings.sides.items():
        if side.environment not in settings.environments:
            raise ConfigError(
                f"{path}: the environment of {name}, {side.environment!r}, is unknown"
            )
    return settings


def find_workload(settings: PeerSettings, name: str) -> WorkloadSettings:
    """A workload by its name; raises ConfigError for one that has no peers."""
    if name not in settings.workloads:
        known = list(settings.workloads)
        raise ConfigError(
            f"no peers are known for {name!r}{nearest(name, known)}; there are {', '.join(known)}"
        )
    return settings.workloads[name]


def digest(*parts: Any) -> str:
    """A short name for exactly these bytes and JSON-like values."""
    made = hashlib.sha256()
    for part in parts:
        made.update(part if isinstance(part, bytes) else json.dumps(part, sort_keys=True).encode())
        made.update(b"\0")
    return made.hexdigest()[:16]
