"""Is `srl plan` right? Runs it has not seen, on this host and on network namespaces; results into planning.json.

    python benchmarks/planning.py [local] [hosts] [paper] [large] [--seconds 30]

Each experiment is calibrated once (a minute, one actor, one group size), then run in other settings: counts, groups,
placement, delay. A run counts if it is predicted within 20 %, and held back by what was predicted. `paper`: the
model fitted to the smallest published point of each series of the paper predicts the larger ones. `large`: Pong up
to 15,360 actors and 32 trainers, by what was measured here, in gpu.json and in wire.json (docs/fifteen-thousand.md). Resumable:
what is in the file is not run again, but predicted anew. `hosts` needs root and iproute2.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium
import msgspec

from srl.api import find_experiment
from srl.tools.bench.report import host
from srl.tools.planning.calibrate import calibrate, one_of_each, plan_of
from srl.tools.planning.cluster import on_cluster, read_cluster, this_host
from srl.tools.planning.command import compare, measured_of
from srl.tools.planning.model import Costs, Crew, Setup, Team, predict

HERE = Path(__file__).parent
WITHIN = 0.2
STEP_SECONDS = 0.0025


class Slow(gymnasium.Wrapper):
    """An env whose steps take their time."""

    def step(self, action: Any) -> Any:
        time.sleep(STEP_SECONDS)
        return self.env.step(action)


SLOW = f"--env.wrappers {__file__}:Slow --algorithm.rollout 16 --algorithm.batch-size 512"
EXPERIMENTS = {
    "cartpole": "--actors.envs 16 --actors.groups 2",
    "pong": "--actors.envs 16 --actors.groups 2 --algorithm.batch-size 2048 --algorithm.epochs 1",
    "slow": f"{SLOW} --actors.envs 8 --actors.groups 2",
}
"""As they are calibrated."""
LOCAL = {
    "CartPole, 2 actors that answer themselves": (
        "cartpole",
        "--inference inline --actors.count 2",
    ),
    "CartPole, 2 actors, 1 policy worker": ("cartpole", "--inference shm --actors.count 2"),
    "CartPole, 4 actors of 4 groups, 2 policy workers, 2 trainers": (
        "cartpole",
        "--inference shm --actors.count 4 --actors.groups 4 --actors.envs 32 --policies.count 2 "
        "--trainers.count 2",
    ),
    "Pong, 2 actors that answer themselves": ("pong", "--inference inline --actors.count 2"),
    "Pong, 1 actor of 1 group, 1 policy worker": (
        "pong",
        "--inference shm --actors.count 1 --actors.groups 1 --actors.envs 16",
    ),
    "slow envs, 4 actors": ("slow", "--inference inline --actors.count 4"),
}
APART = {"trainers": [1], "policies": [2], "actors": [3]}
HOSTS = {
    "CartPole on three hosts": ("cartpole", "--inference shm --actors.count 2", 0.0),
    "slow envs on three hosts, 1 group, 20 ms": (
        "slow",
        "--inference shm --actors.count 2 --actors.groups 1 --actors.envs 4",
        0.02,
    ),
    "slow envs on three hosts, 6 groups, 20 ms": (
        "slow",
        "--inference shm --actors.count 2 --actors.groups 6 --actors.envs 24 --algorithm.batch-size 768",
        0.02,
    ),
}


def experiment_of(kind: str, words: str) -> Any:
    name = "cartpole" if kind == "slow" else kind
    common = "--stop.return None --stop.env-steps 1000000000 --evaluation.episodes 0"
    return find_experiment(name, [*EXPERIMENTS[kind].split(), *words.split(), *common.split()])


def command_of(kind: str, words: str, seconds: float, out: Path) -> list[str]:
    name = "cartpole" if kind == "slow" else kind
    common = f"--stop.return None --stop.env-steps 1000000000 --stop.seconds {seconds}"
    common += f" --evaluation.episodes 0 --out {out}"
    return ["train", name, *EXPERIMENTS[kind].split(), *words.split(), *common.split()]


def judge(name: str, measured: dict, costs: Costs) -> dict:
    """A finished run beside its prediction."""
    kind, words, *delay = {**LOCAL, **HOSTS}[name]
    cluster = this_host()
    if delay:
        words += " --ray.trainers a --ray.policies b --ray.actors c"
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write(namespaces(delay[0]))
            file.flush()
            cluster = read_cluster(Path(file.name))
    experiment = experiment_of(kind, words)
    one = plan_of(one_of_each(experiment))
    prediction = predict(on_cluster(experiment, cluster, one), costs)
    found = {"name": name, "options": words, "measured": measured}
    found |= {"predicted": msgspec.to_builtins(prediction), **compare(prediction, measured)}
    found["holds"] = abs(found["error"]) <= WITHIN and found["same_bottleneck"]
    print(
        f"{name}: {prediction.env_steps_per_second:,.0f} predicted, "
        f"{measured['env_steps_per_second']:,.0f} measured ({found['error']:+.0%}); "
        f"{prediction.bottleneck.partition(':')[0]} / {measured['bottleneck'].partition(':')[0]}",
        flush=True,
    )
    return found


def run_local(words: list[str], log: Path) -> None:
    with log.open("w") as output:
        code = subprocess.call(
            [sys.executable, "-m", "srl.cli", *words], stdout=output, stderr=output
        )
    if code:
        sys.exit(log.read_text()[-3000:])


def of_hosts(todo: list[str], seconds: float, keep: Any) -> None:
    from srl.testing.ray_hosts import RayHosts

    for delay in sorted({HOSTS[name][2] for name in todo}):
        hosts = RayHosts([8, 8, 8], delay_seconds=delay)
        try:
            for name in [name for name in todo if HOSTS[name][2] == delay]:
                kind, words, _ = HOSTS[name]
                with tempfile.TemporaryDirectory() as place:
                    out, log = Path(place) / "run", Path(place) / "log"
                    command = command_of(kind, words, seconds, out)
                    where = hosts.options(APART)
                    code = hosts.start([*command, *where], log).wait(seconds + 180)
                    if code:
                        sys.exit(log.read_text()[-3000:])
                    keep(name, kind, out)
        finally:
            hosts.close()


def namespaces(delay_seconds: float) -> str:
    """The three nodes, each with a mark of its own, on the cores of this machine."""
    nodes = [
        f'[[nodes]]\ncores = 64\nmachine = "here"\nmarks = ["{mark}"]\n' for mark in ("a", "b", "c")
    ]
    head = f"latency_ms = {delay_seconds * 1000}\ngbit = 1000\n"
    return f"{head}[machines]\nhere = {os.cpu_count()}\n" + "\n".join(nodes)


# --- the paper -----------------------------------------------------------------------------------

SCALING = {
    "MuJoCo": (330e3, 650e3, 1.23e6, 2.23e6),
    "Atari": (58e3, 90e3, 178e3, 325e3),
    "SMAC": (175e3, 330e3, 655e3, 1.30e6),
    "gFootball": (550e3, 1.02e6, 2.03e6, 3.86e6),
}
"""Frames a second on 4, 8, 16 and 32 GPUs (figures of the authors' first version)."""
RING = {1: 1.0, 2: 1.9, 4: 3.65, 8: 6.2, 12: 7.4, 16: 8.3}
"""Pong: speed-up of an actor by its groups."""
FLUSH_SECONDS = 0.010
"""A policy worker of theirs waited so long before it answered."""
PONG_STEP_SECONDS = 1 / 830
"""An env step of Pong on one of their cores."""


def paper() -> dict[str, Any]:
    """Series of the paper, from their smallest point."""
    found: dict[str, Any] = {}
    for name, rates in SCALING.items():
        points = []
        for trainers, rate in zip((4, 8, 16, 32), rates, strict=True):
            setup = Setup(
                crews=(Crew(480 * trainers, 0),),
                servers=(),
                trainers=(Team(trainers, 0),),
                machines=(1e6,),
                machine_of=(0,),
                groups=1,
                envs=1,
                batch=10**9,
            )
            share = 1e6 * 4 / rates[0] / (1 + 0.1 * 1.2)  # what 4 of them do together, of one alone
            costs = Costs(env=1e-3, inference=((1, 0.0),), update=share, update_cpu=share)
            predicted = predict(setup, costs).env_steps_per_second
            points.append({"trainers": trainers, "published": rate, "predicted": round(predicted)})
        scale = rates[0] / points[0]["predicted"]  # fitted to the smallest
        for point in points:
            point["predicted"] = round(point["predicted"] * scale)
            point["error"] = round(point["predicted"] / point["published"] - 1, 3)
        found[f"{name}, by trainers"] = points
    ring = []
    for groups, published in RING.items():
        setup = Setup(
            crews=(Crew(1, 0, (0,)),),
            servers=(Team(1, 0),),
            trainers=(Team(1, 0),),
            machines=(1e6,),
            machine_of=(0,),
            groups=groups,
            envs=1,
            batch=10**9,
        )
        costs = Costs(
            env=PONG_STEP_SECONDS * 1e6,
            inference=((1, 0.0),),
            update=0.01,
            update_cpu=0.01,
            answer_seconds=FLUSH_SECONDS - PONG_STEP_SECONDS,
        )
        ring.append((groups, published, predict(setup, costs).env_steps_per_second))
    found["Pong, by groups of an actor"] = [
        {
            "groups": groups,
            "published": published,
            "predicted": round(rate / ring[0][2], 2),
            "error": round(rate / ring[0][2] / published - 1, 3),
        }
        for groups, published, rate in ring
    ]
    for name, points in found.items():
        errors = [abs(point["error"]) for point in points[1:]]
        print(f"{name}: {statistics.mean(errors):.1%} on average, {max(errors):.1%} at most")
    return found


# --- what nobody here can rent -------------------------------------------------------------------

NODE_CORES, NODE_GPUS, GPU_CORES = 256, 8, 128
ACTORS = 480
"""A trainer, as in the paper."""
EPOCHS = 4
LARGE = {
    "actors answer themselves, 25 Gbit/s": (0, 25),
    "actors answer themselves, 100 Gbit/s": (0, 100),
    "a GPU a trainer answers, 1 policy worker each, 100 Gbit/s": (1, 100),
    "a GPU a trainer answers, 8 policy workers each, 100 Gbit/s": (8, 100),
}
"""Policy workers a trainer, on GPUs of their own; and what a host sends and receives."""


def large(pong: Costs) -> dict[str, Any]:
    """Pong on nodes of 256 cores, and nodes of 8 GPUs for the trainers: 480 actors a trainer."""
    from srl.tools.bench.plot import write_lines

    gpu = json.loads((HERE / "gpu.json").read_text())
    update = 1e6 * EPOCHS / gpu["fed"]["compiled"]["ours"]
    served = {64: gpu["policy"]["batch 64, 1 worker"], 1024: gpu["policy"]["batch 1024, 1 worker"]}
    wire = json.loads((HERE / "wire.json").read_text())["atari"]
    sent = wire["stream 1"]["us_a_block"] / (wire["block_bytes"] / pong.block_bytes)
    costs = msgspec.structs.replace(
        pong,
        update=update,
        update_cpu=0.2 * update,
        far_send=sent,
        far_receive=sent,
        # GPUs exchange gradients while they compute them, and smaller minibatches were not measured there
        learn=(),
        exchange=0.0,
        exchange_seconds=0.0,
    )
    answered = tuple((rows, 1e6 / found["ours"]) for rows, found in served.items())
    by_gpu = msgspec.structs.replace(costs, inference=answered, inference_is_cpu=False, serve=0.0)
    found: dict[str, Any] = {}
    for name, (policies, gbit) in LARGE.items():
        points = []
        for trainers in (1, 2, 4, 8, 16, 32):
            setup = large_setup(trainers, policies, gbit)
            prediction = predict(setup, by_gpu if policies else costs)
            points.append(
                {
                    "trainers": trainers,
                    "actors": ACTORS * trainers,
                    "env_steps_per_second": round(prediction.env_steps_per_second),
                    "bottleneck": prediction.bottleneck.partition(":")[0],
                    "limits": {k: round(v) for k, v in prediction.limits.items()},
                    "busiest_host_gbit": round(max(prediction.network.values()) * 8e-9, 2),
                    "staleness": round(prediction.staleness, 2),
                }
            )
            print(f"{name}: {points[-1]}")
        found[name] = points
    lines = {
        name: [(p["actors"], p["env_steps_per_second"]) for p in points]
        for name, points in found.items()
    }
    title = "Pong, 480 actors a trainer, predicted"
    write_lines(
        HERE.parent / "docs" / "fifteen-thousand.svg",
        title,
        lines,
        x="actor cores",
        y="env steps/s",
    )
    return found


def large_setup(trainers: int, policies: int, gbit: float) -> Setup:
    """Hosts: the trainers', those of as many policy workers with GPUs of their own, the actors'."""
    having = -(-trainers // NODE_GPUS)
    teams = [Team(min(NODE_GPUS, trainers - NODE_GPUS * n), n) for n in range(having)]
    servers = tuple(Team(policies * team.count, having + team.host) for team in teams)
    servers = servers if policies else ()
    learning = having + len(servers)
    acting = -(-ACTORS * trainers // NODE_CORES)
    crews = [
        Crew(
            min(NODE_CORES, ACTORS * trainers - NODE_CORES * n),
            learning + n,
            tuple(range(len(servers))),
            is_far=bool(policies),
            sends_far=1.0,
        )
        for n in range(acting)
    ]
    batch = ACTORS * trainers * 16 * 128
    return Setup(
        crews=tuple(crews),
        servers=servers,
        trainers=tuple(teams),
        machines=(*[float(GPU_CORES)] * learning, *[float(NODE_CORES)] * acting),
        machine_of=tuple(range(learning + acting)),
        groups=2,
        envs=8,
        batch=batch,
        rollout=128,
        minibatches=EPOCHS * 16,
        latency_seconds=50e-6,
        bandwidth=gbit * 1e9 / 8,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", default=["local", "hosts", "paper", "large"])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--out", type=Path, default=HERE / "planning.json")
    options = parser.parse_args()
    done = json.loads(options.out.read_text()) if options.out.exists() else {}
    done.setdefault("host", host())
    runs, kept = done.setdefault("runs", []), done.setdefault("costs", {})

    def write() -> None:
        options.out.write_text(json.dumps(done, indent=1) + "\n")

    def costs(kind: str) -> Costs:
        if kind not in kept:
            found, measured = calibrate(experiment_of(kind, ""), 60.0, print)
            kept[kind] = {"costs": msgspec.to_builtins(found), "measured": measured}
            write()
        return msgspec.convert(kept[kind]["costs"], Costs)

    def keep(name: str, kind: str, folder: Path) -> None:
        runs.append(judge(name, measured_of(folder), costs(kind)))
        write()

    runs[:] = [
        judge(run["name"], run["measured"], costs({**LOCAL, **HOSTS}[run["name"]][0]))
        for run in runs
    ]
    write()
    names = {run["name"] for run in runs}
    if "local" in options.parts:
        for name, (kind, words) in LOCAL.items():
            if name in names:
                continue
            costs(kind)
            with tempfile.TemporaryDirectory() as place:
                out = Path(place) / "run"
                run_local(command_of(kind, words, options.seconds, out), Path(place) / "log")
                keep(name, kind, out)
    if "hosts" in options.parts and (todo := [name for name in HOSTS if name not in names]):
        for kind in {HOSTS[name][0] for name in todo}:
            costs(kind)
        of_hosts(todo, options.seconds, keep)
    if "paper" in options.parts:
        done["paper"] = paper()
        write()
    if "large" in options.parts:
        done["large"] = large(costs("pong"))
        write()
    return 0 if all(run["holds"] for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
