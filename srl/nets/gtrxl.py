"""A transformer as memory: GTrXL (Parisotto et al. 2019, https://arxiv.org/abs/1910.06764).

Each layer looks at its own inputs of the last `length` rows, and of this one, which are also what is
remembered. As in the paper: layers are normalised first, so that what is not looked at passes them as
it is; what they add passes gates that begin almost closed; and rows are told apart by how long ago
they were, which each layer weighs anew (Dai et al. 2019).

Axes: `K` rows in time, `N` sequences, `D` features, `H` size, `P` rows remembered (the length),
`S` = `P + K` rows that are seen.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from srl.core.errors import SpecError
from srl.core.spec import Field, Spec
from srl.nets.attention import attention_weights, merge_heads, orthogonal, split_heads
from srl.nets.mlp import Linear

ROWS, COUNT = "state.rows", "state.count"
GATE_BIAS = 2.0
"""How far the gates are closed to begin with: they let 12 % pass."""
WIDEN = 4
"""How many times as wide as a layer its two fully connected ones are between them."""
LONGEST_WAVE = 10_000.0


def gtrxl_state(size: int, layers: int, length: int) -> Spec:
    """The state of one lane: inputs of each layer, newest last, and how many are of this episode."""
    rows = Field(ROWS, (layers, length, size), "float32", "chunk")
    return Spec((rows, Field(COUNT, (), "int32", "chunk")))


class GatedTransformer(nn.Module):
    """A memory that looks back, and forgets where an episode begins."""

    distances: Tensor

    def __init__(self, num_inputs: int, size: int, *, layers: int, heads: int, length: int) -> None:
        super().__init__()
        self.num_features = size
        self.length = length
        self.names = gtrxl_state(size, layers, length).names
        self.embedding = Linear(num_inputs, size, 1.0)
        self.layers = nn.ModuleList(_Layer(size, heads) for _ in range(layers))
        self.register_buffer("distances", waves(length + 1, size), persistent=False)

    def forward(
        self, x: Tensor, first: Tensor, state: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Run over the sequences, all rows at once.

        Args:
            x: `[K, N, D]`.
            first: `[K, N]` bool; what came before such a row is not remembered there.
            state: as `gtrxl_state` has it, each `[N, *shape]`, after the row before row 0.

        Returns:
            Features `[K, N, H]`, and the state after the last row.
        """
        if len(x) != len(first):
            raise SpecError(f"{len(x)} rows of features, but {len(first)} of `first`")
        visible = visible_rows(first, state[COUNT], self.length)
        ages = ages_of(len(first), self.length, x.device)
        rows = self.embedding(x.transpose(0, 1).flatten(0, 1)).unflatten(0, (x.shape[1], len(x)))
        after = []
        for number, layer in enumerate(self.layers):
            seen = torch.cat([state[ROWS][:, number], rows], 1)
            after.append(seen[:, len(x) :])
            rows = layer(rows, seen, self.distances, ages, visible)
        # what the last row sees, itself and at most `length` others, is what the next one may see
        count = visible[:, -1].sum(-1).clamp(max=self.length)
        latest = {ROWS: torch.stack(after, 1), COUNT: count.to(state[COUNT].dtype)}
        return rows.transpose(0, 1), latest


def ages_of(num_rows: int, length: int, device: torch.device) -> Tensor:
    """`[K, S]`: how many rows before each of `K` rows each of those seen is; below 0: after it."""
    seen = torch.arange(-length, num_rows, device=device)
    return torch.arange(num_rows, device=device)[:, None] - seen


def visible_rows(first: Tensor, count: Tensor, length: int) -> Tensor:
    """Which rows each row may look at: of its own episode, not later, not more than `length` before.

    Args:
        first: `[K, N]` bool: an episode begins.
        count: `[N]`: how many of the rows remembered, the newest, are of the episode before row 0.
        length: rows remembered.

    Returns:
        `[N, K, S]` bool.
    """
    ages = ages_of(len(first), length, first.device)
    episode = first.cumsum(0).T
    is_kept = torch.arange(length, 0, -1, device=first.device) <= count[:, None]
    seen = torch.cat([is_kept.to(episode.dtype) - 1, episode], 1)  # -1: of none
    return (episode[:, :, None] == seen[:, None]) & (ages >= 0) & (ages <= length)


def waves(num_ages: int, size: int) -> Tensor:
    """`[num_ages, size]`: sines and cosines of each age, of ever longer waves."""
    half = -(-size // 2)
    rates = LONGEST_WAVE ** (-torch.arange(half) / half)
    angles = torch.arange(num_ages)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], 1)[:, :size]


