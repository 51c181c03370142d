"""What a host with a GPU reaches, each beside its own ceiling, in one call; results into gpu.json.

    python benchmarks/gpu.py [trainer] [fed] [policy] [toy] [pong] [--seconds 15]

- pong: PPO through a policy worker, between two measurements of what one process of AtariVectorEnv a
  core steps with random actions.
- trainer: batches on the GPU; fed: through the sample stream, 4 epochs; each beside a bare loop of
  forward, backward and Adam.
- policy: a policy worker that answers processes which only ask, beside a bare CUDA graph.
- toy: a vector env that costs nearly nothing, an MLP, actors on all cores.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

HERE = Path(__file__).parent
CORES = os.cpu_count() or 1
MINIBATCH = 8192


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("sections", nargs="*", default=list(SECTIONS))
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--results", type=Path, default=HERE / "gpu.json")
    parser.add_argument("--pong", default="", help="more options of the run of Pong")
    options = parser.parse_args()
    import torch

    results: dict[str, Any] = {
        "host": {
            "cores": CORES,
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
            "torch": torch.__version__,
            "python": sys.version.split()[0],
        },
        "seconds": options.seconds,
    }
    for name in options.sections:
        start = time.monotonic()
        try:
            results[name] = SECTIONS[name](options)
        except Exception as error:  # noqa: BLE001 - the other sections are still worth their time
            import traceback

            traceback.print_exc()
            results[name] = {"failed": f"{type(error).__name__}: {error}"}
        print(f"{name} ({time.monotonic() - start:.0f} s): {json.dumps(results[name])}", flush=True)
        options.results.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))


def beside(pairs: list[tuple[float, float]], bare: str = "bare") -> dict[str, float]:
    """Medians of rates of a bare loop and of ours, measured in turn."""
    return {
        bare: round(float(np.median([b for b, _ in pairs]))),
        "ours": round(float(np.median([o for _, o in pairs]))),
        "share": round(float(np.median([o / b for b, o in pairs])), 3),
    }


# --- the learner -----------------------------------------------------------------------------


def pong_plan(**options: Any) -> Any:
    """The plan of a run of Pong on the GPU, as the launcher would make it."""
    from srl.api import find_experiment
    from srl.launch.graph.plan import make_plan

    words = {
        "trainers.device": "cuda",
        "policies.device": "cuda",
        "inference": "shm",
        "precision": "bf16",
        "algorithm.rollout": 32,
        "algorithm.minibatch-size": MINIBATCH,
        "algorithm.epochs": 4,
        **options,
    }
    arguments = [word for name, value in words.items() for word in (f"--{name}", str(value))]
    return make_plan(find_experiment("pong", arguments))


def learner_and_batch(rows: int, rollout: int, compile_: bool) -> tuple[Any, dict[str, Any]]:
    """PPO for Pong on the GPU, and a batch of `rows` rows whose pictures are there too."""
    import torch

    from srl.algorithms.ppo import PPOConfig
    from srl.core.collective import Alone
    from srl.core.compute import Compute
    from srl.core.env import AgentSpec, Discrete, Observation
    from srl.testing.batches import record_batches

    agent = AgentSpec((Observation("obs", (84, 84), "uint8", stack=4),), Discrete(6))
    config = PPOConfig(
        rollout=rollout,
        batch_size=rows,
        minibatch_size=MINIBATCH,
        epochs=4,
        hidden=(),
        learning_rate=2.5e-4,
        clip=0.1,
        value_clip=0.1,
    )
    learner = config.make_learner(
        agent, seed=0, compute=Compute("cuda", "bf16", compile_), ranks=Alone()
    )
    lanes = min(256, rows // rollout)
    batch = record_batches(learner.policy, agent, rollout=rollout, lanes=lanes, end=0.001)[0]
    times = rows // rollout // lanes
    wide = {
        name: np.concatenate([x] * times, axis=0 if name in ("lane", "episode", "step") else 1)
        for name, x in batch.items()
    }
    on_gpu: dict[str, Any] = dict(wide)
    on_gpu["obs"] = torch.from_numpy(wide["obs"]).cuda()
    return learner, on_gpu


def rate(step: Callable[[], int], seconds: float, warm: int) -> float:
    """What `step` counts, a second, after `warm` calls."""
    import torch

    for _ in range(warm):
        step()
    torch.cuda.synchronize()
    start, count = time.monotonic(), 0
    while time.monotonic() - start < seconds:
        count += step()
    torch.cuda.synchronize()
    return count / (time.monotonic() - start)


def bare_loop(compile_: bool, copies: bool) -> Callable[[], int]:
    """Forward, backward, clip and fused Adam over resident stacks; with `copies`, brought first."""
    import torch
    from torch.nn import functional

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            nn = torch.nn
            self.body = nn.Sequential(
                *(nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU()),
                *(nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU()),
            )
            self.logits, self.value = nn.Linear(512, 6), nn.Linear(512, 1)

        def forward(self, x: Any) -> Any:
            features = self.body(x.to(torch.bfloat16) / 255)
            return self.logits(features).float(), self.value(features).float().squeeze(-1)

    network = Net().cuda().to(memory_format=torch.channels_last)
    forward = torch.compile(network, dynamic=False) if compile_ else network
    adam = torch.optim.Adam(network.parameters(), lr=2.5e-4, fused=True)
    obs = torch.randint(0, 256, (MINIBATCH, 4, 84, 84), dtype=torch.uint8, device="cuda")
    # every sample is learned from four times and brought once, one picture of its stack
    host = torch.zeros(MINIBATCH, 84, 84, dtype=torch.uint8, pin_memory=True)
    there = torch.empty_like(host, device="cuda")
    action = torch.randint(0, 6, (MINIBATCH,), device="cuda")
    numbers = torch.randn(3, MINIBATCH, device="cuda")
    calls = 0

    def step() -> int:
        nonlocal calls
        if copies and calls % 4 == 0:
            there.copy_(host, non_blocking=True)
        calls += 1
        with torch.autocast("cuda", torch.bfloat16):
            logits, value = forward(obs)
        log_probs = functional.log_softmax(logits, -1)
        log_prob = log_probs.gather(-1, action[:, None]).squeeze(-1)
        ratio = (log_prob - log_prob.detach()).exp()
        objective = torch.minimum(ratio * numbers[0], ratio.clamp(0.9, 1.1) * numbers[0])
        entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
        loss = -objective.mean() + 0.5 * (value - numbers[1]).square().mean() - 0.01 * entropy
        adam.zero_grad(set_to_none=False)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 0.5)
        adam.step()
        return MINIBATCH

    return step


def trainer(options: Any) -> dict[str, Any]:
    """Samples/s of the learner alone, on a batch that is on the GPU, beside a bare loop."""
    results: dict[str, Any] = {"minibatch": MINIBATCH, "precision": "bf16", "epochs": 4}
    for compile_ in (False, True):
        learner, batch = learner_and_batch(65536, 64, compile_)

        def learn(learner: Any = learner, batch: Any = batch) -> int:
            return int(learner.learn(batch, 0.0)["train_samples"])

        bare = bare_loop(compile_, copies=False)
        rates = [
            (rate(bare, options.seconds / 3, 10), rate(learn, options.seconds / 3, 2))
            for _ in range(3)
        ]
        name = "compiled" if compile_ else "eager"
        results[name] = {
            **beside(rates),
        }
        print(name, results[name], flush=True)
    return results


# --- streams without envs: processes that only send, or only ask ----------------------------------


class Host:
    """The arenas and sockets of a plan, and processes that hold an actor's ends of its streams."""

    def __init__(self, plan: Any) -> None:
        import tempfile

        from srl.core.collective import Alone
        from srl.launch.graph.connect import ProcessConnector
        from srl.launch.graph.hosts import arenas
        from srl.transport.arena import Arena

        self.plan = plan
        self.folder = tempfile.mkdtemp(prefix="srl-")
        self.arenas = {n: Arena.create("bench", size) for n, size in arenas(plan).items()}
        buffers = {name: arena.buffer for name, arena in self.arenas.items()}
        self.connector = ProcessConnector(plan, buffers, self.folder, 1, Alone())
        self.processes: list[subprocess.Popen[bytes]] = []
        self.is_registered = False

    def build(self, name: str) -> Any:
        """A worker in this process."""
        from srl.launch.graph.connect import build_worker

        self.is_registered = True
        return build_worker(self.plan, name, self.connector)

    def start(self, what: str, count: int) -> list[subprocess.Popen[bytes]]:
        """Start `count` such processes."""
        order = {
            "plan": msgspec.json.encode(self.plan).decode(),
            "folder": self.folder,
            "arenas": {n: (a.fd, len(a.buffer)) for n, a in self.arenas.items()},
        }
        for index in range(count):
            process = subprocess.Popen(
                [sys.executable, __file__, f"--as-{what}", str(index)],
                stdin=subprocess.PIPE,
                pass_fds=[a.fd for a in self.arenas.values() if a.fd is not None],
            )
            assert process.stdin is not None
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()  # they end when it closes
            self.processes.append(process)
        return self.processes[-count:]

    def close(self) -> None:
        """End them."""
        import shutil

        from srl.learning.gpu import unregister

        for process in self.processes:
            process.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.is_registered:
            unregister(self.arenas["samples/main"].buffer)


