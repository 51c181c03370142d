"""Learning under fire: CartPole while workers are killed, beside the same run undisturbed.

    python benchmarks/kills.py [--seeds 1 2 3] [--actors 4] [--trainer-kills 20] [--out kills.json]

For each seed, a run whose actors and policy workers nobody harms, and one of which every 3 seconds a
random one is killed: it must reach a mean return of 475 within 1.5 times the env steps. With processes of
their own a seed does not make a run (undisturbed ones take 60,000 to 134,000 steps), so the ratio to the
median undisturbed run stands beside it, and judges nothing. Then a run whose
two trainers are killed 20 times, a random one of them at a random moment: it must reach 475 after that,
and a kill may cost as much learning as `--checkpoint.seconds` says at most. Envs are slowed down, or it would be solved before much could be killed.

An episode that dies with its actor has cost its env steps and is in no mean, the longest most often. So it matters
how much of the run an actor is: with `--actors 2`, each with half of the 16 envs and killed every 10 s or so, when
an episode of 500 steps takes 5 s, a kill costs 2,000 env steps, and the ratio counts that more than what is learned.

Resumable: a run that is in the file is not made again. Exits with 1 where something does not hold.
"""

import argparse
import itertools
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from srl.testing.chaos.run import Run, send_signal
from srl.tools.bench.report import host

HERE = Path(__file__).parent
RETURN = 475.0
EVERY_SECONDS = 3.0
MOST = 1.5
"""Env steps of the disturbed run, as a multiple of the undisturbed one's."""
CHECKPOINT_SECONDS = 2.0
RUN_SECONDS = 900.0
POINTS = 60
"""Of a curve that is kept."""
COMMON = (
    *(
        "train",
        "cartpole",
        "--launcher",
        "local",
        "--inference",
        "shm",
        "--env.wrappers",
        "WRAPPER",
    ),
    *("--evaluation.episodes", "20"),
)
ENVS = 16
WORKERS = (*COMMON, "--stop.env-steps", "300000", "--stop.return", f"{RETURN:g}")
TRAINERS = (
    *(
        *COMMON,
        "--actors.count",
        "2",
        "--actors.envs",
        "8",
        "--stop.env-steps",
        "1000000",
        "--trainers.count",
        "2",
    ),
    *("--checkpoint.seconds", f"{CHECKPOINT_SECONDS:g}", "--restarts.trainers", "20"),
    *("--algorithm.learning-rate-schedule", "constant", "--algorithm.clip-schedule", "constant"),
)


class Slow(gymnasium.Wrapper):
    """An env whose steps take a millisecond."""

    def step(self, action: Any) -> Any:
        time.sleep(0.001)
        return self.env.step(action)


def is_solved(row: dict) -> bool:
    return row["episodes"] >= 100 and row["mean_return"] >= RETURN


