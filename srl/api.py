"""The same from Python as from the command line: train, resume, evaluate, load.

run = srl.train("cartpole", launcher="local")
policy = srl.load(run.folder)
action = policy.act(observation)
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from srl import catalog
from srl.core.algorithm import Policy
from srl.core.block import Block, input_names, route_layout
from srl.core.env import AgentSpec, Discrete, MultiDiscrete, Observation
from srl.core.errors import ConfigError
from srl.core.experiment import Experiment
from srl.core.names import absolute_reference, load_object, nearest
from srl.core.telemetry import Telemetry
from srl.launch.controller import Controller, Watcher
from srl.launch.evaluate import Evaluation, evaluate, load_players, load_policy
from srl.launch.folder import RunFolder, default_folder
from srl.launch.graph.env_factory import is_env
from srl.launch.graph.initialise import fresh_sections, read_donor, write_initial
from srl.launch.graph.opening import find_opponents, open_run, plan_run, read_experiment
from srl.launch.graph.options import parse_options, to_arguments
from srl.launch.graph.plan import Plan, make_plan
from srl.launch.graph.pool import pin
from srl.launch.graph.resuming import check_replay, shape_of
from srl.launch.host.limits import check_host
from srl.launch.play import PlayedEpisode, play
from srl.launch.ray import check_ray
from srl.learning.checkpoint import (
    LATEST,
    Checkpoint,
    find_checkpoint,
    read_checkpoint,
    trainers_only,
)
from srl.rollout.match import Player
from srl.telemetry.sinks import check_metrics
from srl.telemetry.view import Silent, View
from srl.tools.export import Exported, check_export, write_policy
from srl.tools.video import Video, check_video
from srl.workers.watchdog import Watched, end_with, watch


@dataclass(frozen=True)
class Run:
    """A run that has ended."""

    folder: Path
    summary: Mapping[str, Any]


ViewFactory = Callable[[Experiment[Any]], View]


def find_experiment(name: str, arguments: Sequence[str] = ()) -> Experiment[Any]:
    """The experiment called `name`, with command-line options applied.

    Raises ConfigError for an unknown name (naming the nearest) or a bad option.
    """
    return _with_absolute_files(parse_options(_find(name, arguments), arguments))


def train(
    experiment: str | Experiment[Any],
    *,
    view: ViewFactory | None = None,
    **options: Any,
) -> Run:
    """Train an experiment and wait for its end.

    Args:
        experiment: a name (`cartpole`, `gym/ANY-ID`, `toy/recall`, `file.py:function`) or an Experiment.
        view: shows progress; nothing is shown without one.
        **options: as on the command line, with `__` for the dot: `launcher="inline"`,
            `actors__count=2`, `stop__env_steps=10_000`.

    Raises:
        ConfigError: before anything was started.
    """
    arguments = _to_arguments(options)
    if isinstance(experiment, str):
        experiment = find_experiment(experiment, arguments)
    else:
        changed = parse_options(experiment, arguments) if arguments else experiment
        experiment = _with_absolute_files(changed)
    return train_experiment(experiment, view or _silent)


def train_experiment(
    experiment: Experiment[Any], view: ViewFactory, watcher: Watcher | None = None
) -> Run:
    """Train a complete experiment in a new run folder; a watcher may end it."""
    check_devices(experiment)
    check_metrics(experiment.metrics)
    if experiment.launcher == "ray":
        check_ray(experiment.ray.address)
    frozen = find_opponents(experiment)
    plan = make_plan(experiment, {p: [f.opponent for f in found] for p, found in frozen.items()})
    sections = None
    if experiment.init_from is not None:
        sections = fresh_sections(experiment, plan, read_donor(Path(experiment.init_from)))
    path = Path(experiment.out) if experiment.out else default_folder(experiment.name)
    notes = check_host(plan, experiment, path)
    folder = RunFolder.create(path)
    pin(folder.path, frozen)
    checkpoint = None if sections is None else write_initial(folder, sections, plan)
    return _run(
        experiment, folder, checkpoint, view, plan, notes=notes, watcher=watcher, is_new=True
    )


def resume(
    path: Path | str,
    *,
    view: ViewFactory | None = None,
    checkpoint: str | int = LATEST,
    **options: Any,
) -> Run:
    """Go on with a run from its newest checkpoint, or from another one.

    Args:
        path: the run folder.
        view: shows progress; nothing is shown without one.
        checkpoint: `latest`, `best` or a version of which there is one (`srl inspect` lists them).
        **options: those of `train`; what they change is recorded.
    """
    return resume_run(Path(path), _to_arguments(options), view or _silent, str(checkpoint))


def resume_run(
    path: Path, arguments: Sequence[str], view: ViewFactory, checkpoint: str = LATEST
) -> Run:
    """Go on with a run; options as on the command line."""
    if any(word.partition("=")[0] == "--out" for word in arguments):
        raise ConfigError("resume goes on in the run's own folder: it takes no --out")
    folder = RunFolder.open(path, to_write=True)
    folder.lock()  # says who runs it, before anything else is found wrong with it
    folder.unlock()
    folder.settle()
    experiment = _with_absolute_files(parse_options(read_experiment(folder), arguments))
    found = read_checkpoint(find_checkpoint(folder.checkpoints, checkpoint))
    check_devices(experiment)
    check_metrics(experiment.metrics)
    if experiment.launcher == "ray":
        check_ray(experiment.ray.address)
    plan = plan_run(folder, experiment)
    check_replay(plan, found)
    if found.manifest.get("shape") != shape_of(experiment, plan):
        found = trainers_only(found)
    if not any(section.startswith("actor") for section in found.sections):
        done = int(found.manifest["progress"]["totals"]["env_steps"])
        plan = msgspec.structs.replace(plan, restarted_at=1 + done)
    for route in plan.learning:
        load_policy(experiment, route, found)  # raises where the network is another
    if experiment.launcher != "inline":  # workers read theirs themselves
        found = replace(found, sections={name: {} for name in found.sections})
    notes = check_host(plan, experiment, path, is_new=False)
    return _run(experiment, folder, found, view, plan, notes=notes)


def evaluate_run(
    path: Path | str, *, episodes: int = 100, version: str | int | None = None
) -> Evaluation:
    """Play a run's newest checkpoint, or a version it kept: a number or a tag like `best`."""
    if episodes < 1:
        raise ConfigError(f"episodes must be at least 1, got {episodes}")
    folder, experiment, plan = open_run(Path(path))
    players = load_players(experiment, plan, folder, version)
    playing = Watched("srl eval", Telemetry())
    with watch([playing], experiment.env.timeout_seconds, end_with(3), is_alone=True):
        return evaluate(
            experiment,
            plan,
            players,
            episodes=episodes,
            seconds=experiment.evaluation.seconds,
            telemetry=playing.telemetry,
        )


