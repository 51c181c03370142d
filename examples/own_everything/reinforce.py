"""REINFORCE with a baseline (Williams 1992, https://doi.org/10.1007/BF00992696).

Loss of a batch, over its valid rows:   − mean (R − V(s)) · log π(a|s)  +  ½ mean (V(s) − R)²

where R is the discounted return to the end of the episode, or to the end of the block plus V of
the observation after it. Recorded in every row: `action`. One gradient step a batch, on-policy:
use it with `max_staleness=0`. Axes: `T` rows in time, `B` lanes, `N` lanes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from srl.core.algorithm import Records
from srl.core.arrays import Arrays
from srl.core.collective import Collective
from srl.core.compute import Compute
from srl.core.env import AgentSpec, Discrete
from srl.core.errors import ConfigError
from srl.core.spec import Spec
from srl.nets.optimiser import Adam
from srl.nets.tensors import array_of, load_arrays
from srl.ops.returns import generalised_advantages


@dataclass(frozen=True, kw_only=True)
class ReinforceConfig:
    """Options of REINFORCE; each is on the command line too: `--algorithm.hidden 64`."""

    rollout: int = 8
    """Steps of each lane in a block."""
    batch_size: int = 256
    """Steps, over all lanes, learned from at a time."""
    learning_rate: float = 3e-2
    """Step size of Adam."""
    discount: float = 0.99
    """Discount of one step (γ)."""
    hidden: int = 32
    """Size of the hidden layer."""

    def records(self, agent: AgentSpec) -> Records:
        """The action, and nothing else."""
        if not isinstance(agent.action, Discrete) or agent.observation_names != ("obs",):
            raise ConfigError("reinforce needs one observation array and a Discrete action")
        return Records(Spec((agent.action.field,)))

    def make_policy(self, agent: AgentSpec, *, seed: int, compute: Compute) -> "ReinforcePolicy":
        """A policy with fresh weights; small enough for the CPU, whatever `compute` says."""
        return ReinforcePolicy(self, agent, seed)

    def make_learner(
        self, agent: AgentSpec, *, seed: int, compute: Compute, ranks: Collective
    ) -> "Reinforce":
        """A learner with fresh weights."""
        if ranks.size > 1:
            raise ConfigError("reinforce learns with one trainer")
        return Reinforce(self, agent, seed)


class ReinforcePolicy:
    """One network for logits and value, and the generator it samples with."""

    def __init__(self, config: ReinforceConfig, agent: AgentSpec, seed: int) -> None:
        self.records = config.records(agent)
        self._generator = torch.Generator().manual_seed(seed)
        num_inputs, num_actions = agent.observations[0].shape[0], getattr(agent.action, "n", 0)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            body = nn.Linear(num_inputs, config.hidden)
            head = nn.Linear(config.hidden, num_actions + 1)
        self.network = nn.Sequential(body, nn.Tanh(), head)
        self.tensors: dict[str, Tensor] = self.network.state_dict(keep_vars=True)

    def evaluate(self, obs: np.ndarray) -> tuple[Categorical, Tensor]:
        """Distribution of the actions and values, both `[..., N]`, of `obs` `[..., N, D]`."""
        outputs = self.network(torch.tensor(obs))
        return Categorical(logits=outputs[..., :-1], validate_args=False), outputs[..., -1]

    @torch.inference_mode()
    def act(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Sample actions for N lanes."""
        probabilities = self.evaluate(inputs["obs"])[0].probs
        chosen = torch.multinomial(probabilities, 1, generator=self._generator)
        return {"action": array_of(chosen.squeeze(-1))}

    @torch.inference_mode()
    def act_greedy(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Take the most likely actions for N lanes."""
        return {"action": array_of(self.evaluate(inputs["obs"])[0].mode)}

    def weights(self) -> Arrays:
        """Views of the parameters in use."""
        return {name: array_of(tensor) for name, tensor in self.tensors.items()}

    def load_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Take over weights."""
        load_arrays(self.tensors, weights)

    def save(self) -> Arrays:
        """State of the sampling generator."""
        return {"generator": array_of(self._generator.get_state())}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `save` returned."""
        self._generator.set_state(torch.tensor(state["generator"]))


class Reinforce:
    """Learns a ReinforcePolicy, batch by batch."""

    def __init__(self, config: ReinforceConfig, agent: AgentSpec, seed: int) -> None:
        self.policy = ReinforcePolicy(config, agent, seed)
        self.updates = 0
        self._discount = config.discount
        self._learning_rate = config.learning_rate
        self._adam = Adam(self.policy.network, epsilon=1e-8)
        moments = {f"adam/{name}": x for name, x in self._adam.tensors.items()}
        self._tensors = self.policy.tensors | moments

    def learn(self, batch: Mapping[str, np.ndarray], progress: float) -> dict[str, float]:
        """One gradient step."""
        mask = torch.tensor(batch["valid"][:-1] & batch["acting"][:-1])
        distribution, value = self.policy.evaluate(batch["obs"])
        advantages, known = generalised_advantages(  # with λ = 1: R − V(s), [T, B]
            batch["reward"][:-1],
            array_of(value),
            batch["terminated"][:-1],
            batch["truncated"][:-1],
            valid=batch["valid"],
            acting=batch["acting"],
            gamma=self._discount,
            gae_lambda=1.0,
        )
        mask = torch.tensor(known)
        advantage = torch.tensor(advantages)[mask]
        log_prob = distribution.log_prob(torch.tensor(batch["action"]))[:-1][mask]
        policy_loss = -(advantage * log_prob).mean()
        target = advantage + value[:-1][mask].detach()
        value_loss = 0.5 * (value[:-1][mask] - target).square().mean()
        self._adam.zero_grad()
        (policy_loss + value_loss).backward()
        self._adam.step(self._learning_rate)
        self.updates += 1
        losses = {"policy_loss": policy_loss.item(), "value_loss": value_loss.item()}
        return losses | {"train_samples": float(mask.sum())}

    def save(self) -> Arrays:
        """Weights, Adam's moments, counter and random generator, as copies."""
        state = {name: array_of(tensor).copy() for name, tensor in self._tensors.items()}
        return state | self.policy.save() | {"updates": np.array(self.updates)}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `save` returned."""
        own = dict(state)
        self.policy.load({"generator": own.pop("generator")})
        self.updates = int(own.pop("updates"))
        load_arrays(self._tensors, own)
