"""A PPO recipe for any env of any family, chosen by its spaces."""

from dataclasses import replace

import numpy as np

from srl.algorithms.ppo import PPOConfig
from srl.core.env import AgentSpec, Box
from srl.core.experiment import ActorsConfig, EnvConfig, Experiment, StopConfig
from srl.launch.graph.env_factory import env_spec
from srl.launch.graph.plan import MAX_BLOCK_BYTES

GROUPS = 2


def by_spaces(name: str, options: str | None, wrappers: tuple[str, ...]) -> Experiment[PPOConfig]:
    """A recipe for the env `FAMILY/NAME`; it runs one million env steps and promises no return.

    Agents that see and do the same share one policy.
    """
    env = EnvConfig(name=name, options=options or "{}", wrappers=wrappers)
    if name.startswith("atari/"):
        env = replace(env, options=options or '{"life_loss": true}', reseed="start", clip_rewards=1)
    agents = list(env_spec(env).agents.values())
    has_images = any(len(o.seen_shape) >= 3 for o in agents[0].observations)
    # As many lanes as one agent an env would have, and all of them, once round, are a batch.
    envs = max((8 if has_images else 16) // len(agents) // GROUPS, 1) * GROUPS
    lanes = envs * len(agents)
    rollout = _rollout(agents[0], lanes // GROUPS)
    recipe = replace(_recipe(agents[0], has_images), rollout=rollout, batch_size=rollout * lanes)
    return Experiment(
        name=name,
        env=env,
        algorithm=replace(recipe, central_value=bool(agents[0].central)),
        actors=ActorsConfig(count=1, envs=envs, groups=GROUPS),
        stop=StopConfig(env_steps=1_000_000),
        max_staleness=1,
    )


def _recipe(agent: AgentSpec, has_images: bool) -> PPOConfig:
    if has_images:
        # Schulman et al. 2017, table 5 (Atari).
        return PPOConfig(
            epochs=3,
            minibatch_size=256,
            learning_rate=2.5e-4,
            learning_rate_schedule="linear",
            clip=0.1,
            entropy_weight=0.01,
        )
    if isinstance(agent.action, Box):
        # CleanRL's ppo_continuous_action (1e-3 and 10 epochs suit its larger batch here).
        return PPOConfig(
            epochs=10,
            minibatch_size=256,
            learning_rate=3e-4,
            learning_rate_schedule="linear",
            entropy_weight=0.0,
            normalise_observations=True,
            normalise_returns=True,
        )
    # CleanRL's ppo, with a larger batch.
    return PPOConfig(
        epochs=4,
        minibatch_size=256,
        learning_rate=1e-3,
        learning_rate_schedule="linear",
        entropy_weight=0.01,
        normalise_observations=True,
    )


def _rollout(agent: AgentSpec, lanes: int) -> int:
    """128 rows, or as many as fit into a block of large observations."""
    shown = [int(np.prod(o.shape)) * np.dtype(o.dtype).itemsize for o in agent.observations]
    rollout = 128
    while rollout > 8 and (rollout + 1) * lanes * (sum(shown) + 64) > MAX_BLOCK_BYTES:
        rollout //= 2
    return rollout
