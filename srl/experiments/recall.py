"""The toy that needs a memory: name a cue that was shown 6 to 9 steps ago."""

from srl.algorithms.dqn import DQNConfig
from srl.algorithms.ppo import PPOConfig
from srl.core.experiment import ActorsConfig, EnvConfig, Experiment, StopConfig
from srl.core.replay import ReplayConfig

ENV = EnvConfig(name="toy/recall", options='{"choices": 4, "delay": 6, "jitter": 3}')
ACTORS = ActorsConfig(count=1, envs=32, groups=2)


def recall_gtrxl() -> Experiment[PPOConfig]:
    """Return 1 at 60k env steps, by PPO with a transformer; at most 0.25, a guess of four, without."""
    return Experiment(
        name="recall-gtrxl",
        env=ENV,
        algorithm=PPOConfig(
            rollout=32,
            batch_size=1024,
            epochs=4,
            minibatch_size=256,
            learning_rate=3e-3,
            learning_rate_schedule="linear",
            discount=0.95,
            hidden=(32,),
            memory="gtrxl",
            memory_size=32,
        ),
        actors=ACTORS,
        stop=StopConfig(env_steps=60_000),
    )


def recall_r2d2() -> Experiment[DQNConfig]:
    """Return 1 at 30k env steps; at most 0.25, a guess of four, without a memory."""
    return Experiment(
        name="recall-r2d2",
        env=ENV,
        algorithm=DQNConfig(
            rollout=16,
            replay=ReplayConfig(
                kind="prioritised",
                capacity=50_000,
                batch=64,
                steps=4,
                warm_up=2000,
                samples_per_insert=2,
            ),
            dueling=True,
            n_step=3,
            discount=0.95,
            memory="lstm",
            memory_size=32,
            chunk=16,
            burn_in=8,
            hidden=(32,),
            learning_rate=3e-3,
            learning_rate_schedule="linear",
            target_interval=50,
            target_rate=1.0,
            epsilon_end=0.1,
            ladder=2.0,
        ),
        actors=ACTORS,
        stop=StopConfig(env_steps=30_000),
    )
