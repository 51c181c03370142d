"""Batches as actors record them, without an env: for tests of algorithms."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from srl.core.algorithm import Policy
from srl.core.arrays import Arrays
from srl.core.block import Block, input_names, route_layout
from srl.core.env import AgentSpec

Reward = Callable[[np.ndarray, np.ndarray], np.ndarray | float]


def record_batches(
    policy: Policy,
    agent: AgentSpec,
    *,
    rollout: int,
    lanes: int,
    agents: int = 1,
    blocks: int = 1,
    seed: int = 0,
    end: float = 0.1,
    reward: Reward = lambda obs, action: 0.0,
) -> list[Arrays]:
    """Batches of one block each that follow each other in time.

    Args:
        policy: answers; its state is recorded as its `records` say.
        agent: what it sees: random numbers; of every action mask, the first choice is allowed.
        rollout: rows of a block to learn from.
        lanes: lanes of a block.
        agents: lanes of an env.
        blocks: how many.
        seed: of observations and ends.
        end: probability that a step ends an episode, half by termination, half by truncation.
        reward: of the first observation `[L, *shape]` and the action of a row.
    """
    rng = np.random.default_rng(seed)
    records, envs = policy.records, lanes // agents
    layout = route_layout(agent, records, rollout=rollout, lanes=lanes, envs=envs)
    carry = Block.allocate(replace(layout, rows=records.burn_in + 1))
    inputs, shown, batches = input_names(agent, records), agent.observation_names[:1], []
    _show(carry, records.burn_in, agent, rng)
    carry["valid"][-1] = carry["first"][-1] = True
    for _ in range(blocks):
        block = Block.allocate(layout)
        block.begin_with(carry)
        fields = block.fields
        for t in range(records.burn_in, layout.rows - 1):
            block.record_state(records.state.names, t)
            block.answer(policy.act(block.inputs(inputs, t)), t)
            ends = (rng.random((2, lanes)) < end / 2) & fields["valid"][t]
            fields["terminated"][t], fields["truncated"][t] = ends
            fields["reward"][t] = reward(block.inputs(shown, t)[shown[0]], fields["action"][t])
            _show(block, t + 1, agent, rng)
            fields["valid"][t + 1] = ~ends.any(axis=0)
            fields["first"][t + 1] = ~fields["valid"][t]
        carry.continue_from(block)
        batches.append(fields)
    return batches


def _show(block: Block, t: int, agent: AgentSpec, rng: np.random.Generator) -> None:
    """Write random observations into row `t`."""
    for seen in (*agent.observations, *agent.central):
        row = block.row([seen.name], t)[seen.name]
        if row.dtype.kind == "f":
            row[...] = rng.normal(size=row.shape)
        else:
            row[...] = rng.integers(2 if row.dtype.kind == "b" else 256, size=row.shape)
        if seen is agent.action_mask:
            row[..., 0] = True
    block.fields["acting"][t] = True
