"""Says in words what an experiment will start."""

from typing import Any

from srl.core.experiment import Experiment
from srl.launch.graph.hosts import arenas
from srl.launch.graph.opening import find_opponents
from srl.launch.graph.plan import ReplayPlan, make_plan
from srl.launch.host.limits import needs


def explain(experiment: Experiment[Any]) -> str:
    """The graph: workers, streams, batches, memory."""
    found = find_opponents(experiment)
    plan = make_plan(experiment, {p: [f.opponent for f in frozen] for p, frozen in found.items()})
    actors = experiment.actors
    lines = [
        f"{experiment.name}: {type(experiment.algorithm).__name__} on {experiment.env.name}",
        f"launcher {experiment.launcher}, seed {experiment.seed}, "
        f"max staleness {experiment.max_staleness}",
        "",
        "workers",
        f"  {actors.count} x actor    {actors.envs} envs in {actors.groups} groups each",
    ]
    if plan.inference != "inline":
        policies = experiment.policies
        lines.append(f"  {policies.count} x policy   on {policies.device}")
    lines.append(f"  {len(plan.of_kind('trainer'))} x trainer  {_trainers(experiment)}")
    if buffers := plan.of_kind("buffer"):
        lines.append(f"  {len(buffers)} x buffer   to keep what is replayed")
    if evaluators := plan.of_kind("evaluator"):
        wanted = experiment.evaluation
        often = "the newest version" if wanted.every == 1 else f"a version every {wanted.every}"
        lines.append(f"  {len(evaluators)} x evaluator  {wanted.episodes} episodes of {often}")
    lines += ["", "streams", *(f"  {edge}" for edge in plan.edges())]
    for route in plan.routes:
        layout = route.layout()
        rows = route.batch * route.rollout * route.lanes
        batch = f"  batch: {route.batch} blocks = {rows} rows"
        if route.replay is not None:
            batch = _replay(route.replay)
        lines += [
            "",
            f"policy {route.policy}",
            f"  block: {route.rollout} + 1 rows x {route.lanes} lanes, "
            f"{layout.nbytes / 1e6:.3f} MB",
            *(["  frozen: its blocks are never sent"] if route.is_frozen else [batch]),
            f"  fields: {', '.join(layout.spec.names)}",
        ]
    lines += ["", "memory", *(f"  {n}: {b / 1e6:.3f} MB" for n, b in arenas(plan).items())]
    need = needs(plan, experiment)
    lines += [f"  workers: at least {need.workers / 1e6:.0f} MB besides, envs not counted"]
    lines += [f"  note: {warning}" for warning in plan.warnings()]
    stop = experiment.stop
    rules = {"env-steps": stop.env_steps, "seconds": stop.seconds, "return": stop.return_}
    shown = ", ".join(f"{name} {value:g}" for name, value in rules.items() if value is not None)
    lines += ["", f"stops at: {shown or 'Ctrl-C'}"]
    return "\n".join(lines) + "\n"


def _replay(plan: ReplayPlan) -> str:
    """What is kept, and what is drawn of it."""
    config, where = plan.config, "in a file" if plan.is_file else "in memory"
    return (
        f"  replay: {plan.rows} rows, {plan.nbytes / 1e6:.0f} MB {where}; {config.kind}, {config.steps} x "
        f"{config.batch} windows of {plan.window.rows} rows a version, {config.samples_per_insert:g} for "
        "each row that comes"
    )


def _trainers(experiment: Experiment[Any]) -> str:
    """Where trainers compute, and how many share a batch."""
    trainers = experiment.trainers
    if trainers.count == 1:
        return f"on {trainers.device}"
    if experiment.num_ranks == 1:
        return f"on {trainers.device}: in one process, one does what {trainers.count} would"
    where = "a GPU each" if trainers.device == "cuda" else trainers.device
    return f"on {where}, {trainers.count} to share every batch of a policy"
