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
from srl.core.options import check_memory_options, check_one_of, check_options
from srl.core.spec import Field, Spec
from srl.nets.actor_critic import ActorCritic
from srl.nets.encoder import EncoderKind, EncoderOptions, check_encoder
from srl.nets.memory import MemoryOptions
from srl.nets.mlp import Activation
from srl.nets.policy import NetworkPolicy
from srl.nets.small import small_actor_critic
from srl.ops.distributions import Distribution, draw_noise

MemoryOption = Literal["none", "lstm", "gru", "gtrxl"]


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
    encoder: EncoderKind = "nature"
    """Images by Nature's network, a light one with a third of its work, or IMPALA's deeper resnet; entities:
    Nature's, and observations [n, d] are sets whose entities look at each other, those where NAME_mask
    [n] is 0 left out."""
    encoder_width: int = 1
    """With resnet: how many times its 16, 32 and 32 channels."""
    entity_size: int = 128
    """With entities: numbers each becomes; its features are twice as many."""
    entity_heads: int = 4
    """With entities: heads by which they look at each other; a divisor of their size."""
    hidden: tuple[int, ...] = (64, 64)
    """Layer sizes of actor and critic, each its own; encoder and memory before are shared."""
    activation: Activation = "tanh"
    """Nonlinearity of these layers."""
    initial_std: float = 1.0
    """Standard deviation of real actions to begin with; it is learned."""
    memory: MemoryOption = "none"
    """After the encoder: a recurrent layer, or a transformer that looks back (gtrxl)."""
    memory_size: int = 64
    """Numbers it remembers; gtrxl: of each row and layer."""
    memory_length: int = 32
    """With gtrxl: rows it looks back."""
    memory_layers: int = 2
    """With gtrxl: its layers."""
    memory_heads: int = 4
    """With gtrxl: heads of each layer; a divisor of the memory's size."""
    chunk: int = 16
    """With a memory: rows over which gradients flow back; rollout is a multiple of it."""
    burn_in: int = 0
    """With a memory: rows before each chunk that bring it up to date with the newest weights."""
    central_value: bool = False
    """Show the critic what the env shares about all agents, too."""

    def __post_init__(self) -> None:
        counts = ("rollout", "batch_size", "encoder_width", "entity_size", "entity_heads", "chunk")
        parts = ("memory_size", "memory_length", "memory_layers", "memory_heads")
        check_options(self, ">= 1", lambda x: x >= 1, *counts, *parts)
        check_options(self, "> 0", lambda x: x > 0, "initial_std")
        check_options(self, ">= 0", lambda x: x >= 0, "burn_in")
        check_options(self, "sizes >= 1", lambda sizes: all(n >= 1 for n in sizes), "hidden")
        check_one_of(self, get_args(Activation), "activation")
        check_one_of(self, get_args(MemoryOption), "memory")
        check_one_of(self, get_args(EncoderKind), "encoder")
        if self.network is not None:
            check_options(self, "nature with algorithm.network", lambda x: x == "nature", "encoder")
        for kind, of in (("entities", "entity"), ("gtrxl", "memory")):
            if kind in (self.encoder, self.memory):
                size = getattr(self, f"{of}_size")
                divisor = f"a divisor of algorithm.{of}_size ({size})"
                check_options(self, divisor, lambda x, n=size: n % x == 0, f"{of}_heads")
        multiple = f"a multiple of algorithm.rollout ({self.rollout})"
        check_options(self, multiple, lambda x: x % self.rollout == 0, "batch_size")
        check_memory_options(self, get_args(MemoryOption), "burn_in", "chunk", *parts)
        if self.memory != "none":
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
        check_encoder((*agent.observations, *agent.central), self.encoder)
        numbers = (Field("log_prob", (), "float32"), Field("value", (), "float32"))
        outputs = Spec((agent.action.field, *numbers))
        memory = self._memory()
        if memory is None:
            return Records(outputs)
        return Records(outputs, memory.state, self.chunk, self.burn_in)

    def _memory(self) -> MemoryOptions | None:
        if self.memory == "none":
            return None
        return MemoryOptions(
            kind=self.memory,
            size=self.memory_size,
            layers=self.memory_layers,
            heads=self.memory_heads,
            length=self.memory_length,
        )

    def make_network(self, agent: AgentSpec, compute: Compute) -> ActorCritic:
        """A network with fresh weights, by torch's default generator."""
        return ActorCritic(
            agent,
            network=self.network,
            encoder=EncoderOptions(
                kind=self.encoder,
                width=self.encoder_width,
                entity_size=self.entity_size,
                entity_heads=self.entity_heads,
            ),
            hidden=self.hidden,
            activation=self.activation,
            std=self.initial_std,
            memory=self._memory(),
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
        if self.network is not None or self.encoder != "nature":
            return None
        if self.memory != "none" or self.central_value:
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