def play(words: tuple[str, ...], seed: int, disturb: Callable[[Run], list[dict]]) -> dict:
    """One run, while `disturb` does what it does to it; what became of it."""
    place = Path(tempfile.mkdtemp(prefix="srlk-"))
    arguments = [word.replace("WRAPPER", f"{HERE / 'kills.py'}:Slow") for word in words]
    run = Run(place, [*arguments, "--seed", str(seed)])
    try:
        if not run.wait_until(lambda: len(run.rows()) >= 3, 120):
            sys.exit(f"the run did not begin:\n{run.output}")
        kills = disturb(run)
        if not run.wait_until(lambda: not run.is_alive, RUN_SECONDS):
            sys.exit(f"the run did not end in {RUN_SECONDS:.0f} s:\n{run.output[-2000:]}")
        rows, summary = run.rows(), run.summary
        solved = next((row["env_steps"] for row in rows if is_solved(row)), None)
        if summary["reason"].startswith("stop.return"):  # maybe between two rows
            solved = summary["env_steps"]
        curve = [(row["env_steps"], row["mean_return"]) for row in rows]
        keys = ("status", "reason", "seconds", "env_steps", "mean_return", "eval_return", "version")
        keys += ("updates", "worker_restarts", "blocks_lost", "blocks_rolled_back")
        return {
            "seed": seed,
            "solved_at_env_steps": solved,
            **{key: summary[key] for key in keys},
            "kills": kills,
            "left": run.wait_gone(),
            "curve": curve[:: max(1, len(curve) // POINTS)],
            "rows": rows,
        }
    finally:
        run.kill_all()
        shutil.rmtree(place, ignore_errors=True)


def kill(run: Run, rng: random.Random, kinds: tuple[str, ...]) -> dict | None:
    """Kill a random worker of some kinds, now."""
    workers = {n: pid for n, pid in run.workers().items() if n.startswith(kinds)}
    if not workers:
        return None
    name = rng.choice(sorted(workers))
    if not send_signal(workers[name], signal.SIGKILL):
        return None
    row = run.rows()[-1]
    return {"worker": name, "row": len(run.rows()), "env_steps": row["env_steps"]}


def disturb_workers(run: Run, seed: int) -> list[dict]:
    """Kill an actor or a policy worker every three seconds, until the run has ended."""
    rng, kills = random.Random(seed), []
    deadline = time.monotonic() + RUN_SECONDS
    kill_at = time.monotonic() + EVERY_SECONDS
    while run.is_alive and run.summary["status"] == "running" and time.monotonic() < deadline:
        if time.monotonic() >= kill_at and (killed := kill(run, rng, ("actor", "policy"))):
            kills.append(killed)
            kill_at += EVERY_SECONDS
        time.sleep(0.02)
    return kills


def disturb_trainers(run: Run, seed: int, number: int) -> list[dict]:
    """Kill a trainer so many times, each time after some learning; then let it solve the task."""
    rng, kills = random.Random(seed), []
    while len(kills) < number:
        learned = len(run.rows())
        run.wait_until(lambda learned=learned: len(run.rows()) >= learned + 3, 120)
        time.sleep(rng.uniform(0.0, 3 * CHECKPOINT_SECONDS))
        if not run.is_alive:
            return kills
        if killed := kill(run, rng, ("trainer",)):
            kills.append(killed)
    after = len(run.rows()) + 5
    run.wait_until(lambda: any(map(is_solved, run.rows()[after:])), RUN_SECONDS)
    run.end()
    return kills


def lost(rows: list[dict]) -> list[dict]:
    """What every rollback of the trainers cost: updates, env steps they had learned from, seconds."""
    found, seconds = [], lambda row: row["time"]["seconds"]
    for place, (before, after) in enumerate(itertools.pairwise(rows)):
        step = rows[1]["updates"] - rows[0]["updates"]
        if after["updates"] == before["updates"] + step:
            continue
        restored = after["updates"] - step
        then = next((r for r in reversed(rows[: place + 1]) if r["updates"] == restored), None)
        began = 0.0 if then is None else seconds(then)
        found.append(
            {
                "at_seconds": seconds(before),
                "updates": before["updates"] - restored,
                "version": [before["version"], after["version"]],
                "env_steps": before["consumed_env_steps"]
                - (0 if then is None else then["consumed_env_steps"]),
                "seconds": seconds(before) - began,
            }
        )
    return found


def of_workers(words: tuple[str, ...], seed: int) -> dict:
    """A seed, undisturbed and disturbed."""
    calm = play(words, seed, lambda _: [])
    killed = play(words, seed, lambda run: disturb_workers(run, seed))
    for result in (calm, killed):
        del result["rows"]
    steps = killed["solved_at_env_steps"], calm["solved_at_env_steps"]
    ratio = None if None in steps else steps[0] / steps[1]
    holds = ratio is not None and ratio <= MOST
    return {"seed": seed, "ratio": ratio, "holds": holds, "undisturbed": calm, "killed": killed}


def compare(workers: list[dict]) -> None:
    """Set every disturbed run beside the median of the undisturbed ones."""
    calm = [run["undisturbed"]["solved_at_env_steps"] for run in workers]
    median = None if None in calm else float(np.median(calm))
    for run in workers:
        steps = run["killed"]["solved_at_env_steps"]
        run["ratio_to_median"] = None if None in (steps, median) else steps / median


def of_trainers(seed: int, number: int) -> dict:
    """A run whose trainers are killed."""
    result = play(TRAINERS, seed, lambda run: disturb_trainers(run, seed, number))
    rows = result.pop("rows")
    result["rolled_back"] = lost(rows)
    last = result["kills"][-1]["row"] if result["kills"] else 0
    result["solved_after_the_last_kill"] = any(map(is_solved, rows[last + 5 :]))
    most = max((entry["seconds"] for entry in result["rolled_back"]), default=0.0)
    result["most_lost_seconds"] = most
    result["holds"] = (
        len(result["kills"]) == number
        and result["solved_after_the_last_kill"]
        and most <= CHECKPOINT_SECONDS
    )
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--actors", type=int, default=4)
    parser.add_argument("--trainer-kills", type=int, default=20)
    parser.add_argument("--out", type=Path, default=HERE / "kills.json")
    options = parser.parse_args()
    actors = ("--actors.count", options.actors, "--actors.envs", ENVS // options.actors)
    words = (*WORKERS, *map(str, actors))
    done = json.loads(options.out.read_text()) if options.out.exists() else {}
    done.setdefault("host", host())
    done |= {"workers_command": " ".join(words), "trainers_command": " ".join(TRAINERS)}
    workers = done.setdefault("workers", [])
    for seed in options.seeds:
        if seed not in [run["seed"] for run in workers]:
            workers.append(of_workers(words, seed))
            options.out.write_text(json.dumps(done, indent=1) + "\n")
    compare(workers)
    options.out.write_text(json.dumps(done, indent=1) + "\n")
    for run in workers:
        print(
            f"seed {run['seed']}: 475 at {run['undisturbed']['solved_at_env_steps']} env steps, and "
            f"with {len(run['killed']['kills'])} kills at {run['killed']['solved_at_env_steps']}: "
            f"{run['ratio'] and round(run['ratio'], 2)} times as many, {run['holds']}",
            flush=True,
        )
    if options.trainer_kills:
        if len(done.get("trainers", {}).get("kills", [])) < options.trainer_kills:
            done["trainers"] = of_trainers(1, options.trainer_kills)
            options.out.write_text(json.dumps(done, indent=1) + "\n")
        run = done["trainers"]
        print(
            f"trainers killed {len(run['kills'])} times: solved at {run['solved_at_env_steps']} env "
            f"steps, lost at most {run['most_lost_seconds']:.1f} s of learning, {run['holds']}"
        )
    runs = [*workers, *([done["trainers"]] if "trainers" in done else [])]
    return 0 if all(run["holds"] for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
