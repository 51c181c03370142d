"""What an experiment costs on this machine: a minute or more, most of it short runs of the real thing.

First every part alone (`srl bench cost`), then one actor and one trainer with inference inside the actor, by a
policy worker, and by one over the network with encryption: what each process spends more than the parts alone
is what its streams cost. With two trainers: what they spend on each other. Last what a message takes.
"""

import contextlib
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from srl.core.errors import ConfigError
from srl.core.experiment import Experiment
from srl.core.spec import Spec
from srl.launch.graph.config import encode_experiment
from srl.launch.graph.opening import find_opponents
from srl.launch.graph.plan import Plan, make_plan
from srl.tools.bench.cost import measure_cost, refuse_replay
from srl.tools.bench.report import host, write_json
from srl.tools.bench.window import Window, run_window
from srl.tools.planning.cluster import on_cluster, this_host
from srl.tools.planning.echo import echo_seconds
from srl.tools.planning.model import Costs, Setup, predict
from srl.tools.tune import cache_folder

_ALONE, _WARM_UP, _WINDOW = 0.32, 0.03, 0.10
"""Shares of the time: the parts alone, and of each run."""
_START, _START_RUN = 7.0, 6.0
"""Seconds that pass beside it, about, while processes start and end: in all, and of each run."""
_BUSY_CORES = 0.2
"""Of other processes: more, and what is measured beside them is not what it costs."""
_HALVINGS = 20
"""Of the range a time is searched in."""
_FACTS = ("env", "algorithm", "actors", "precision", "compile", "acting", "policies", "trainers")
"""What costs depend on, of an experiment."""
_KIND_OF_COSTS = 2
"""What they mean; those of another kind are measured anew."""
Say = Callable[[str], None]


def calibrate(
    experiment: Experiment[Any], seconds: float, say: Say
) -> tuple[Costs, dict[str, Any]]:
    """Costs, and what was measured for them."""
    refuse_replay(experiment)
    one = one_of_each(experiment)
    say(
        f"calibrating for about {expected_seconds(experiment, seconds):.0f} s, longer where envs are "
        "slow to start or networks are compiled: each part alone"
    )
    alone = measure_cost(one, experiment.name, seconds * _ALONE)
    windows: dict[str, Window] = {}
    runs = _runs(experiment)
    for name, changed in runs.items():
        say(
            f"calibrating: a run, inference {changed.inference}, samples {changed.samples}"
            + (", two trainers" if name == "pair" else "")
        )
        windows[name] = run_window(changed, warm_up=_WARM_UP * seconds, window=_WINDOW * seconds)
    if words := others_in(windows):
        say(words)
    echoes = {name: echo_seconds(is_far=name == "far") for name in ("near", "far")}
    plan = plan_of(one)
    costs = costs_of(one, plan, alone, windows, echoes)
    if "pair" in windows:
        costs = with_exchange(costs, on_cluster(runs["pair"], this_host(), plan), windows["pair"])
    shown = {name: msgspec.to_builtins(window) for name, window in windows.items()}
    return costs, {"alone": alone, "windows": shown, "echoes": echoes, "host": host()}


def others_in(windows: Mapping[str, Window]) -> str | None:
    """That the host was not quiet, in words."""
    busy = max(window.elsewhere or 0.0 for window in windows.values())
    if busy <= _BUSY_CORES:
        return None
    return (
        f"note: other processes of this host kept up to {busy:.1f} cores busy meanwhile, so these costs are not what "
        "things cost: measure them anew, by --again, when it is quiet"
    )


def expected_seconds(experiment: Experiment[Any], seconds: float) -> float:
    """How long it takes to measure for so many seconds."""
    runs = len(_runs(experiment))
    measuring = _ALONE + runs * (_WARM_UP + _WINDOW)
    return seconds * measuring + _START + runs * _START_RUN


