"""Shows the versions a run kept as a table."""

import time
from collections.abc import Mapping, Sequence

from srl.core.errors import ConfigError
from srl.core.names import nearest
from srl.learning.versions import Version, VersionStore

_HEADS = ("version", "env steps", "seconds", "return", "std", "episodes", "kept at", "tags")


def choose_policy(store: VersionStore, name: str | None) -> str:
    """The policy of that name; without one the only policy there is."""
    known = store.policies()
    if name is None and len(known) == 1:
        return known[0]
    if name is None:
        raise ConfigError(f"this run has several policies: choose one by --policy, of {known}")
    if name not in known:
        raise ConfigError(f"there is no policy {name!r}{nearest(name, known)} (of {known})")
    return name


def table(versions: Sequence[Version], tags: Mapping[str, int]) -> str:
    """One line a version, newest first; columns as wide as they must be."""
    rows = [_HEADS, *(_row(version, tags) for version in versions)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADS))]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    return "\n".join(lines) + "\n"


def _row(version: Version, tags: Mapping[str, int]) -> tuple[str, ...]:
    mine = [tag for tag, number in tags.items() if number == version.version]
    return (
        str(version.version),
        "-" if version.env_steps is None else f"{version.env_steps:,}",
        "-" if version.seconds is None else f"{version.seconds:.1f}",
        "-" if version.eval_return is None else f"{version.eval_return:.2f}",
        "-" if version.eval_std is None else f"{version.eval_std:.2f}",
        "-" if version.eval_episodes is None else str(version.eval_episodes),
        time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(version.created)),
        " ".join(mine),
    )