class _Layer(nn.Module):
    """Attention, then two fully connected layers; each after a norm and before a gate."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.attention_norm, self.wide_norm = nn.LayerNorm(size), nn.LayerNorm(size)
        self.attention = _RelativeAttention(size, heads)
        self.wide = Linear(size, WIDEN * size, math.sqrt(2))
        self.narrow = Linear(WIDEN * size, size, math.sqrt(2))
        self.attention_gate, self.wide_gate = Gate(size), Gate(size)

    def forward(
        self, rows: Tensor, seen: Tensor, distances: Tensor, ages: Tensor, visible: Tensor
    ) -> Tensor:
        """Rows `[N, K, H]` that look at those `seen`, `[N, S, H]`, to `[N, K, H]`."""
        looked = self.attention(self.attention_norm(seen), distances, ages, visible)
        flat = self.attention_gate(rows.flatten(0, 1), looked.flatten(0, 1).relu())
        thought = self.narrow(self.wide(self.wide_norm(flat)).relu())
        return self.wide_gate(flat, thought.relu()).view_as(rows)


class _RelativeAttention(nn.Module):
    """Attention by what rows hold and by how long ago they were (Dai et al. 2019, section 3.3)."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (orthogonal(size, size) for _ in range(3))
        self.distance, self.output = orthogonal(size, size), orthogonal(size, size)
        self.content_bias = nn.Parameter(torch.zeros(size))
        self.distance_bias = nn.Parameter(torch.zeros(size))

    def forward(self, seen: Tensor, distances: Tensor, ages: Tensor, visible: Tensor) -> Tensor:
        """The last `K` of the rows `seen`, `[N, S, H]`, look at all of them: `[N, K, H]`.

        `distances` are `[P + 1, H]`, `ages` `[K, S]`, `visible` `[N, K, S]`.
        """
        query = seen[:, -len(ages) :] @ self.query
        by_content = split_heads(query + self.content_bias, self.heads)
        by_distance = split_heads(query + self.distance_bias, self.heads)
        distance = split_heads(distances @ self.distance, self.heads)
        of_ages = by_distance @ distance.transpose(-2, -1)  # [N, h, K, P + 1]
        index = ages.clamp(0, len(distances) - 1).expand(*of_ages.shape[:2], -1, -1)
        scores = self._by_keys(by_content, seen) + of_ages.gather(-1, index)
        weights = attention_weights(scores, by_content.shape[-1], visible[:, None])
        return merge_heads(self._of_values(weights, seen)) @ self.output

    def _by_keys(self, query: Tensor, seen: Tensor) -> Tensor:
        """Each query, `[N, h, K, d]`, times the keys of the rows `seen`: `[N, h, K, S]`."""
        if not self._is_few(query):
            return query @ split_heads(seen @ self.key, self.heads).transpose(-2, -1)
        turned = torch.einsum("nhkd,hxd->nhkx", query, split_heads(self.key, self.heads))
        scores = turned.flatten(1, 2) @ seen.transpose(1, 2)
        return scores.unflatten(1, query.shape[1:3])

    def _of_values(self, weights: Tensor, seen: Tensor) -> Tensor:
        """The values of the rows `seen` by their weights, `[N, h, K, S]`: `[N, h, K, d]`."""
        if not self._is_few(weights):
            return weights @ split_heads(seen @ self.value, self.heads)
        sums = (weights.flatten(1, 2) @ seen).unflatten(1, weights.shape[1:3])
        return torch.einsum("nhkx,hxd->nhkd", sums, split_heads(self.value, self.heads))

    def _is_few(self, rows: Tensor) -> bool:
        """Whether so few rows look, as when acting, that turning what they ask is cheaper.

        That is, than turning every row they see into a key and a value: the product is the same.
        """
        return rows.shape[1] * rows.shape[2] < len(self.key)


class Gate(nn.Module):
    """A GRU's way from x to y: x almost as it is to begin with (the paper's equations 10 to 12)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.gates = Linear(2 * size, 2 * size, 1.0)
        self.candidate = Linear(2 * size, size, 1.0)
        with torch.no_grad():
            self.gates.bias[size:] = -GATE_BIAS

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """`[M, H]` each, to `[M, H]`."""
        reset, update = self.gates(torch.cat([x, y], -1)).sigmoid().chunk(2, -1)
        candidate = self.candidate(torch.cat([reset * x, y], -1)).tanh()
        return x + update * (candidate - x)
