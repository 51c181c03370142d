"""An experiment: which env, which algorithm, how many workers, and when to stop.

It is data. The same experiment runs in one process or many; `launch/graph/plan.py` turns it into the
graph of workers and streams.
"""

import json
import math
import re
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from srl.core.algorithm import AlgorithmConfig
from srl.core.checks import check_at_least
from srl.core.compute import Precision
from srl.core.errors import ConfigError

_POLICY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)
Substrate = Literal["auto", "inline", "shm", "tcp"]
OnNan = Literal["stop", "skip"]
AlgorithmT = TypeVar("AlgorithmT", bound=AlgorithmConfig)


def _check_least(section: str, least: int | None, count: int) -> None:
    if least is not None and not 1 <= least <= count:
        raise ConfigError(f"{section}.min must be 1 to {section}.count ({count}), got {least}")


def json_object(option: str, text: str) -> dict[str, Any]:
    """Parse the value of an option; raises ConfigError where it is no JSON object."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{option} is not JSON ({error}): {text!r}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{option} must be a JSON object, got {text!r}")
    return value


def check_threads(option: str, threads: int | None) -> None:
    """Raise ConfigError where a number of threads, if one is given, makes no sense."""
    if threads is not None:
        check_at_least(option, threads, 1)


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """The environment."""

    name: str
    """FAMILY/NAME (gym/ANY-ID, atari/pong), module:Object or file.py:Object."""
    options: str = "{}"
    """Keyword arguments of the env, as JSON: '{"difficulty": 1}'."""
    wrappers: tuple[str, ...] = ()
    """Gymnasium wrappers, module:Object, applied in this order."""
    reseed: Literal["episode", "start"] = "episode"
    """Seed every episode (exact resume), or only the first (where a seeded reset is slow)."""
    scale_rewards: float = 1.0
    """What rewards are multiplied with before anything is learned from them."""
    clip_rewards: float | None = None
    """What is learned from is clipped to this, up and down, after scaling; returns are reported raw."""
    timeout_seconds: float | None = 120.0
    """Most seconds that a reset or step of a group's envs may take; then the worker that hangs in it
    is ended, and starts again. None: for ever."""
    max_failures: int = 5
    """Failures of an env, in its last episodes, after which it is rebuilt; with more it is parked."""
    failure_window: int = 10
    """Last episodes of an env in which its failures are counted."""

    def __post_init__(self) -> None:
        self.keywords()
        if self.timeout_seconds is not None:
            check_at_least("env.timeout-seconds", self.timeout_seconds, 0.1)
        check_at_least("env.max-failures", self.max_failures, 0)
        check_at_least("env.failure-window", self.failure_window, 1)
        if not (math.isfinite(self.scale_rewards) and self.scale_rewards > 0):
            raise ConfigError(f"env.scale-rewards must be above 0, got {self.scale_rewards}")
        if self.clip_rewards is not None and not self.clip_rewards > 0:
            raise ConfigError(f"env.clip-rewards must be above 0, got {self.clip_rewards}")

    def keywords(self) -> dict[str, Any]:
        """The options, parsed."""
        return json_object("env.options", self.options)


@dataclass(frozen=True, kw_only=True)
class ActorsConfig:
    """The actors, which step the envs."""

    count: int = 1
    """Actor workers."""
    envs: int = 16
    """Envs an actor."""
    groups: int = 1
    """Groups an actor's envs are split into: while one waits for actions the next one steps."""
    min: int | None = None
    """Fewest actors the run goes on with when others are given up; None: it needs all."""
    max: int | None = None
    """Most actors, of launcher ray: those above `count` begin where there is room for them, now or when
    nodes join. None: as many as `count`."""
    inline: int = 0
    """So many actors, the first ones, compute actions themselves though there are policy workers for the
    others."""
    threads: int | None = None
    """Compute threads of each actor that computes actions itself; None: as `threads` says. (Native
    envs have theirs by env.options, mostly `num_threads`.)"""
    memory_limit_mb: float | None = None
    """Memory of its own that an actor (or an evaluator) may take, in MB: one that takes more, because its
    env leaks, is ended and started again. None: no limit."""

    def __post_init__(self) -> None:
        check_threads("actors.threads", self.threads)
        if self.memory_limit_mb is not None:
            check_at_least("actors.memory-limit-mb", self.memory_limit_mb, 1)
        check_at_least("actors.count", self.count, 1)
        if not 0 <= self.inline < self.count:
            raise ConfigError(
                f"actors.inline must be 0 or more and less than actors.count ({self.count}), got "
                f"{self.inline}; for all of them there is --inference inline"
            )
        _check_least("actors", self.min, self.count)
        if self.max is not None and self.max < self.count:
            raise ConfigError(
                f"actors.max is {self.max}, but --actors.count {self.count} are there from the start: "
                "it must be as many at least"
            )
        check_at_least("actors.envs", self.envs, 1)
        check_at_least("actors.groups", self.groups, 1)
        if self.envs % self.groups:
            raise ConfigError(
                f"actors.envs ({self.envs}) must be a multiple of actors.groups ({self.groups})"
            )


