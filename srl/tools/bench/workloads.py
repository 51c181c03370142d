"""Named workloads: what `srl bench` compares systems on, one for all of its commands.

A workload is an experiment with options. Its numbers (envs, rollout, epochs, minibatch, network)
are those that peers are given too, so that all do the same work.
"""

from dataclasses import dataclass

_STEADY = {
    "algorithm.learning-rate": "2.5e-4",
    "algorithm.learning-rate-schedule": "constant",
    "algorithm.clip": "0.1",
    "algorithm.clip-schedule": "constant",
    "algorithm.value-clip": "None",
    "algorithm.discount": "0.99",
    "algorithm.gae-lambda": "0.95",
    "algorithm.entropy-weight": "0.01",
    "algorithm.initial-std": "1.0",
    "algorithm.normalise-observations": "False",
    "algorithm.normalise-returns": "False",
}
"""Learning as in the CleanRL-style script, with nothing that changes over a run."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """An experiment to measure, and the numbers that every peer must share."""

    name: str
    """What it is called on the command line."""
    experiment: str
    """The experiment, as `srl train` takes it."""
    env: str
    """Which env, for peers: `pong`, `cartpole` or `cheetah`; others have no peers."""
    envs: int
    """Envs, over all actors."""
    rollout: int
    """Steps of each lane in a batch."""
    epochs: int
    """Passes over each batch."""
    minibatch: int
    """Rows of an optimiser step."""
    hidden: tuple[int, ...]
    """Layers of actor and critic after the encoder."""
    agents: int = 1
    """Lanes of an env."""
    native: bool = False
    """Whether the env is a C++ vector env (EnvPool, ale-py's), rather than one Python object an env."""
    more: tuple[tuple[str, str], ...] = ()
    """Further options."""

    @property
    def batch(self) -> int:
        """Rows, over all lanes, learned from at a time."""
        return self.envs * self.agents * self.rollout

    def options(self) -> dict[str, str]:
        """Option to value, by their names on the command line."""
        return {
            **_STEADY,
            "actors.count": "1",
            "actors.envs": str(self.envs),
            "actors.groups": "1",
            "algorithm.rollout": str(self.rollout),
            "algorithm.batch-size": str(self.batch),
            "algorithm.epochs": str(self.epochs),
            "algorithm.minibatch-size": str(self.minibatch),
            **dict(self.more),
        }

    def arguments(self) -> list[str]:
        """The options as they would be typed."""
        words = [word for name, value in self.options().items() for word in (f"--{name}", value)]
        return [*words, "--algorithm.hidden", *(str(size) for size in self.hidden)]


_CONTINUOUS = (("algorithm.entropy-weight", "0.0"),)

WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(
            name="pong-4",
            experiment="pong",
            env="pong",
            envs=32,
            rollout=64,
            epochs=4,
            minibatch=256,
            hidden=(),
            native=True,
        ),
        Workload(
            name="pong-1",
            experiment="pong",
            env="pong",
            envs=32,
            rollout=64,
            epochs=1,
            minibatch=256,
            hidden=(),
            native=True,
        ),
        Workload(
            name="cartpole-envpool",
            experiment="envpool/CartPole-v1",
            env="cartpole",
            envs=256,
            rollout=64,
            epochs=4,
            minibatch=4096,
            hidden=(64, 64),
            native=True,
        ),
        Workload(
            name="cheetah-envpool",
            experiment="envpool/HalfCheetah-v5",
            env="cheetah",
            envs=64,
            rollout=64,
            epochs=4,
            minibatch=2048,
            hidden=(64, 64),
            native=True,
            more=_CONTINUOUS,
        ),
        Workload(
            name="cartpole-gym",
            experiment="gym/CartPole-v1",
            env="cartpole",
            envs=64,
            rollout=64,
            epochs=4,
            minibatch=2048,
            hidden=(64, 64),
        ),
        Workload(
            name="cheetah-gym",
            experiment="gym/HalfCheetah-v5",
            env="cheetah",
            envs=64,
            rollout=64,
            epochs=4,
            minibatch=2048,
            hidden=(64, 64),
            more=_CONTINUOUS,
        ),
        Workload(
            name="pong-lstm",
            experiment="pong",
            env="",
            envs=32,
            rollout=64,
            epochs=4,
            minibatch=256,
            hidden=(),
            native=True,
            more=(
                ("algorithm.memory", "lstm"),
                ("algorithm.memory-size", "256"),
                ("algorithm.chunk", "16"),
            ),
        ),
        Workload(
            name="knights",
            experiment="pettingzoo/butterfly.knights_archers_zombies_v11",
            env="",
            envs=16,
            agents=4,
            rollout=64,
            epochs=4,
            minibatch=1024,
            hidden=(64, 64),
        ),
    )
}
"""Name to workload."""