def play_run(
    path: Path | str,
    *,
    episodes: int = 1,
    version: str | int | None = None,
    seed: int | None = None,
    sampled: bool = False,
    video: Path | str | None = None,
) -> Iterator[PlayedEpisode]:
    """Play a run's newest checkpoint, or a version it kept; yields every episode when it is over.

    Args:
        path: the run folder.
        episodes: how many.
        version: a number, or a tag like `best`.
        seed: of the env; the run's own where not given.
        sampled: sample actions, instead of taking the most likely.
        video: an .mp4 or .gif to write.

    Raises:
        ConfigError: before anything was played.
    """
    if episodes < 1:
        raise ConfigError(f"episodes must be at least 1, got {episodes}")
    if seed is not None and seed < 0:
        raise ConfigError(f"seed must be at least 0, got {seed}")
    target = None if video is None else Path(video)
    if target is not None:
        check_video(target)
    folder, experiment, plan = open_run(Path(path))
    players = load_players(experiment, plan, folder, version)
    films: list[Video] = []

    def open_film(frames_per_second: float) -> Callable[[np.ndarray], None]:
        films.append(Video(target or Path(), frames_per_second))
        return films[0].add

    playing = Watched("srl play", Telemetry())
    is_done = False
    try:
        with watch([playing], experiment.env.timeout_seconds, end_with(3), is_alone=True):
            yield from play(
                experiment,
                plan,
                players,
                episodes=episodes,
                seed=experiment.seed if seed is None else seed,
                sampled=sampled,
                open_film=None if target is None else open_film,
                telemetry=playing.telemetry,
            )
        is_done = True
    finally:
        for film in films:
            if is_done:
                film.close()
            else:
                film.abandon()