def costs_of(
    experiment: Experiment[Any],
    plan: Plan,
    alone: Mapping[str, Any],
    windows: Mapping[str, Window],
    echoes: Mapping[str, float],
) -> Costs:
    """Costs of the parts, as they are in a run."""
    route, parts = plan.learning[0], alone["parts"]
    envs, agents = route.envs, alone["policies"][route.policy]["lanes_an_env"]
    near = windows["near"]
    on_gpu = experiment.policies.device != "cpu"
    key = "wall_us" if on_gpu else "cpu_us"
    table = {e["batch"]: e[key] for e in alone["policies"][route.policy]["inference"]}
    own = parts["env"]["cpu_us"] + parts["send"]["cpu_us"] + parts["loop"]["cpu_us"]
    grown = 1.0  # what a part costs more beside others than alone
    trainer = near
    if "inside" in windows:
        inside = trainer = windows["inside"]
        answers = agents * table[min(table, key=lambda n: abs(n - envs * agents))]
        grown = min(2.0, max(0.8, _us(inside, "actor") / (own + answers)))
    update_cpu = _us(trainer, "trainer")
    updates = alone["policies"][route.policy]["update"]
    is_cpu = experiment.trainers.device == "cpu"
    update = parts["update"]["wall_us"] + parts["stage"]["wall_us"] + parts["publish"]["wall_us"]
    env_idle = max(0.0, parts["env"]["wall_us"] - parts["env"]["cpu_us"])
    costs = Costs(
        env=grown * parts["env"]["cpu_us"],
        env_idle=env_idle if env_idle > 0.1 * parts["env"]["wall_us"] else 0.0,
        call=grown * envs * (parts["send"]["cpu_us"] + parts["loop"]["cpu_us"]),
        inference=tuple((size, grown * us) for size, us in sorted(table.items())),
        inference_is_cpu=not on_gpu,
        update=update_cpu if is_cpu else update,
        update_cpu=update_cpu,
        learn=tuple((e["minibatch"], e["wall_us"]) for e in updates),
        version=sum(near.cpu.get(name, 0.0) for name in ("controller", "node-agent"))
        * near.seconds
        / max(1, near.versions)
        * 1e6,
        agents=agents,
        envs=envs,
        block_bytes=route.layout().nbytes / (route.rollout * envs),
        request_bytes=_shown_bytes(plan),
        weights_bytes=_bytes(route.weights_spec()),
        answer_seconds=echoes["near"],
        far_answer_seconds=echoes["far"],
    )
    stepping = costs.env + costs.call / envs
    answering = agents * costs.inference_us(envs * agents) if costs.inference_is_cpu else 0.0
    ask = max(0.0, _us(near, "actor") - stepping) * envs
    serve = max(0.0, _us(near, "policy") - answering) * envs
    costs = msgspec.structs.replace(costs, ask=ask, serve=serve, far_ask=ask, far_serve=serve)
    if "far" not in windows:
        return costs
    far = windows["far"]
    receive = max(0.0, _us(far, "trainer") - _us(near, "trainer"))
    return msgspec.structs.replace(
        costs,
        far_ask=max(ask, (_us(far, "actor") - stepping - receive) * envs),
        far_serve=max(serve, (_us(far, "policy") - answering) * envs),
        far_send=receive,  # encrypting is what decrypting is
        far_receive=receive,
    )


def with_exchange(costs: Costs, setup: Setup, pair: Window) -> Costs:
    """Costs with what two trainers spend on each other an update.

    Of cores: what both take more than the update does. Of time: as much as makes the model's two trainers as fast
    as these were. Sums of gradients alone would tell too little: they are a chain of wake-ups, each of which waits
    for a core where others work.

    Args:
        costs: without it.
        setup: of the run.
        pair: what was seen of it.
    """
    learned = costs.update_cpu * costs.shared_update(setup.minibatch, setup.ranks)
    updates = setup.ranks * setup.minibatches / setup.batch  # of all of them, an env step
    costs = msgspec.structs.replace(
        costs, exchange=max(0.0, _us(pair, "trainer") - learned) / updates
    )
    rate = pair.env_steps_per_second / _learning_share(pair)

    def exchanging(seconds: float) -> Costs:
        return msgspec.structs.replace(costs, exchange_seconds=seconds)

    shortest, longest = 0.0, setup.batch / setup.minibatches / rate
    for _ in range(_HALVINGS):
        middle = (shortest + longest) / 2
        if predict(setup, exchanging(middle)).limits["learning"] > rate:
            shortest = middle
        else:
            longest = middle
    return exchanging(longest)


def plan_of(experiment: Experiment[Any]) -> Plan:
    """The plan, with opponents where there are frozen ones."""
    frozen = find_opponents(experiment)
    return make_plan(experiment, {p: [f.opponent for f in found] for p, found in frozen.items()})