@dataclass(frozen=True, kw_only=True)
class PoliciesConfig:
    """The policy workers, which answer requests for actions (none with inline inference)."""

    count: int = 1
    """Policy workers."""
    device: str = "cpu"
    """Where they compute: cpu, cuda, or (not with launcher ray) cuda:1."""
    min: int | None = None
    """Fewest workers of each policy that the run goes on with when others are given up; None: all."""
    threads: int | None = None
    """Compute threads of each policy worker; None: as `threads` says."""
    gpus: float = 0.0
    """GPUs that launcher ray sets aside for each policy worker on one; 0: it shares a trainer's."""

    def __post_init__(self) -> None:
        check_threads("policies.threads", self.threads)
        check_at_least("policies.gpus", self.gpus, 0)
        check_at_least("policies.count", self.count, 1)
        _check_least("policies", self.min, self.count)


@dataclass(frozen=True, kw_only=True)
class TrainersConfig:
    """The trainers, which learn."""

    count: int = 1
    """Trainer workers a policy: each learns its share of every batch, all with the same result, so
    launcher inline runs them as one."""
    device: str = "cpu"
    """Where they compute: cpu, cuda (of several, each has a GPU of its own), or (not with launcher ray)
    cuda:1."""
    threads: int | None = None
    """Compute threads of each trainer; None: as `threads` says."""
    gpus: float = 1.0
    """GPUs that launcher ray sets aside for each trainer on one; a fraction leaves the rest to others."""

    def __post_init__(self) -> None:
        check_at_least("trainers.gpus", self.gpus, 0)
        check_threads("trainers.threads", self.threads)
        check_at_least("trainers.count", self.count, 1)
        if self.count > 1 and self.device.startswith("cuda:"):
            raise ConfigError(
                f"trainers.count {self.count} cannot share {self.device}: use --trainers.device "
                "cuda, which gives the first trainer cuda:0, the second cuda:1 and so on"
            )


@dataclass(frozen=True, kw_only=True)
class BuffersConfig:
    """The buffers, which keep what algorithms with replay learn from (none: trainers keep it)."""

    count: int = 0
    """Buffer workers a policy: each keeps what its share of the actors sends, and draws its share of every
    batch. 0: each trainer does so for itself, as launcher inline always has it."""

    def __post_init__(self) -> None:
        check_at_least("buffers.count", self.count, 0)