def one_end(what: str, index: int) -> None:
    """A process of `Host`: sends blocks as fast as it may, asks for actions, or answers them."""
    import zmq

    from srl.core.collective import Alone
    from srl.core.streams import Grant
    from srl.launch.graph.connect import ProcessConnector
    from srl.launch.graph.plan import Plan
    from srl.transport.arena import Arena
    from srl.transport.blocks import BlockArena

    order = json.loads(sys.stdin.readline())
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    plan = msgspec.json.decode(order["plan"], type=Plan)
    buffers = {n: Arena.attach(fd, size).buffer for n, (fd, size) in order["arenas"].items()}
    connector = ProcessConnector(plan, buffers, order["folder"], 1, Alone())
    route, poller = plan.routes[0], zmq.Poller()
    if what == "sender":
        producer = connector.producer(route, index)
        for socket in producer.pollables():
            poller.register(socket, zmq.POLLIN)
        while True:
            producer.poll()
            grant = producer.acquire()
            if grant is None:
                poller.poll(200)
                continue
            grant.block["valid"][:] = True
            grant.block["acting"][:] = True
            grant.block["version"][:] = grant.min_version
            producer.send(grant)
    if what == "policy":
        answer(plan, index, connector, Path(order["folder"]))
    client = connector.client(route, index)
    shape = plan.experiment["actors"]["count"], route.slots
    blocks = BlockArena(buffers[f"samples/{route.policy}"], route.layout(), *shape)
    for socket in client.pollables():
        poller.register(socket, zmq.POLLIN)
    for group in range(plan.experiment["actors"]["groups"]):
        block = blocks.block(index, group)
        block["step"][:] = 100
        client.post(group, Grant(group, block, 0), 0)
    while True:
        answered = client.poll()
        for group in answered:
            client.post(group, Grant(group, blocks.block(index, group), 0), 0)
        if not answered:
            poller.poll(200)


