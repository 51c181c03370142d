"""The policy of every actor-critic algorithm, and the options of its network.

Recorded in every row: `action`, `log_prob` and `value`; with a memory also its state, where each
training chunk starts.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from srl.core.algorithm import NamedPolicy, Records
from srl.core.compute import Compute
from srl.core.env import AgentSpec
from srl.core.errors import ConfigError
from srl.core.options import check_one_of, check_options
from srl.core.spec import Field, Spec
from srl.nets.actor_critic import ActorCritic
from srl.nets.mlp import Activation
from srl.nets.policy import NetworkPolicy
from srl.nets.recurrent import memory_state
from srl.nets.small import small_actor_critic
from srl.ops.distributions import Distribution, draw_noise

MemoryOption = Literal["none", "lstm", "gru"]


@dataclass(frozen=True, kw_only=True)
class ActorCriticConfig:
    """Options of an actor-critic; those of an algorithm are added to them."""

    rollout: int = 128
    """Steps of each lane in a block."""
    batch_size: int = 4096
    """Steps, over all lanes, learned from at a time; a multiple of rollout."""
    normalise_observations: bool = False
    """Scale observations (but not images and categories) by their running mean and variance."""
    normalise_returns: bool = False
    """Learn values of returns scaled by their running mean and variance (PopArt)."""
    network: str | None = None
    """Your own encoder of observations, module:Object or file.py:Object; None: by their shapes."""
    hidden: tuple[int, ...] = (64, 64)
    """Layer sizes of actor and critic, each its own; encoder and memory before are shared."""
    activation: Activation = "tanh"
    """Nonlinearity of these layers."""
    initial_std: float = 1.0
    """Standard deviation of real actions to begin with; it is learned."""
    memory: MemoryOption = "none"
    """A recurrent layer after the encoder."""
    memory_size: int = 64
    """Numbers it remembers."""
    chunk: int = 16
    """With a memory: rows over which gradients flow back; rollout is a multiple of it."""
    burn_in: int = 0
    """With a memory: rows before each chunk that bring it up to date with the newest weights."""
    central_value: bool = False
    """Show the critic what the env shares about all agents, too."""

    def __post_init__(self) -> None:
        at_least_one = ("rollout", "batch_size", "memory_size", "chunk")
        check_options(self, ">= 1", lambda x: x >= 1, *at_least_one)
        check_options(self, "> 0", lambda x: x > 0, "initial_std")
        check_options(self, ">= 0", lambda x: x >= 0, "burn_in")
        check_options(self, "sizes >= 1", lambda sizes: all(n >= 1 for n in sizes), "hidden")
        check_one_of(self, get_args(Activation), "activation")
        check_one_of(self, get_args(MemoryOption), "memory")
        multiple = f"a multiple of algorithm.rollout ({self.rollout})"
        check_options(self, multiple, lambda x: x % self.rollout == 0, "batch_size")
        if self.memory == "none":
            check_options(self, "0 without algorithm.memory", lambda x: x == 0, "burn_in")
        else:
            divisor = f"a divisor of algorithm.rollout ({self.rollout})"
            check_options(self, divisor, lambda x: self.rollout % x == 0, "chunk")

    def records(self, agent: AgentSpec) -> Records:
        """Action, its log-probability and the state value; the state of the memory."""
        if not agent.observations:
            raise ConfigError("an actor-critic needs an agent that observes something")
        if self.central_value and not agent.central:
            raise ConfigError(
                "algorithm.central_value needs an env that shares something about all agents"
            )
        numbers = (Field("log_prob", (), "float32"), Field("value", (), "float32"))
        outputs = Spec((agent.action.field, *numbers))
        if self.memory == "none":
            return Records(outputs)
        state = memory_state(self.memory, self.memory_size)
        return Records(outputs, state, self.chunk, self.burn_in)

    def make_network(self, agent: AgentSpec, compute: Compute) -> ActorCritic:
        """A network with fresh weights, by torch's default generator."""
        return ActorCritic(
            agent,
            network=self.network,
            hidden=self.hidden,
            activation=self.activation,
            std=self.initial_std,
            memory=None if self.memory == "none" else self.memory,
            memory_size=self.memory_size,
            central=self.central_value,
            normalise_observations=self.normalise_observations,
            normalise_returns=self.normalise_returns,
            compute=compute,
        )

    def make_policy(self, agent: AgentSpec, *, seed: int, compute: Compute) -> "ActorCriticPolicy":
        """A policy with fresh weights."""
        return ActorCriticPolicy(self, agent, seed=seed, compute=compute)

    def small_policy(self, agent: AgentSpec) -> NamedPolicy | None:
        """The same policy without torch; None where it sees images, remembers, or is large."""
        if self.network is not None or self.memory != "none" or self.central_value:
            return None
        return small_actor_critic(
            agent,
            hidden=self.hidden,
            activation=self.activation,
            normalise_observations=self.normalise_observations,
            normalise_returns=self.normalise_returns,
        )


class ActorCriticPolicy(NetworkPolicy[ActorCritic]):
    """An actor-critic network and the generator it samples with."""

    def __init__(
        self, config: ActorCriticConfig, agent: AgentSpec, *, seed: int, compute: Compute
    ) -> None:
        def make_network() -> ActorCritic:
            return config.make_network(agent, compute)

        super().__init__(make_network, agent, config.records(agent), seed=seed, compute=compute)

    def _draw(self, num_lanes: int) -> dict[str, Tensor]:
        return {"noise": draw_noise(self.action, num_lanes, self.generator)}

    def _sample(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        distribution, value, state = self.network(*self.observed(inputs))
        return self._answer(distribution, distribution.sample(inputs["noise"]), value, state)

    def _take_best(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        distribution, value, state = self.network(*self.observed(inputs))
        return self._answer(distribution, distribution.mode(), value, state)

    def _answer(
        self, distribution: Distribution, action: Tensor, value: Tensor, state: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        return {
            "action": action,
            "log_prob": distribution.log_prob(action),
            "value": self.network.denormalise_value(value),
            **state,
        }