def kept_at(experiment: Experiment[Any]) -> Path:
    """Where the costs of this experiment on this host are kept."""
    about, facts = host(), facts_of(experiment)
    facts["host"] = [about["cpu"], about["cores"], about["gpus"]]
    facts["costs"] = _KIND_OF_COSTS
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", experiment.name)[-60:]
    return cache_folder() / "costs" / f"{readable}-{digest}.json"


def facts_of(experiment: Experiment[Any]) -> dict[str, Any]:
    """What costs depend on, beside the host."""
    data = encode_experiment(one_of_each(experiment))
    return {name: data[name] for name in _FACTS}


def write_costs(
    path: Path, costs: Costs, measured: Mapping[str, Any], experiment: Experiment[Any]
) -> None:
    """Keep costs, of what they are, and how they were found."""
    about = {"costs": msgspec.to_builtins(costs), "measured": measured}
    write_json(path, {"of": facts_of(experiment), **about})


def differing(path: Path, experiment: Experiment[Any]) -> list[str]:
    """By what the experiment differs from the one whose costs are in a file; of older files nothing is known."""
    kept = json.loads(path.read_text()).get("of")
    wanted = json.loads(json.dumps(facts_of(experiment)))
    pairs = [] if kept is None else [(name, kept.get(name), wanted[name]) for name in _FACTS]
    found = []
    for name, theirs, mine in pairs:
        if isinstance(mine, dict) and isinstance(theirs, dict):
            keys = [key for key in mine if mine[key] != theirs.get(key)]
            found += [f"{name}.{key} {mine[key]} (not {theirs.get(key)})" for key in keys]
        elif mine != theirs:
            found.append(f"{name} {mine} (not {theirs})")
    return found


def read_costs(path: Path) -> Costs:
    """What `write_costs` kept."""
    return msgspec.convert(json.loads(path.read_text())["costs"], Costs)


def one_of_each(experiment: Experiment[Any]) -> Experiment[Any]:
    """One of each worker, of one thread, on this host."""
    return replace(
        experiment,
        launcher="local",
        max_staleness=max(1, experiment.max_staleness),
        threads=1,
        actors=replace(experiment.actors, count=1, min=None, threads=None),
        policies=replace(experiment.policies, count=1, min=None, threads=None),
        trainers=replace(experiment.trainers, count=1, threads=None),
    )


def _runs(experiment: Experiment[Any]) -> dict[str, Experiment[Any]]:
    """What is run, by name; networks of a GPU do not answer inside actors, nor wait for sums of gradients."""
    one = one_of_each(experiment)
    runs = {
        "near": replace(one, inference="shm", samples="shm"),
        "far": replace(one, inference="tcp", samples="tcp"),
    }
    if one.policies.device == "cpu":
        runs = {"inside": replace(one, inference="inline", samples="shm"), **runs}
    if one.trainers.device == "cpu":
        with contextlib.suppress(ConfigError):  # what two cannot share is not planned for two
            pair = replace(
                runs.get("inside", runs["near"]),
                actors=replace(one.actors, count=2),
                trainers=replace(one.trainers, count=2),
            )
            plan_of(pair)
            runs["pair"] = pair
    return runs


def _learning_share(window: Window) -> float:
    """Of its time, how much a trainer works: neither without a batch, nor waiting for the other one's."""
    waits = [
        split.get("wait_for_batch", 0.0) + split.get("wait_for_ranks", 0.0)
        for name, split in window.workers.items()
        if name.startswith("trainer")
    ]
    return max(0.01, 1 - sum(waits) / len(waits))


def _us(window: Window, kind: str) -> float:
    """Core-microseconds an env step of all workers of a kind."""
    cores = sum(used for name, used in window.cpu.items() if name.startswith(kind))
    return cores * window.seconds / window.env_steps * 1e6


def _shown_bytes(plan: Plan) -> float:
    """Bytes of a row in a request, and of its answer."""
    route = plan.learning[0]
    agent, records = route.agent_spec(), route.records()
    seen = sum(math.prod(o.seen_shape) * np.dtype(o.dtype).itemsize for o in agent.observations)
    return seen + _bytes(records.outputs) + _bytes(records.state)


def _bytes(spec: Spec) -> int:
    return sum(field.nbytes for field in spec)