def answer(plan: Any, index: int, connector: Any, folder: Path) -> None:
    """A policy worker, which counts its requests and batches in a file."""
    import zmq

    from srl.launch.graph.connect import build_worker

    counts = np.memmap(folder / f"counts-{index}", np.int64, "r+", shape=(2,))
    worker: Any = build_worker(plan, f"policy-{index}", connector)
    worker.open()
    poller = zmq.Poller()
    for socket in worker.pollables():
        poller.register(socket, zmq.POLLIN)
    while True:
        if not worker.step():
            poller.poll(200)
        counters = worker.telemetry.counters
        counts[:] = counters["requests"], counters["batches"]


def fed(options: Any) -> dict[str, Any]:
    """Samples/s of a trainer fed through the sample stream, beside the bare loop with copies."""
    results: dict[str, Any] = {"epochs": 4, "minibatch": MINIBATCH}
    for compile_ in (False, True):
        plan = pong_plan(
            **{"actors.count": 4, "actors.envs": 128, "actors.groups": 2, "max-staleness": 1},
            **{"algorithm.batch-size": 65536, "compile": compile_},
        )
        host = Host(plan)
        try:
            worker = host.build("trainer-0")
            worker.open()
            host.start("sender", 4)

            def learn(worker: Any = worker) -> int:
                before = worker._train_samples
                while not worker.step():
                    time.sleep(0.0005)
                return worker._train_samples - before

            bare = bare_loop(compile_, copies=True)
            rates = [
                (rate(bare, options.seconds / 3, 10), rate(learn, options.seconds / 3, 3))
                for _ in range(3)
            ]
            results["compiled" if compile_ else "eager"] = {
                **beside(rates, "bare_with_copies"),
                "trainer_seconds": {k: round(v, 2) for k, v in worker.telemetry.seconds.items()},
            }
            print(results, flush=True)
            worker.close()
        finally:
            host.close()
    return results


