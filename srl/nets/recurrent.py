"""Memory: a recurrent layer over sequences that may begin new episodes at any row.

Axes: `K` rows in time, `N` sequences, `D` features, `H` size of the memory.
"""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from srl.core.errors import SpecError
from srl.core.spec import Field, Spec

MemoryKind = Literal["lstm", "gru"]
HIDDEN, CELL = "state.hidden", "state.cell"


def memory_state(kind: MemoryKind, size: int) -> Spec:
    """The state of one lane, as it is recorded."""
    names = (HIDDEN, CELL) if kind == "lstm" else (HIDDEN,)
    return Spec(tuple(Field(name, (size,), "float32", "chunk") for name in names))


class Memory(nn.Module):
    """An LSTM or a GRU that forgets where an episode begins."""

    def __init__(self, kind: MemoryKind, num_inputs: int, size: int) -> None:
        super().__init__()
        self.num_features = size
        self.names = memory_state(kind, size).names
        self.layer = (nn.LSTM if kind == "lstm" else nn.GRU)(num_inputs, size)
        for name, parameter in self.layer.named_parameters():
            if "bias" in name:
                nn.init.zeros_(parameter)
            else:
                nn.init.orthogonal_(parameter)

    def forward(
        self, x: Tensor, first: Tensor, state: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Run over the sequences, in one call of the layer where none of them begins an episode.

        Args:
            x: `[K, N, D]`.
            first: `[K, N]` bool; what came before such a row is not remembered there.
            state: each `[N, H]`, after the row before row 0.

        Returns:
            Features `[K, N, H]`, and the state after the last row.
        """
        if len(x) != len(first):
            raise SpecError(f"{len(x)} rows of features, but {len(first)} of `first`")
        memory = [state[name] for name in self.names]
        if len(x) == 1:  # without a look at `first` on the host
            memory = [part * ~first[0].unsqueeze(-1) for part in memory]
            y, memory = self._run(x, memory)
            return y, dict(zip(self.names, memory, strict=True))
        resets = first.any(1).nonzero().squeeze(1).tolist()
        parts, ends = [], [*(t for t in resets if t > 0), len(x)]
        start = 0
        for end in ends:
            if start in resets:
                kept = (~first[start]).unsqueeze(-1)
                memory = [x * kept for x in memory]
            y, memory = self._run(x[start:end], memory)
            parts.append(y)
            start = end
        y = parts[0] if len(parts) == 1 else torch.cat(parts)
        return y, dict(zip(self.names, memory, strict=True))

    def _run(self, x: Tensor, memory: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The layer over `x`, `[k, N, D]`, where no episode begins after row 0."""
        inputs = [part.unsqueeze(0).contiguous() for part in memory]
        y, after = self.layer(x, tuple(inputs) if len(inputs) > 1 else inputs[0])
        return y, [part.squeeze(0) for part in (after if len(inputs) > 1 else (after,))]
