"""Kills a process that writes checkpoints, again and again, and looks at what it left.

    python tests/learning/killed_writer.py FOLDER --kills 1000 [--seed 0]     at random moments
    python tests/learning/killed_writer.py FOLDER --every-operation           before each file operation

Each victim is a fork that goes on from what is on disk, as a resumed run does: it writes
checkpoints one after the other (new versions, the same version again; two parts; scores), and tells
of every one that is committed. After its death,

- the newest checkpoint is whole by every byte, and not older than the last one told of;
- so is the best, and it is not worse than the best told of (of those that are alike);
- every checkpoint that is listed is whole;
- nothing but checkpoints is left once `remove_unfinished` has swept.

Prints one JSON object; the exit code is 1 where one of these did not hold.
"""

import argparse
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

from srl.core.errors import CheckpointError
from srl.learning.checkpoint import (
    begin_checkpoint,
    best_checkpoint,
    commit_checkpoint,
    latest_checkpoint,
    list_checkpoints,
    read_checkpoint,
    read_manifest,
    remove_unfinished,
    write_part,
)

KEEP = 2
OPERATIONS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir")
"""Audit events: what changes files, but for writes and syncs."""


def write_for_ever(folder: Path, seed: int, told: int) -> None:
    """What a victim does: from the newest checkpoint on, and never to an end."""
    rng = random.Random(seed)
    while True:
        found = list_checkpoints(folder)
        before = read_manifest(found[-1]) if found else {"version": 0, "serial": 0}
        number = int(before["serial"]) + 1
        version = max(1, int(before["version"]) + rng.choice((0, 1, 1)))
        aside = begin_checkpoint(folder, number)
        parts = [
            write_part(aside, f"trainer-{i}", {f"trainer-{i}": state(number, rng)}) for i in (0, 1)
        ]
        score = (rng.uniform(0, 100), "episodes")
        manifest = {"score": score, "number": number}
        versions = {"a": version, "b": max(0, version - 1)}
        commit_checkpoint(aside, parts, versions=versions, manifest=manifest, keep=KEEP)
        os.write(told, f"{number} {score[0]!r}\n".encode())


def state(number: int, rng: random.Random) -> dict[str, np.ndarray]:
    """Arrays that all hold the number of their checkpoint, of different sizes."""
    return {"small": np.full(3, number), "large": np.full(rng.randint(1, 40_000), float(number))}