class LoadedPolicy:
    """A trained policy, for use outside SRL; it remembers what one episode showed it."""

    def __init__(self, policy: Policy, agent: AgentSpec) -> None:
        records = replace(policy.records, chunk=1, burn_in=0)
        layout = route_layout(agent, records, rollout=1, lanes=1, envs=1)
        self._policy = policy
        self._agent = agent
        self._inputs = input_names(agent, records)
        self._block = Block.allocate(layout)
        self._carry = Block.allocate(replace(layout, rows=1))
        self.reset()

    def reset(self) -> None:
        """An episode begins: what came before is forgotten.

        Only policies with a memory or stacked observations differ by it.
        """
        self._block["first"][0] = True
        self._block["step"][:] = 0

    def act(self, observation: Any, *, greedy: bool = True) -> Any:
        """The action for the next observation of an episode, as the env gives it.

        Args:
            observation: an array, a number, or a dict or tuple of them, unbatched.
            greedy: the most likely action; otherwise a sampled one.
        """
        block = self._block
        for part in self._agent.observations:
            block.row([part.name], 0)[part.name][0] = _part_of(observation, part)
        act = self._policy.act_greedy if greedy else self._policy.act
        block.answer(act(block.inputs(self._inputs, 0)), 0)
        action = block["action"][0, 0].copy()
        self._carry.continue_from(block)  # row 1, of which nothing is known yet, is next
        block.begin_with(self._carry)
        space = self._agent.action
        if isinstance(space, Discrete):
            return int(action) + space.start
        if isinstance(space, MultiDiscrete):
            return (action + np.array(space.start or 0)).reshape(space.shape or action.shape)
        low, high = np.reshape(space.low, space.shape), np.reshape(space.high, space.shape)
        return np.clip(action, low, high).astype(np.float32)


def _part_of(observation: Any, part: Observation) -> np.ndarray:
    """One field of what an env shows, as it lies in a row; raises ConfigError for another shape."""
    path = part.path or ((part.name,) if isinstance(observation, Mapping) else ())
    for key in path:
        observation = observation[key]
    array = np.asarray(observation, part.dtype)
    if array.shape != part.shape:
        raise ConfigError(
            f"{part.name!r} of an observation has shape {part.shape}, got {array.shape}"
        )
    return array - np.reshape(part.start, part.shape) if part.start else array


def load(
    path: Path | str, *, policy: str | None = None, version: str | int | None = None
) -> LoadedPolicy:
    """A policy of a run: the first that learns, or the one that is named.

    Args:
        path: the run folder.
        policy: its name, where a run has several.
        version: a number or a tag of a version it kept; without one, its newest checkpoint.
    """
    player = _find_player(path, policy, version)
    return LoadedPolicy(player.policy, player.agent)


def export_run(
    path: Path | str,
    *,
    format: str,  # noqa: A002 - its name on the command line
    out: Path | str | None = None,
    policy: str | None = None,
    version: str | int | None = None,
) -> Exported:
    """Write a policy of a run as a file that takes the best actions without SRL.

    Args:
        path: the run folder.
        format: `onnx`, for ONNX Runtime, or `torch`, for `torch.export.load`.
        out: an .onnx or .pt2 file; `policy.onnx` or `policy.pt2` in the run folder where not given.
        policy: its name, where a run has several; otherwise the first that learns.
        version: a number or a tag of a version it kept; without one, its newest checkpoint.

    Raises:
        ConfigError: where the format's packages are missing, or the policy cannot be exported.
    """
    folder = RunFolder.open(Path(path)).path
    target = check_export(folder, format, None if out is None else Path(out))
    player = _find_player(path, policy, version)
    return write_policy(player.policy, player.agent, format, target)


def _find_player(path: Path | str, policy: str | None, version: str | int | None) -> Player:
    """The policy of that name, or the first that learns."""
    folder, experiment, plan = open_run(Path(path))
    players = {p.name: p for p in load_players(experiment, plan, folder, version) if p.counts}
    name = next(iter(players)) if policy is None else policy
    if name not in players:
        raise ConfigError(f"{path} has no policy {name!r}, but {', '.join(players)}")
    return players[name]


def _to_arguments(options: Mapping[str, Any]) -> list[str]:
    named = {k.replace("__", ".").replace("_", "-"): v for k, v in options.items()}
    return to_arguments(named)


def _with_absolute_files(experiment: Experiment[Any]) -> Experiment[Any]:
    """Files are named relative to where one stands; a run must be found again from elsewhere."""
    algorithm = experiment.algorithm
    if not is_dataclass(algorithm) or isinstance(algorithm, type):
        raise ConfigError(
            f"algorithm is {algorithm!r}: it must be an object of a dataclass whose fields are its options"
        )
    env = experiment.env
    named = replace(
        env,
        name=absolute_reference(env.name),
        wrappers=tuple(absolute_reference(wrapper) for wrapper in env.wrappers),
    )
    return replace(experiment, env=named, algorithm=_with_absolute_strings(algorithm))


