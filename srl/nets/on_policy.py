"""How on-policy algorithms learn: each batch once, in passes over shuffled minibatches.

A batch is learned in chunks of `K` rows in time: one row without a memory, `chunk` rows with one,
over which gradients flow back, after a burn-in that only brings the memory up to date. Several
trainers learn one batch together: each its share of every minibatch, and every sum is over all.

An algorithm says the loss of a minibatch (`loss`) and, where these are not generalised advantages, what it
estimates of a batch (`_estimate`).

Axes: `T` rows in time, `B` lanes, `Q` chunks of a batch, `m` chunks and `M` = `K·m` rows of a
minibatch.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Generic, NamedTuple, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor, nn

from srl.core.collective import Collective
from srl.core.compute import Compute
from srl.core.env import AgentSpec
from srl.core.options import check_one_of, check_options
from srl.nets.actor_critic import ActorCritic
from srl.nets.actor_critic_policy import ActorCriticConfig, ActorCriticPolicy
from srl.nets.chunks import Chunks
from srl.nets.graphs import GraphedByShape
from srl.nets.learner import NetworkLearner
from srl.nets.optimiser import Adam
from srl.nets.tensors import array_of, tensor_of
from srl.ops.distributions import Distribution
from srl.ops.normalise import moments_of, normalise
from srl.ops.returns import generalised_advantages
from srl.ops.schedules import Schedule, scheduled
from srl.ops.vtrace import vtrace


@dataclass(frozen=True, kw_only=True)
class OnPolicyConfig(ActorCriticConfig):
    """Options of learning that on-policy algorithms share."""

    minibatch_size: int = 1024
    """Most rows in an optimiser step."""
    learning_rate: float = 3e-4
    """Step size of Adam."""
    learning_rate_schedule: Schedule = "constant"
    """Whether the step size stays, or falls to 0 over the run."""
    discount: float = 0.99
    """Discount of one step (γ)."""
    gae_lambda: float = 0.95
    """Advantages: 0 trusts the value function, 1 the observed return (λ)."""
    entropy_weight: float = 0.01
    """Weight of the entropy bonus."""
    value_weight: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float = 0.5
    """Longer gradients are scaled down to this norm."""
    normalise_advantages: bool = True
    """Scale the advantages of each batch to mean 0 and variance 1."""
    adam_epsilon: float = 1e-5
    """Adam's ε."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive = ("learning_rate", "max_grad_norm", "adam_epsilon")
        check_options(self, ">= 1", lambda x: x >= 1, "minibatch_size")
        check_options(self, "> 0", lambda x: x > 0, *positive)
        check_options(self, ">= 0", lambda x: x >= 0, "entropy_weight", "value_weight")
        check_options(self, "in 0..1", lambda x: 0 <= x <= 1, "discount", "gae_lambda")
        check_one_of(self, get_args(Schedule), "learning_rate_schedule")


class Estimate(NamedTuple):
    """What an algorithm estimates of a batch, `[T, B]` each."""

    advantage: np.ndarray
    target: np.ndarray
    """Of the values, in units of reward."""
    value: np.ndarray
    """What was taken for them, in these units: with V-trace, target − value is not the advantage."""
    known: np.ndarray
    """bool: the row is learned from."""
    more: Mapping[str, np.ndarray] = {}
    """What else its loss needs of a row."""


@dataclass(frozen=True)
class Rows:
    """Rows to learn from."""

    fields: dict[str, Tensor]
    """Each `[T·B, ...]`; value and target as the critic predicts them."""
    mask: Tensor
    """`[T·B]` bool: the row is learned from."""
    chunks: Tensor
    """`[m]`: those with such a row."""

    def select(self, chunks: Chunks, index: Tensor, size: int | None) -> "Minibatch":
        """The chunks of `index`, `[m]`; of `size`, where given, as the first is repeated, masked."""
        num_chunks = len(index)
        index = padded(index, size)
        rows = chunks.rows(index)
        mask = None
        if size is not None or chunks.length > 1:
            mask = self.mask.index_select(0, rows)
            mask.view(chunks.length, -1)[:, num_chunks:] = False
        fields = {name: x.index_select(0, rows) for name, x in self.fields.items()}
        return Minibatch(*chunks.read(index), fields, mask)