def start_victim(folder: Path, seed: int, dies_at: int | None = None) -> tuple[int, int]:
    """Pid and the end of a pipe that tells of committed checkpoints."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        try:
            if dies_at is not None:
                die_at_operation(folder, dies_at)
            write_for_ever(folder, seed, write)
        finally:
            os._exit(9)
    os.close(write)
    return pid, read


def die_at_operation(folder: Path, number: int) -> None:
    """Have this process killed in place of its `number`-th operation on files of the folder."""
    count = 0

    def hook(event: str, args: tuple[object, ...]) -> None:
        nonlocal count
        if event not in OPERATIONS or not changes(args, folder):
            return
        count += 1
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)

    sys.addaudithook(hook)


def changes(args: tuple[object, ...], folder: Path) -> bool:
    """Whether an operation is one on the folder; files opened to be read are not counted."""
    is_read = len(args) == 3 and args[1] in ("r", "rb")
    name = args[0]
    relative = isinstance(name, str) and not name.startswith("/")  # rmtree, by descriptor
    return not is_read and (relative or str(name).startswith(str(folder)))


def bury(pid: int, pipe: int) -> tuple[list[tuple[int, float]], int]:
    """Wait for its death; what it told of, and its exit status."""
    status = os.waitpid(pid, 0)[1]
    with os.fdopen(pipe, "rb") as file:
        lines = file.read().decode().splitlines()
    return [(int(number), float(score)) for number, score in map(str.split, lines)], status


def examine(folder: Path, newest_told: int, best_told: float) -> list[str]:
    """What does not hold."""
    wrong = []
    for path in list_checkpoints(folder):
        try:
            checkpoint = read_checkpoint(path)
        except CheckpointError as error:
            wrong.append(f"listed and not whole: {error}")
            continue
        number = checkpoint.manifest["number"]
        wrong += [
            f"{path.name}: {name} is not of checkpoint {number}"
            for name, section in checkpoint.sections.items()
            if any(set(array.tolist()) != {number} for array in section.values())
        ]
    if newest_told and not list_checkpoints(folder):
        wrong.append(f"there is none, and {newest_told} was committed")
    elif newest_told:
        newest = read_manifest(latest_checkpoint(folder))["number"]
        if newest < newest_told:
            wrong.append(f"the newest is {newest}, and {newest_told} was committed")
        best = best_checkpoint(folder)
        score = -1.0 if best is None else read_manifest(best)["score"][0]
        if score < best_told:
            wrong.append(f"the best has {score}, and one of {best_told} was committed")
    return wrong


def what_is_left(folder: Path) -> str:
    """In which state of a write its process died, by what lies there."""
    names = os.listdir(folder)
    if any(name.endswith(".removing") for name in names):
        return "removing"
    for name in names:
        if name.endswith(".writing"):
            files = os.listdir(folder / name)
            return "replacing" if is_replacing(folder / name) else f"writing, {len(files)} files"
    return "between two"


def is_replacing(aside: Path) -> bool:
    """Whether the one of the same version was put away for the one in `aside`, which is whole."""
    try:
        manifest = json.loads((aside / "manifest.json").read_text())
    except (OSError, ValueError):
        return False
    name = f"{manifest['version']:08d}"
    before = aside.parent / f"{name}.{manifest['serial']}"
    return before.exists() and not (aside.parent / name).exists()


class Trial:
    """All deaths over one folder, and what was found."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.newest = 0
        self.best = -1.0
        self.deaths = 0
        self.committed = 0
        self.left: Counter[str] = Counter()
        self.failures: list[str] = []

    def after(self, victim: tuple[list[tuple[int, float]], int], where: str) -> None:
        told, status = victim
        self.deaths += 1
        self.committed += len(told)
        if not os.WIFSIGNALED(status):
            self.failures.append(f"{where}: the writer failed by itself ({status})")
        for number, score in told:
            self.newest, self.best = max(self.newest, number), max(self.best, score)
        self.left[what_is_left(self.folder)] += 1
        self.failures += [f"{where}: {w}" for w in examine(self.folder, self.newest, self.best)]
        remove_unfinished(self.folder)
        odd = [name for name in os.listdir(self.folder) if name.startswith(".")]
        if odd:
            self.failures.append(f"{where}: {odd} were left")

    def result(self) -> dict[str, object]:
        return {
            "kills": self.deaths,
            "committed": self.committed,
            "failures": self.failures,
            "died while": dict(self.left.most_common()),
        }


def kill_at_random(folder: Path, kills: int, seed: int) -> dict[str, object]:
    """Each victim lives for as long as a few checkpoints take, at most."""
    trial, rng = Trial(folder), random.Random(seed)
    for number in range(kills):
        pid, pipe = start_victim(folder, seed + number)
        time.sleep(rng.uniform(0.0, 0.02))
        os.kill(pid, signal.SIGKILL)
        trial.after(bury(pid, pipe), f"kill {number} of seed {seed}")
    return trial.result()


def kill_at_every_operation(folder: Path, seed: int) -> dict[str, object]:
    """Kill before the 1st operation, before the 2nd, ... until a victim wrote six checkpoints."""
    trial, number = Trial(folder), 0
    while not trial.failures:
        number += 1
        told, status = bury(*start_victim(folder, seed + number % 7, dies_at=number))
        trial.after((told, status), f"operation {number} of seed {seed}")
        if len(told) >= 6:
            break
    return trial.result()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every-operation", action="store_true")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.every_operation:
        result = kill_at_every_operation(options.folder, options.seed)
    else:
        result = kill_at_random(options.folder, options.kills, options.seed)
    print(json.dumps(result))
    return 1 if result["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