def _with_absolute_strings(config: Any) -> Any:
    """A config whose own strings, and those of configs in it, name files by their whole paths."""
    values = {f.name: getattr(config, f.name) for f in fields(config) if f.init}
    found = {k: absolute_reference(v) for k, v in values.items() if isinstance(v, str) and ":" in v}
    nested = {k: v for k, v in values.items() if is_dataclass(v) and not isinstance(v, type)}
    found |= {k: _with_absolute_strings(v) for k, v in nested.items()}
    return replace(config, **found)


def _find(name: str, arguments: Sequence[str]) -> Experiment[Any]:
    family, slash, _ = name.partition("/")
    if slash and family in catalog.ENVS:
        return _by_spaces(name, arguments)
    if ":" in name:
        made = load_object(name)
        if is_env(made):
            return _by_spaces(name, arguments)
        experiment = made() if callable(made) else made
        if not isinstance(experiment, Experiment):
            raise ConfigError(f"{name!r} does not return an Experiment but {type(experiment)}")
        return experiment
    if name not in catalog.EXPERIMENTS:
        known = [*catalog.EXPERIMENTS, *(f"{family}/" for family in catalog.ENVS)]
        raise ConfigError(
            f"unknown experiment {name!r}{nearest(name, known) or '.'} 'srl list' lists them; "
            f"FAMILY/NAME with an env family of {', '.join(catalog.ENVS)}, module:Object and "
            "file.py:Object, of an experiment or an env, are experiments too"
        )
    return load_object(catalog.EXPERIMENTS[name])()


def _by_spaces(env: str, arguments: Sequence[str]) -> Experiment[Any]:
    """The recipe for an env that comes without one."""
    make = load_object(catalog.FALLBACK_EXPERIMENT)
    options = _values("--env.options", arguments) or [None]
    return make(env, options[0], tuple(_values("--env.wrappers", arguments)))


def _values(option: str, arguments: Sequence[str]) -> list[str]:
    """The values an option is given, where the recipe itself depends on them."""
    words = [part for word in arguments for part in _split(word)]
    if option not in words:
        return []
    following = words[words.index(option) + 1 :]
    return list(takewhile(lambda word: not word.startswith("--"), following))


def _split(word: str) -> list[str]:
    return word.split("=", 1) if word.startswith("--") else [word]


def _run(
    experiment: Experiment[Any],
    folder: RunFolder,
    checkpoint: Checkpoint | None,
    view: ViewFactory,
    plan: Plan,
    *,
    notes: Sequence[str],
    watcher: Watcher | None = None,
    is_new: bool = False,
) -> Run:
    folder.lock()
    plan = msgspec.structs.replace(plan, folder=str(folder.path.resolve()))
    shown = view(experiment)
    try:
        controller = Controller(
            experiment, plan, folder, shown, checkpoint=checkpoint, notes=notes, watcher=watcher
        )
        try:
            summary = controller.run()
        finally:
            if controller.is_refused and is_new:  # so that it can be tried again
                folder.discard()
    finally:
        with suppress(OSError):
            shown.close()
        folder.unlock()
    return Run(folder.path, summary)


def check_devices(experiment: Experiment[Any]) -> None:
    """Raise ConfigError for a device that is none, or not there."""
    for option, device in (
        ("trainers.device", experiment.trainers.device),
        ("policies.device", experiment.policies.device),
    ):
        kind, _, index = device.partition(":")
        if not re.fullmatch("cpu|cuda(:(0|[1-9][0-9]*))?", device):
            raise ConfigError(f"{option} must be cpu, cuda or cuda:N, got {device!r}")
        if index and experiment.launcher == "ray":
            raise ConfigError(
                f"{option} is {device!r}, but launcher ray deals GPUs out itself: use --{option} cuda"
            )
        if kind == "cuda" and experiment.launcher != "ray":  # which knows where GPUs are
            import torch

            if not torch.cuda.is_available():
                raise ConfigError(f"{option} is {device!r}, but torch finds no CUDA device here")
            found = torch.cuda.device_count()
            if index and int(index) >= found:
                raise ConfigError(
                    f"{option} is {device!r}, but the last CUDA device that torch finds here is cuda:{found - 1}"
                )
            if option == "trainers.device" and experiment.num_ranks > found:
                raise ConfigError(
                    f"trainers.count {experiment.num_ranks} with trainers.device {device} needs a "
                    f"GPU each, and torch finds {found} here: use --trainers.count {found}"
                )


def _silent(_: Experiment[Any]) -> View:
    return Silent()
