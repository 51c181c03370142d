"""What the evaluations of a run have found: evaluations.jsonl, the versions kept, the best."""

from collections.abc import Mapping, Sequence
from typing import Any

from srl.core.telemetry import EvaluatedVersion
from srl.launch.folder import RunFolder
from srl.learning.versions import BEST, Version, VersionStore
from srl.telemetry.files import Writes
from srl.telemetry.sinks import JsonLines, read_rows

_REMEMBERED = 10_000
"""Versions that wait to be evaluated, of which it is known when they were learned."""
_SHOWN = ("policy", "version", "env_steps", "eval_return", "eval_std", "eval_episodes")


class Evaluations:
    """The controller's account: the only writer of the file and of the index of versions."""

    def __init__(
        self, folder: RunFolder, policies: Sequence[str], writes: Writes, *, keep: int
    ) -> None:
        self._writes = writes
        self.store = VersionStore(folder.versions)
        self._folder = folder
        self._keep = keep
        self._learned: dict[str, dict[int, tuple[int, float]]] = {p: {} for p in policies}
        """Policy to version to the env steps and seconds it was learned at."""
        self._known: set[tuple[str, int]] = set()
        self._rows: JsonLines | None = None
        self.best: dict[str, Version] = {}
        """Policy to the version of the highest return."""
        self._newest: dict[str, float] = {}
        """Policy to the return of the version evaluated last."""

    def open(self, restarted_at: Mapping[str, int] | None) -> list[str]:
        """Go on from what is there, up to the versions a resumed run begins at; notes, in words."""
        path = self._folder.evaluations
        self._rows = JsonLines(path, self._writes, versions=restarted_at)
        rows = list(read_rows(path))
        self._known = {(str(row["policy"]), int(row["version"])) for row in rows}
        self._newest = {str(row["policy"]): float(row["eval_return"]) for row in rows}
        notes = self.store.repair()
        if restarted_at is None:
            return notes
        for row in read_rows(self._folder.metrics) if self._folder.metrics.is_file() else ():
            clock = row["time"]["seconds"]
            self.learned(row["policy"], row["version"], row["env_steps"], clock)
        for policy in self.store.policies() if self.store.exists else ():
            self.store.roll_back(policy, restarted_at.get(policy, 0))
            if BEST in self.store.tags(policy):
                self.best[policy] = self.store.tagged(BEST, policy=policy)
        return notes

    def learned(self, policy: str, version: int, env_steps: int, seconds: float) -> None:
        """Remember when a version was learned, until it or a later one is evaluated, or many more are."""
        known = self._learned[policy]
        known[version] = (env_steps, seconds)
        if len(known) > _REMEMBERED:
            del known[next(iter(known))]

    def take(
        self, found: EvaluatedVersion, env_steps: int, seconds: float
    ) -> dict[str, Any] | None:
        """Index and tag a version that was played; its row, None where it was there before.

        Args:
            found: the version, whose file is written.
            env_steps: those of the run so far: taken where it is not known when it was learned.
            seconds: the same of the run's time.
        """
        if found.version == 0:
            env_steps, seconds = 0, 0.0
        known = self._learned[found.policy]
        env_steps, seconds = known.get(found.version, (env_steps, seconds))
        for version in [v for v in known if v < found.version]:
            del known[version]
        whole = Version(**found._asdict(), env_steps=env_steps, seconds=seconds)
        self._newest[found.policy] = found.eval_return
        if found.file:
            self._writes.attempt("versions/", self._index, whole)
        else:
            self._writes.failed("versions/", f"no room for version {found.version}")
        if (found.policy, found.version) in self._known:
            return None
        self._known.add((found.policy, found.version))
        row = {name: getattr(whole, name) for name in _SHOWN}
        if self._rows is not None:
            self._rows.write(row, {"seconds": seconds})
        return row

    def _index(self, version: Version) -> None:
        if self.store.add(version):
            self.best[version.policy] = version
        self.store.prune(version.policy, self._keep)

    @property
    def newest_mean(self) -> float | None:
        """Mean over all policies of what was found last; None before each was evaluated."""
        known = [self._newest[policy] for policy in self._learned if policy in self._newest]
        return sum(known) / len(known) if len(known) == len(self._learned) else None

    def summary(self) -> dict[str, Any]:
        """What summary.json says of them: nothing before the first."""
        if not self.best:
            return {}
        best = {policy: _in_short(version) for policy, version in self.best.items()}
        return {"best": next(iter(best.values())) if len(self._learned) == 1 else best}

    def close(self) -> None:
        """Close the file."""
        if self._rows is not None:
            self._rows.close()
            self._rows = None


def _in_short(version: Version) -> Mapping[str, Any]:
    return {"version": version.version, "eval_return": version.eval_return}
