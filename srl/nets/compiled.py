"""`torch.compile`, where it works."""

import logging
from collections.abc import Callable
from typing import Any

import torch

log = logging.getLogger(__name__)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, compiled for the shapes it is called with; as it is where there is no compiler."""
    try:
        torch.compile(_probe, fullgraph=True)(torch.ones(2))
    except Exception as error:  # noqa: BLE001 - whatever the toolchain lacks, eager works
        reason = f"{error}".strip().splitlines() or [type(error).__name__]
        log.warning("not compiled, for torch.compile does not work here: %s", reason[0])
        return function
    return torch.compile(function, dynamic=False)


def _probe(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1