@dataclass(frozen=True, kw_only=True)
class StopConfig:
    """When to stop; the first that is reached ends the run."""

    env_steps: int | None = None
    """Env transitions, over all actors; also what schedules run over."""
    seconds: float | None = None
    """Wall time."""
    return_: float | None = None
    """Mean return of the last 100 episodes; the final evaluation must reach it too."""

    def __post_init__(self) -> None:
        if self.env_steps is not None:
            check_at_least("stop.env-steps", self.env_steps, 1)
        if self.seconds is not None:
            check_at_least("stop.seconds", self.seconds, 0)


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Checkpoints during the run (there is always one at its end)."""

    seconds: float = 60.0
    """Seconds of learning that a death may cost: between two checkpoints, the time to write one included."""
    keep: int = 3
    """Newest checkpoints to keep; the best stays beside them."""

    def __post_init__(self) -> None:
        check_at_least("checkpoint.seconds", self.seconds, 0.1)
        check_at_least("checkpoint.keep", self.keep, 1)


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """Evaluation with the most likely actions: at the end, and beside the training where asked."""

    episodes: int = 100
    """Episodes to play, the same number in each of up to 20 envs; 0 for no evaluation."""
    seconds: float = 300.0
    """Give the final evaluation up after this long: its return is then not known."""
    count: int = 0
    """Evaluator workers beside the training, 0 or 1; with 0 there is only the final evaluation."""
    every: int = 1
    """At least so many versions between two evaluations beside the training."""
    keep: int = 10
    """Newest evaluated versions to keep on disk, besides those with a tag."""

    def __post_init__(self) -> None:
        check_at_least("evaluation.episodes", self.episodes, 0)
        check_at_least("evaluation.seconds", self.seconds, 0)
        check_at_least("evaluation.count", self.count, 0)
        check_at_least("evaluation.every", self.every, 1)
        check_at_least("evaluation.keep", self.keep, 1)
        if self.count > 1:
            raise ConfigError(f"evaluation.count must be 0 or 1 in this version, got {self.count}")
        if self.count and not self.episodes:
            raise ConfigError("evaluation.count 1 needs evaluation.episodes above 0")


@dataclass(frozen=True, kw_only=True)
class RestartsConfig:
    """How often a worker that died is started again: lives in a row that get nowhere.

    Progress (env steps, answers, a checkpoint, an evaluation) makes the count begin anew; 0 ends the
    run with the first death.
    """

    actors: int = 5
    """Of an actor."""
    policies: int = 5
    """Of a policy worker."""
    trainers: int = 5
    """Of the trainers of a policy, which go on together from the last checkpoint."""
    buffers: int = 5
    """Of a buffer, which goes on with what it had at the last checkpoint."""
    evaluators: int = 5
    """Of an evaluator."""
    wait_seconds: float = 1.0
    """Before the second life in a row; twice as long before each one after, up to half a minute."""

    def __post_init__(self) -> None:
        for kind in ("actors", "policies", "trainers", "buffers", "evaluators"):
            check_at_least(f"restarts.{kind}", getattr(self, kind), 0)
        check_at_least("restarts.wait-seconds", self.wait_seconds, 0)


@dataclass(frozen=True, kw_only=True)
class HangsConfig:
    """What to do when a stream stands still.

    In one process nothing counts as that: a debugger may well hold it.
    """

    seconds: float = 300.0
    """Without progress until the stacks of all workers are taken and the one that holds the others up
    is found; longer than the longest update or request takes."""
    action: Literal["restart", "stop"] = "restart"
    """What becomes of it: it is started again, by its budget of restarts, or the run ends."""

    def __post_init__(self) -> None:
        check_at_least("hangs.seconds", self.seconds, 1)


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """How streams go over a network."""

    receivers: int = 1
    """Threads of each trainer that receive and decrypt blocks, about 0.5 to 0.9 GB/s each."""
    compression: Literal["none", "lz4"] = "none"
    """Of blocks on their way, never of weights: lz4 pays where the link is slower than it, and frames are
    mostly flat."""
    interface: str | None = None
    """Network interface that trainers on several hosts talk over, which is neither encrypted nor
    authenticated; None: the one with the host's address."""

    def __post_init__(self) -> None:
        check_at_least("network.receivers", self.receivers, 1)


@dataclass(frozen=True, kw_only=True)
class RayConfig:
    """The cluster of launcher ray, and which of its nodes are for whom.

    A node is named by its address, or by a resource that it was started with
    (`ray start --resources '{"big": 1}'`).
    """

    address: str = "auto"
    """Of the cluster: HOST:PORT; auto: the one this host is part of (or RAY_ADDRESS names), and where
    there is none a new one on this host; local: always a new one."""
    trainers: tuple[str, ...] = ()
    """Nodes for trainers; none named: any (with GPUs, where trainers.device asks for one)."""
    policies: tuple[str, ...] = ()
    """Nodes for policy workers; none named: any."""
    actors: tuple[str, ...] = ()
    """Nodes for actors; none named: any."""
    runtime_env: str = "{}"
    """Ray's runtime_env for the processes on its nodes, as JSON: '{"working_dir": "."}' ships the code
    in this folder to nodes that do not have it."""
    wait_seconds: float = 60.0
    """For the cluster to have what the run needs, while others use it or nodes are being added: where an
    autoscaler does, longer than it takes."""

    def __post_init__(self) -> None:
        check_at_least("ray.wait-seconds", self.wait_seconds, 0)
        json_object("ray.runtime-env", self.runtime_env)