def bare_graph(batch: int) -> Callable[[], int]:
    """Copy in, forward, sample, copy out: a CUDA graph over fixed memory."""
    import torch

    from srl.algorithms.ppo import PPOConfig
    from srl.core.compute import Compute
    from srl.core.env import AgentSpec, Discrete, Observation

    agent = AgentSpec((Observation("obs", (84, 84), "uint8", stack=4),), Discrete(6))
    config = PPOConfig(hidden=())
    policy = config.make_policy(agent, seed=0, compute=Compute("cuda", "bf16"))
    host = torch.zeros(batch, 4, 84, 84, dtype=torch.uint8, pin_memory=True)
    answer = torch.zeros(3, batch, pin_memory=True)
    inputs = {
        "obs": torch.zeros_like(host, device="cuda"),
        "first": torch.zeros(batch, dtype=torch.bool, device="cuda"),
        "noise": torch.zeros(batch, 6, device="cuda"),
    }

    def act() -> Any:
        inputs["obs"].copy_(host, non_blocking=True)
        inputs["noise"].uniform_()
        outputs = policy._sample(inputs)
        answer.copy_(torch.stack([x.float() for x in outputs.values()]), non_blocking=True)

    with torch.inference_mode():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                act()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            act()

    def step(kept: Any = act) -> int:  # what the graph reads and writes must stay where it is
        graph.replay()
        torch.cuda.synchronize()
        return batch

    return step


LANES = 64
"""Of a request."""
SERVED = ((64, 3, 1, 1), (64, 4, 1, 2), (1024, 8, 4, 1), (1024, 8, 8, 2))
"""Batch of the bare graph, clients, groups of each, and policy workers: two batches' worth of lanes."""


def policy(options: Any) -> dict[str, Any]:
    """Answers/s of policy workers that processes only ask, beside a bare CUDA graph."""
    results: dict[str, Any] = {"precision": "bf16", "lanes_of_a_request": LANES}
    for batch, clients, groups, workers in SERVED:
        plan = pong_plan(
            **{"actors.count": clients, "actors.envs": LANES * groups, "actors.groups": groups},
            **{"algorithm.batch-size": 32 * LANES * groups * clients, "policies.count": workers},
        )
        found = answers_beside_bare(plan, batch, workers, options.seconds / 5)
        results[f"batch {batch}, {workers} worker{'s' * (workers > 1)}"] = found
        print(results, flush=True)
    return results


def answers_beside_bare(plan: Any, batch: int, workers: int, seconds: float) -> dict[str, float]:
    """What `policy` measures, with this plan."""
    from srl.launch.graph.connect import make_policy

    host, bare = Host(plan), bare_graph(batch)
    try:
        route = plan.routes[0]
        weights = make_policy(plan, route, seed=0, compute=plan.compute("cpu")).weights()
        host.connector.publisher(route).publish(weights, 0)
        paths = [Path(host.folder) / f"counts-{index}" for index in range(workers)]
        counts = [np.memmap(path, np.int64, "w+", shape=(2,)) for path in paths]
        answering = host.start("policy", workers)
        host.start("client", plan.experiment["actors"]["count"])
        deadline = time.monotonic() + 120
        while not all(count[1] > 50 for count in counts):  # all are ready, and have their graphs
            if time.monotonic() > deadline or any(p.poll() is not None for p in host.processes):
                raise RuntimeError(f"a process of the bench does not answer: {counts}")
            time.sleep(0.1)
        time.sleep(2)
        pairs, total = [], np.zeros(2)
        for _ in range(3):
            signal_all(answering, signal.SIGSTOP)  # the GPU is the bare graph's alone
            alone = rate(bare, seconds, 10)
            signal_all(answering, signal.SIGCONT)
            time.sleep(0.5)
            before, start = np.sum(counts, axis=0), time.monotonic()
            time.sleep(seconds)
            done, took = np.sum(counts, axis=0) - before, time.monotonic() - start
            pairs.append((alone, LANES * float(done[0]) / took))
            total += done
        return {**beside(pairs), "mean_batch": round(LANES * total[0] / total[1])}
    finally:
        host.close()


