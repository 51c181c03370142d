"""Which memory stands after the encoder, and what is recorded of it."""

from dataclasses import dataclass
from typing import Literal

from srl.core.spec import Spec
from srl.nets.gtrxl import GatedTransformer, gtrxl_state
from srl.nets.recurrent import Memory, memory_state

MemoryKind = Literal["lstm", "gru", "gtrxl"]


@dataclass(frozen=True)
class MemoryOptions:
    """What a memory is."""

    kind: MemoryKind
    size: int
    """Features it returns."""
    layers: int = 2
    """Of a transformer; so are those that follow."""
    heads: int = 4
    length: int = 32
    """Rows it looks back."""

    @property
    def state(self) -> Spec:
        """The state of one lane, as it is recorded."""
        if self.kind == "gtrxl":
            return gtrxl_state(self.size, self.layers, self.length)
        return memory_state(self.kind, self.size)


def make_memory(options: MemoryOptions, num_inputs: int) -> Memory | GatedTransformer:
    """A memory of so many features a row."""
    if options.kind == "gtrxl":
        return GatedTransformer(
            num_inputs,
            options.size,
            layers=options.layers,
            heads=options.heads,
            length=options.length,
        )
    return Memory(options.kind, num_inputs, options.size)