@dataclass(frozen=True, kw_only=True)
class MetricsConfig:
    """Where metrics go besides the run folder (metrics.jsonl and TensorBoard are always there)."""

    prometheus_port: int | None = None
    """Port of an endpoint for Prometheus; 0 takes a free one."""
    prometheus_address: str = "127.0.0.1"
    """Address of this host where that is read; other than loopback, only with a token."""
    prometheus_token_file: str | None = None
    """File with the token that who reads must show (Authorization: Bearer TOKEN)."""
    wandb: str | None = None
    """Project of Weights & Biases to log to."""

    def __post_init__(self) -> None:
        is_open = (
            not self.prometheus_address.startswith("127.") and self.prometheus_address != "::1"
        )
        if self.prometheus_port is not None and is_open and self.prometheus_token_file is None:
            raise ConfigError(
                f"metrics.prometheus-address {self.prometheus_address} lets others read the metrics: "
                "say by which token (--metrics.prometheus-token-file FILE), or leave it on loopback"
            )
        port = self.prometheus_port
        if port is not None and not 0 <= port < 2**16:
            raise ConfigError(f"metrics.prometheus-port must be 0 to 65535, got {port}")
        if self.wandb is not None and not self.wandb.strip():
            raise ConfigError("metrics.wandb must be the name of a project, got an empty one")


@dataclass(frozen=True, kw_only=True)
class Route:
    """Which agents use which policy; the first pattern that matches an agent's name wins."""

    agents: str = "*"
    """Pattern of agent names: * stands for any text, ? for any letter, [ab] for one of these."""
    policy: str = "main"
    """Name of the policy: letters, digits and _ - . after a first letter or digit."""
    frozen: tuple[str, ...] = ()
    """Runs whose policies these agents play by and which do not learn: RUN (its newest checkpoint),
    RUN@VERSION or RUN@TAG. Of several, each lane draws one for every episode."""

    def __post_init__(self) -> None:
        if not _POLICY_NAME.fullmatch(self.policy):
            raise ConfigError(
                f"{self.policy!r} is no name of a policy: use letters, digits, and _ - . after the "
                "first one, for files are named by it"
            )


