"""A PPO recipe for any Gymnasium env, chosen by its spaces."""

from srl.algorithms.ppo import PPOConfig
from srl.core.env import Box
from srl.core.experiment import ActorsConfig, EnvConfig, Experiment, StopConfig
from srl.launch.env_factory import env_spec


def gym(name: str, options: str, wrappers: tuple[str, ...]) -> Experiment[PPOConfig]:
    """A recipe for `name`; it runs one million env steps and promises no return."""
    env = EnvConfig(name=name, options=options, wrappers=wrappers)
    agent = next(iter(env_spec(env).agents.values()))
    has_images = any(len(o.shape) == 3 for o in agent.observations)
    if has_images:
        # Schulman et al. 2017, table 5 (Atari).
        algorithm = PPOConfig(
            rollout=128,
            batch_size=1024,
            epochs=3,
            minibatch_size=256,
            learning_rate=2.5e-4,
            learning_rate_schedule="linear",
            clip=0.1,
            entropy_weight=0.01,
        )
        actors = ActorsConfig(count=1, envs=8, groups=2)
    elif isinstance(agent.action, Box):
        # CleanRL's ppo_continuous_action (1e-3 and 10 epochs suit its larger batch here).
        algorithm = PPOConfig(
            rollout=128,
            batch_size=2048,
            epochs=10,
            minibatch_size=256,
            learning_rate=3e-4,
            learning_rate_schedule="linear",
            entropy_weight=0.0,
            normalise_observations=True,
            normalise_returns=True,
        )
        actors = ActorsConfig(count=1, envs=16, groups=2)
    else:
        # CleanRL's ppo, with a larger batch.
        algorithm = PPOConfig(
            rollout=128,
            batch_size=2048,
            epochs=4,
            minibatch_size=256,
            learning_rate=1e-3,
            learning_rate_schedule="linear",
            entropy_weight=0.01,
            normalise_observations=True,
        )
        actors = ActorsConfig(count=1, envs=16, groups=2)
    return Experiment(
        name=name,
        env=env,
        algorithm=algorithm,
        actors=actors,
        stop=StopConfig(env_steps=1_000_000),
        max_staleness=1,
    )
