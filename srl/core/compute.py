"""How a network computes: on which device, in which precision, compiled or not."""

from dataclasses import dataclass
from typing import Literal

Precision = Literal["fp32", "tf32", "bf16"]


@dataclass(frozen=True)
class Compute:
    """Where and how the networks of one worker compute. Heads, softmax and losses are fp32 always."""

    device: str = "cpu"
    """cpu, cuda or cuda:N."""
    precision: Precision = "fp32"
    """What layers multiply in; weights and gradients are fp32 always."""
    compile: bool = False
    """Whether networks are compiled by torch, where it can."""
