"""A policy and a value function over the same observations. `N`, `M`: rows."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from srl.core.env import AgentSpec
from srl.nets.encoder import Encoder
from srl.nets.heads import ValueHead, make_policy_head
from srl.nets.mlp import Activation, Mlp
from srl.nets.normaliser import Normaliser
from srl.ops.distributions import Distribution
from srl.ops.normalise import rescale_output


class ActorCritic(nn.Module):
    """One body for the actor, one for the critic; the CNN before them, if any, is shared."""

    def __init__(
        self,
        agent: AgentSpec,
        *,
        hidden: tuple[int, ...],
        activation: Activation,
        normalise_observations: bool,
        normalise_returns: bool,
    ) -> None:
        super().__init__()
        self.encoder = Encoder(agent.observations, normalise=normalise_observations)
        self.actor = Mlp(self.encoder.num_features, hidden, activation)
        self.critic = Mlp(self.encoder.num_features, hidden, activation)
        self.policy_head = make_policy_head(self.actor.num_features, agent.action)
        self.value_head = ValueHead(self.critic.num_features)
        self.returns = Normaliser(()) if normalise_returns else None

    def forward(self, obs: Mapping[str, Tensor]) -> tuple[Distribution, Tensor]:
        """Distribution of the actions, and values `[N]` in the units of `normalise_value`."""
        features = self.encoder(obs)
        return self.policy_head(self.actor(features)), self.value_head(self.critic(features))

    def value(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Values `[N]` in units of reward."""
        return self.denormalise_value(self.value_head(self.critic(self.encoder(obs))))

    def normalise_value(self, value: Tensor) -> Tensor:
        """From units of reward to what the critic predicts."""
        return value if self.returns is None else self.returns.normalise(value)

    def denormalise_value(self, value: Tensor) -> Tensor:
        """From what the critic predicts to units of reward."""
        return value if self.returns is None else self.returns.denormalise(value)

    @torch.no_grad()
    def update_normalisers(self, obs: Mapping[str, Tensor], returns: Tensor) -> None:
        """Count in rows `[M, ...]`; values, in units of reward, stay what they are."""
        self.encoder.update_normalisers(obs)
        if self.returns is None:
            return
        old = self.returns.mean.clone(), self.returns.std
        self.returns.update(returns)
        layer, new = self.value_head.value, (self.returns.mean, self.returns.std)
        weight, bias = rescale_output(layer.weight, layer.bias, old, new)
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