@dataclass(frozen=True, kw_only=True)
class Experiment(Generic[AlgorithmT]):
    """Everything a run needs to know."""

    name: str
    """Name of the experiment."""
    env: EnvConfig
    """The environment."""
    algorithm: AlgorithmT
    """The algorithm and its options."""
    actors: ActorsConfig = ActorsConfig()
    """The actors, which step the envs."""
    policies: PoliciesConfig = PoliciesConfig()
    """The policy workers, which answer requests for actions (none with inline inference)."""
    trainers: TrainersConfig = TrainersConfig()
    """The trainers, which learn."""
    buffers: BuffersConfig = BuffersConfig()
    """The buffers, which keep what algorithms with replay learn from (none: trainers keep it)."""
    stop: StopConfig = StopConfig()
    """When to stop; the first that is reached ends the run."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Checkpoints during the run (there is always one at its end)."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Evaluation: at the end, and beside the training where asked."""
    restarts: RestartsConfig = RestartsConfig()
    """How often a worker that died is started again."""
    hangs: HangsConfig = HangsConfig()
    """What to do when a stream stands still."""
    network: NetworkConfig = NetworkConfig()
    """How streams go over a network."""
    ray: RayConfig = RayConfig()
    """The cluster of launcher ray, and which of its nodes are for whom."""
    metrics: MetricsConfig = MetricsConfig()
    """Where metrics go besides the run folder."""
    routes: tuple[Route, ...] = (Route(),)
    """Which agents use which policy."""
    launcher: Literal["inline", "local", "ray"] = "local"
    """Where the workers run: all in this process, each in one of its own on this host, or on the nodes
    of a Ray cluster."""
    inference: Substrate = "auto"
    """Where actions are computed: inline (in the actor), or in policy workers that are asked over shm
    (shared memory) or tcp (encrypted); auto: shm where policies.count or policies.device ask for policy
    workers."""
    acting: Literal["auto", "torch"] = "auto"
    """What computes actions on a CPU: auto (NumPy where the algorithm has such a policy: faster for
    small networks, and actors import no torch), or torch always."""
    samples: Substrate = "auto"
    """How blocks travel: inline (one process), shm (shared memory) or tcp (encrypted); auto: shm between
    processes."""
    max_staleness: int = 1
    """Batches by which sampling may be ahead of learning; 0 is synchronous."""
    on_nan: OnNan = "stop"
    """What to do about an observation, reward, loss or weight that is not finite: stop, or skip its
    batch, which is counted and leaves no trace; ten skipped in a row stop the run, too."""
    arena_megabytes: float | None = None
    """Most shared memory for blocks; what the run needs is computed and refused if it is more."""
    precision: Precision = "fp32"
    """What layers of networks multiply in: fp32, tf32 (on GPUs), or bf16 (where the processor has it;
    heads, softmax, losses and weights stay fp32)."""
    compile: bool = False
    """Compile networks by torch.compile: a slower start, then faster large batches; needs a C++
    compiler, or Triton on a GPU, and goes on without where there is none."""
    threads: int = 1
    """Compute threads of each worker whose kind has no number of its own."""
    allocator: Literal["tuned", "default"] = "tuned"
    """How workers get memory: tuned (freed memory is kept for the next large array, up to 1.6 times
    faster updates on a CPU, a little more memory) or glibc's default."""
    seed: int = 0
    """Seed of everything random."""
    out: str | None = None
    """Run folder; runs/NAME/TIME if not given."""
    init_from: str | None = None
    """Run folder whose weights to begin with."""

    def __post_init__(self) -> None:
        check_at_least("max-staleness", self.max_staleness, 0)
        check_at_least("threads", self.threads, 1)
        check_at_least("seed", self.seed, 0)
        if self.launcher == "inline" and {"shm", "tcp"} & {self.inference, self.samples}:
            raise ConfigError(
                "launcher inline runs in one process, so inference and samples must be inline "
                "(or auto); use --launcher local for shm and tcp"
            )
        if self.inference_substrate == "inline" and self.policies != PoliciesConfig():
            raise ConfigError(
                "policies.count, policies.device and policies.threads are of policy workers, and "
                "with inline inference there are none: use --inference shm, and a launcher that is not inline"
            )
        if self.inference_substrate == "inline" and self.actors.inline:
            raise ConfigError(
                f"actors.inline {self.actors.inline} sets some actors apart from those that ask policy workers, "
                "and with inline inference none does: use --inference shm, and a launcher that is not inline"
            )
        if self.num_buffers % self.num_ranks:
            raise ConfigError(
                f"buffers.count ({self.num_buffers}) must be a multiple of trainers.count "
                f"({self.num_ranks}), because each buffer draws for one trainer: use "
                f"--buffers.count {-(-self.num_buffers // self.num_ranks) * self.num_ranks}"
            )
        takers = self.num_buffers or self.num_ranks
        if self.actors.count % takers:
            more = -(-self.actors.count // takers) * takers
            kind = "buffer" if self.num_buffers else "trainer"
            raise ConfigError(
                f"actors.count ({self.actors.count}) must be a multiple of {kind}s.count "
                f"({takers}), because each actor sends its blocks to one {kind}: use "
                f"--actors.count {more}, or another --{kind}s.count"
            )
        if all(route.frozen for route in self.routes):
            raise ConfigError("all routes are frozen: at least one policy must learn")
        if self.launcher != "inline" and self.samples == "inline":
            raise ConfigError(
                f"launcher {self.launcher} runs workers in processes of their own, so samples cannot be "
                "inline; leave --samples auto or use --launcher inline"
            )

    @property
    def inference_substrate(self) -> str:
        """What `auto` means: in the actor, unless policy workers are asked for."""
        if self.inference != "auto":
            return self.inference
        if self.launcher == "inline" or (self.policies.count, self.policies.device) == (1, "cpu"):
            return "inline"
        return "shm"

    @property
    def num_ranks(self) -> int:
        """Trainers a policy: N of them equal one, which is what there is in one process."""
        return 1 if self.launcher == "inline" else self.trainers.count

    @property
    def num_buffers(self) -> int:
        """Buffer workers a policy; in one process its trainer keeps what there is to replay."""
        return 0 if self.launcher == "inline" else self.buffers.count

    @property
    def samples_substrate(self) -> str:
        """What `auto` means: shared memory between processes."""
        if self.samples != "auto":
            return self.samples
        return "inline" if self.launcher == "inline" else "shm"