def signal_all(processes: list[subprocess.Popen[bytes]], number: signal.Signals) -> None:
    """Send a signal to every one of them."""
    for process in processes:
        process.send_signal(number)


# --- whole runs ----------------------------------------------------------------------------------


def raw(options: Any) -> dict[str, Any]:
    """Env steps/s of one process of AtariVectorEnv a core with random actions."""
    results = {}
    for envs in (16, 32):
        counted = [
            subprocess.Popen(
                [sys.executable, __file__, "--as-player", str(envs), str(options.seconds)],
                stdout=subprocess.PIPE,
            )
            for _ in range(CORES)
        ]
        rates = [float(process.communicate()[0]) for process in counted]
        results[f"{CORES} x {envs} envs"] = round(sum(rates))
    return {"env_steps_per_second": max(results.values()), **results}


def player(envs: int, seconds: float) -> None:
    """A process of `raw`."""
    from ale_py.vector_env import AtariVectorEnv

    env = AtariVectorEnv("pong", envs, num_threads=1)
    env.reset()
    rng = np.random.default_rng(os.getpid())
    actions = rng.integers(6, size=(1000, envs))
    for t in range(50):
        env.step(actions[t])
    time.sleep(max(0.0, 20 - time.monotonic() % 20))  # all of them begin together
    start, count = time.monotonic(), 0
    while time.monotonic() - start < seconds:
        env.step(actions[count % 1000])
        count += 1
    print(count * envs / (time.monotonic() - start))


def run(words: str, seconds: float, skip: float) -> dict[str, Any]:
    """A run by the command line; env steps/s after the first `skip` seconds of its metrics."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "srl.cli", "train", *words.split(), "--out", str(out)]
        command += ["--stop.seconds", str(seconds + skip), "--evaluation.episodes", "0"]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{done.stdout[-1500:]}\n{done.stderr[-1500:]}")
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        summary = json.loads((out / "summary.json").read_text())
    late = [r for r in rows if r["time"]["seconds"] >= rows[-1]["time"]["seconds"] - seconds * 0.8]
    steps = late[-1]["env_steps"] - late[0]["env_steps"]
    return {
        "env_steps_per_second": round(
            steps / (late[-1]["time"]["seconds"] - late[0]["time"]["seconds"])
        ),
        "command": words,
        "window": round(late[-1]["time"]["seconds"] - late[0]["time"]["seconds"], 1),
        "bottleneck": summary["bottleneck"],
        "blocks_dropped": summary["blocks_dropped"],
    }


def pong(options: Any) -> dict[str, Any]:
    """PPO on Pong through a policy worker, all cores stepping envs."""
    words = (
        f"pong --actors.count {CORES} --actors.envs 32 --actors.groups 2 --inference shm "
        "--trainers.device cuda --policies.device cuda --precision bf16 "
        f"--algorithm.rollout 32 --algorithm.batch-size {CORES * 512} "
        "--algorithm.minibatch-size 2048 --algorithm.learning-rate 5e-4 "
        f"--max-staleness 2 {options.pong}"
    )
    before = raw(options)["env_steps_per_second"]
    found = run(words, 3 * options.seconds, 30)
    after = raw(options)["env_steps_per_second"]  # what else runs on a host changes by the minute
    share = 2 * found["env_steps_per_second"] / (before + after)
    return {**found, "raw_before": before, "raw_after": after, "share_of_raw": round(share, 3)}


def toy(options: Any) -> dict[str, Any]:
    """A vector env that costs nearly nothing: what the data path itself can do."""
    actors = CORES - 2
    words = (
        f"toy/target --actors.count {actors} --actors.envs 2048 --actors.groups 2 "
        "--trainers.device cuda --algorithm.rollout 32 --algorithm.epochs 1 "
        f"--algorithm.batch-size {actors * 2048 * 32} --algorithm.minibatch-size 131072 "
        "--algorithm.hidden 64 64 --stop.env-steps 100000000000"
    )
    return run(words, 2 * options.seconds, 10)


SECTIONS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "trainer": trainer,
    "fed": fed,
    "policy": policy,
    "toy": toy,
    "pong": pong,
}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--as-player"]:
        player(int(sys.argv[2]), float(sys.argv[3]))
    elif sys.argv[1:2] in (["--as-sender"], ["--as-client"], ["--as-policy"]):
        one_end(sys.argv[1].removeprefix("--as-"), int(sys.argv[2]))
    else:
        main()
