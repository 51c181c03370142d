"""The experiment that needs a memory: name a cue that was shown 6 to 9 steps ago."""

from srl.algorithms.ppo import PPOConfig
from srl.core.experiment import ActorsConfig, EnvConfig, Experiment, StopConfig


def recall() -> Experiment[PPOConfig]:
    """Return 1 with a memory at 60k env steps; at most 0.25, a guess of four, without."""
    return Experiment(
        name="recall",
        env=EnvConfig(name="toy/recall", options='{"choices": 4, "delay": 6, "jitter": 3}'),
        algorithm=PPOConfig(
            rollout=32,
            batch_size=1024,
            epochs=4,
            minibatch_size=256,
            learning_rate=3e-3,
            learning_rate_schedule="linear",
            discount=0.95,
            hidden=(32,),
            memory_size=32,
        ),
        actors=ActorsConfig(envs=32, groups=2),
        stop=StopConfig(env_steps=60_000),
    )