class Minibatch(NamedTuple):
    """Chunks to learn from."""

    obs: dict[str, Tensor]
    """Of burn-in and chunk, each `[(burn_in + K)·m, *shape]`."""
    first: Tensor
    """`[burn_in + K, m]`"""
    state: dict[str, Tensor]
    """Of the memory before the burn-in, each `[m, *shape]`."""
    fields: dict[str, Tensor]
    """What is learned of each row: `action`, the recorded `log_prob` and `value`, `advantage`,
    `target` and what the algorithm's estimate has more, each `[M, ...]`."""
    mask: Tensor | None
    """`[M]`: which rows count; None: all."""


def padded(index: Tensor, size: int | None) -> Tensor:
    """`index`, `[m]`, made `[size]` by repeating its first; as it is where there is no size."""
    return index if size is None else torch.cat([index, index[:1].expand(size - len(index))])


Settings = dict[str, Tensor]
"""Numbers that change from batch to batch, `[]` each: `learning_rate` and an algorithm's own."""
Loss = Callable[[Minibatch, Settings, Tensor], tuple[Tensor, dict[str, Tensor]]]
"""Of this rank's rows of a minibatch, the settings, and the count of rows over all ranks: its part
of the loss, and of what is to be reported, all `[]`."""
Descend = Callable[[Minibatch | None, Tensor, Settings], Tensor]
"""Takes one step of the optimiser; returns what was measured, and the norm of the gradient last."""
ConfigT = TypeVar("ConfigT", bound=OnPolicyConfig)


class OnPolicyLearner(NetworkLearner[ActorCriticPolicy], Generic[ConfigT]):
    """Learns an ActorCriticPolicy, batch by batch."""

    measured: ClassVar[tuple[str, ...]]
    """What `loss` reports; it includes `log_prob_drift`, |Δ log_prob| since the action was taken."""

    def __init__(
        self,
        config: ConfigT,
        agent: AgentSpec,
        *,
        seed: int,
        compute: Compute,
        ranks: Collective,
        epochs: int = 1,
        target_kl: float | None = None,
    ) -> None:
        """Make a learner that passes over each batch `epochs` times.

        With `target_kl`, fewer times where the `approx_kl` that was measured exceeds it.
        """
        policy = ActorCriticPolicy(config, agent, seed=seed, compute=compute)
        super().__init__(policy, seed=seed, ranks=ranks)
        self.config = config
        self._agent = agent
        self._epochs, self._target_kl = epochs, target_kl
        self._adam = Adam(self._trained(), epsilon=config.adam_epsilon)
        self.keep(adam=self._adam.tensors)
        self._most_chunks = -(-config.minibatch_size // policy.records.chunk)
        """Of a minibatch."""
        self._size: int | None = None
        """Chunks of every minibatch, where they must be equally many."""
        if compute.compile:
            self.policy.network.compile()
        on_gpu = self.policy.device.type == "cuda"
        self._is_graph = on_gpu and config.memory == "none" and ranks.size == 1
        if self._is_graph or compute.compile:
            self._size = self._most_chunks
        self._descend = self._descending(self.loss, self.measured)

    def _trained(self) -> nn.Module:
        """What the optimiser changes."""
        return self.policy.network

    def _estimate(self, chunks: Chunks, batch: Mapping[str, np.ndarray]) -> Estimate:
        """Generalised advantages, and returns."""
        advantages, known = self._advantages(chunks, batch)
        value = chunks.learned(batch["value"])
        return Estimate(advantages, advantages + value, value, known)

    @abstractmethod
    def loss(
        self, rows: Minibatch, settings: Settings, count: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """This rank's part of the loss of a minibatch of `count` rows, and what is `measured`."""

    def _shown(self, rows: Minibatch) -> tuple[Distribution, Tensor]:
        """Of the M rows: the distribution of their actions, and values as the critic predicts."""
        burn_in = self.policy.records.burn_in
        distribution, value, _ = self.policy.network(rows.obs, rows.first, rows.state, burn_in)
        return distribution, value

    def settings(self, progress: float) -> dict[str, float]:
        """Numbers of the loss that follow a schedule."""
        config = self.config
        rate = scheduled(config.learning_rate, config.learning_rate_schedule, progress)
        return {"learning_rate": rate}

    def learn(self, batch: Mapping[str, np.ndarray], progress: float) -> dict[str, float]:
        """Learn one batch; losses and KL reported are those of the last epoch done."""
        chunks = Chunks(batch, self._agent, self.policy.records, self.policy.device)
        return self._learn(chunks, batch, self._estimate(chunks, batch), progress)

    def _learn(
        self,
        chunks: Chunks,
        batch: Mapping[str, np.ndarray],
        estimate: Estimate,
        progress: float,
    ) -> dict[str, float]:
        """Learn one batch by what was estimated of it."""
        config, device = self.config, self.policy.device
        values = self.settings(progress)
        metrics = {"learning_rate": values["learning_rate"], "train_samples": 0.0}
        advantages, known = estimate.advantage, estimate.known
        learned = tensor_of(estimate.target[known], device)
        moments = moments_of(tensor_of(advantages[known], device), self.ranks.sum_)
        num_rows = int(moments[0])
        if not num_rows:
            return metrics
        metrics["explained_variance"] = self._explained_variance(estimate)
        if config.normalise_advantages:
            advantages = normalise(advantages, moments)
        rows = self._rows(chunks, batch, estimate._replace(advantage=advantages))
        settings = {name: torch.tensor(x, device=device) for name, x in values.items()}
        tables: list[Tensor] = []
        for _ in range(self._epochs):
            tables.append(self._learn_epoch(self._descend, rows, chunks, num_rows, settings))
            metrics["train_samples"] += num_rows
            if self._target_kl is not None and self._mean_kl(tables[-1]) > self._target_kl:
                break
        # Only now: this batch had to be learned with the statistics it was recorded with.
        burned = self.policy.records.burn_in * chunks.num_lanes
        counted = tensor_of(np.flatnonzero(known) + burned, device)
        seen = chunks.observe(counted, self.policy.network.normalised())
        self.policy.network.update_normalisers(seen, learned, self.ranks.sum_)
        # These wait for all that was asked of a GPU: the batch is not read any more.
        names = (*self.measured, "grad_norm")
        metrics |= dict(zip(names, tables[-1].mean(0).tolist(), strict=True))
        metrics["log_prob_drift"] = float(tables[0][0, names.index("log_prob_drift")])
        return metrics

    def _advantages(
        self, chunks: Chunks, batch: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """`[T, B]` each: advantages by recorded values, and the rows that have one."""
        burn_in = self.policy.records.burn_in
        return generalised_advantages(
            chunks.learned(batch["reward"]),
            np.concatenate([chunks.learned(batch["value"]), self._last_value(chunks, batch)]),
            chunks.learned(batch["terminated"]),
            chunks.learned(batch["truncated"]),
            valid=batch["valid"][burn_in:],
            acting=batch["acting"][burn_in:],
            gamma=self.config.discount,
            gae_lambda=self.config.gae_lambda,
        )

    def _last_value(self, chunks: Chunks, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        """`[1, B]`: values of the row after the last, by the weights of now."""
        with torch.inference_mode():
            return array_of(self.policy.network.value(*chunks.last(batch)))[None]

    def _recompute(
        self, network: ActorCritic, chunks: Chunks, batch: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """`[T, B]` each: log-probabilities of recorded actions, and values, by the weights of now.

        Of all rows: final observations have values too.
        """
        device = self.policy.device
        recorded = chunks.learned(batch["action"])
        action = tensor_of(recorded.reshape(-1, *recorded.shape[2:]), device)
        found = torch.empty(2, len(action), device=device)
        with torch.no_grad():
            for part in torch.arange(chunks.num_chunks, device=device).split(self._most_chunks):
                index = padded(part, self._size)
                distribution, value, _ = network(*chunks.read(index), chunks.burn_in)
                rows = chunks.rows(index)  # the first chunk, repeated, gets the same again
                found[0, rows] = distribution.log_prob(action[rows])
                found[1, rows] = network.denormalise_value(value)
        log_prob, value = array_of(found).reshape(2, *recorded.shape[:2])
        return log_prob, value

    def _vtrace(
        self,
        chunks: Chunks,
        batch: Mapping[str, np.ndarray],
        log_prob: np.ndarray,
        value: np.ndarray,
        *,
        weight_clip: float,
        trace_clip: float,
    ) -> Estimate:
        """V-trace estimates of the policy that gives recorded actions `log_prob`, by its values.

        A row has one field more: `weight`, its ratio of probabilities, clipped.
        """
        behaviour, burn_in = chunks.learned(batch["log_prob"]), self.policy.records.burn_in
        # beyond, clips decide; rows that nobody acts on may be anywhere
        ratios = np.exp(np.clip(log_prob - behaviour, -20, 20))
        targets, advantages, known = vtrace(
            ratios,
            chunks.learned(batch["reward"]),
            np.concatenate([value, self._last_value(chunks, batch)]),
            chunks.learned(batch["terminated"]),
            chunks.learned(batch["truncated"]),
            valid=batch["valid"][burn_in:],
            acting=batch["acting"][burn_in:],
            gamma=self.config.discount,
            trace_lambda=self.config.gae_lambda,
            weight_clip=weight_clip,
            trace_clip=trace_clip,
        )
        weight = np.minimum(ratios, np.float32(weight_clip))
        return Estimate(advantages, targets, value, known, {"weight": weight})

    def _explained_variance(self, estimate: Estimate) -> float:
        """Share of the variance of the targets that the values explain, over all ranks."""
        target, value = estimate.target[estimate.known], estimate.value[estimate.known]
        both = torch.from_numpy(np.stack((target, target - value), axis=1)).to(self.policy.device)
        total, unexplained = moments_of(both, self.ranks.sum_)[2].tolist()
        return 1 - unexplained / total if total > 0 else 0.0

    def _mean_kl(self, table: Tensor) -> float:
        return float(table[:, self.measured.index("approx_kl")].mean())

    def _rows(self, chunks: Chunks, batch: Mapping[str, np.ndarray], estimate: Estimate) -> Rows:
        """All `T·B` rows of the batch, on the device."""

        def flat(array: np.ndarray) -> Tensor:
            return tensor_of(array.reshape(-1, *array.shape[2:]), self.policy.device)

        scaled = self.policy.network.normalise_value
        fields = {
            "action": flat(chunks.learned(batch["action"])),
            "log_prob": flat(chunks.learned(batch["log_prob"])),
            "value": scaled(flat(chunks.learned(batch["value"]))),
            "advantage": flat(estimate.advantage),
            "target": scaled(flat(estimate.target)),
        }
        fields |= {name: flat(array) for name, array in estimate.more.items()}
        return Rows(fields, flat(estimate.known), chunks.having(estimate.known))

    def _learn_epoch(
        self, descend: Descend, rows: Rows, chunks: Chunks, num_rows: int, settings: Settings
    ) -> Tensor:
        """One pass over the chunks, in minibatches of nearly equal sizes; what was measured of each.

        Minibatch i of the batch is what the minibatches i of all ranks hold together.
        """
        parts = self._deal(rows.chunks, -(-num_rows // self.config.minibatch_size))
        counts = torch.stack([rows.mask[chunks.rows(part)].sum() for part in parts]).double()
        self.ranks.sum_(counts)
        measured = []
        for part, count in zip(parts, counts.clamp(min=1).float(), strict=True):
            minibatch = rows.select(chunks, part, self._size) if len(part) else None
            measured.append(descend(minibatch, count, settings).clone())
            self.updates += 1
        table = torch.stack(measured)
        losses = table[:, :-1]  # the last is the norm of a gradient that is of all ranks already
        self.ranks.sum_(losses)
        return table

    def _descending(self, loss: Loss, measured: tuple[str, ...]) -> Descend:
        """What steps down a loss; as a CUDA graph where that can be."""
        step = partial(self._step, loss, measured)
        return GraphedByShape(step) if self._is_graph else step

    def _step(
        self,
        loss: Loss,
        measured: tuple[str, ...],
        rows: Minibatch | None,
        count: Tensor,
        settings: Settings,
    ) -> Tensor:
        """Learn this rank's part of a minibatch of `count` rows; None: it has none of them."""
        self._adam.zero_grad()
        metrics = dict.fromkeys(measured, torch.zeros((), device=count.device))
        if rows is not None:
            value, found = loss(rows, settings, count)
            value.backward()
            metrics |= found
        self.ranks.sum_(self._adam.gradient)
        norm = self._adam.clip(self.config.max_grad_norm)
        self._adam.step(settings["learning_rate"])
        return torch.stack([*(metrics[name] for name in measured), norm])

    def _deal(self, chunks: Tensor, num_parts: int) -> tuple[Tensor, ...]:
        """Chunks in random order, in `num_parts` parts; some are empty where there are too few."""
        order = torch.randperm(len(chunks), generator=self.generator).to(chunks.device)
        return chunks[order].tensor_split(num_parts)
